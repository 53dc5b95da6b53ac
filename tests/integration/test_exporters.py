"""A job whose figures go to TensorBoard, Prometheus and MLflow at once, beside a server that is dead."""

import json
import shutil
import subprocess
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.integration.agents import DEADLINE_SECONDS, told, wait_until
from tests.integration.forks import Forks
from tests.integration.steppers import happened, job
from tests.refusals import refused
from tfdist.cluster.ports import free_ports
from tfdist.errors import ConfigError
from tfdist.federated import RoundRecord
from tfdist.federated.round_exporters import RunAbout, exported, targets_of
from tfdist.monitor.verdict.step_parts import Part

STEPS = 60
STEPPING = f"""
from tfdist.monitor.phases import Kind, Phase
from tfdist.monitor.process_clock import step_clock
for _ in range({STEPS}):
    with step_clock().step(Kind.TRAIN, Phase.INPUT):
        time.sleep(0.002)
step_clock().epoch_ends()
tell(f"stepped {{ME}}")
wait_told("enough")
"""


def metrics(port: int) -> dict[tuple[str, str, str], float]:
    """Return the metrics of a job by their name, rank and phase; nothing where nobody serves them."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    if shutil.which("promtool"):
        checked = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    return {(one.name, one.labels.get("rank", ""), one.labels.get("phase", "")): one.value for one in samples}


@pytest.mark.readme(
    "tfdist run --export tensorboard:logs --export prometheus:9400 --strategy multi-worker -n 2 train.py"
)
def test_a_job_is_exported(script, shared: Path, forking: Forks) -> None:  # type: ignore[no-untyped-def]
    port, dead = free_ports(2)
    targets = [
        f"tensorboard:{shared}/bo ard",
        f"prometheus:{port}",
        f"mlflow:{shared}/runs",
        f"mlflow:http://127.0.0.1:{dead}",
    ]
    options = [word for target in targets for word in ("--export", target)]
    with job(*options, "-n", 2, script(STEPPING), "--lr", "0.1", shared=shared, forking=forking) as run:
        for worker in range(2):
            told(shared, f"stepped {worker}")
        key = ("tfdist_step_seconds", "1", "input")
        wait_until(lambda: metrics(port).get(key, 0) > 0.001, "no metrics")
        # what is served may be of a look before the last step
        wait_until(lambda: metrics(port)["tfdist_steps_total", "0", ""] == STEPS, "not all steps")
        (shared / "enough").write_text("x")
        _, errors = run.communicate(timeout=DEADLINE_SECONDS)
    assert run.returncode == 0, errors.decode()
    warnings = [line for line in errors.decode().splitlines() if "warning" in line]
    assert len(warnings) == 1
    assert f"mlflow:http://127.0.0.1:{dead}" in warnings[0]
    assert metrics(port) == {}, "the port is still there"
    job_id = happened(shared)[0]["job"]
    _look_at_tensorboard(shared / "bo ard" / job_id[:8])
    _look_at_mlflow(shared / "runs", job_id)


def _look_at_tensorboard(folder: Path) -> None:
    for worker in range(2):
        found = EventAccumulator(str(folder / f"worker-{worker}"), size_guidance={"histograms": 0})
        found.Reload()
        assert {"step_seconds/input", "step_seconds/step", "steps_per_second"} <= set(found.Tags()["scalars"])
        histograms = found.Histograms("step_seconds_histogram/input")
        assert sum(one.histogram_value.num for one in histograms) == STEPS, "a step is missing, or is there twice"
        assert sum(sum(one.histogram_value.bucket) for one in histograms) == STEPS
        last = found.Scalars("step_seconds/input")[-1]
        assert last.step == STEPS - 1
        assert 0.002 <= last.value < 60
    found = EventAccumulator(str(folder / "job"))
    found.Reload()
    texts = [one.tensor_proto.string_val[0].decode() for one in found.Tensors("verdict")]
    assert "bound by input" in texts[0]


def _look_at_mlflow(folder: Path, job_id: str) -> None:
    from mlflow import MlflowClient

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        client = MlflowClient(tracking_uri=str(folder))
        experiment = client.get_experiment_by_name("tfdist")
        assert experiment is not None
        (run,) = client.search_runs([experiment.experiment_id])
        assert (run.info.status, run.data.tags["tfdist.job"], run.data.tags["tfdist.bound"]) == (
            "FINISHED",
            job_id,
            "input",
        )
        assert run.data.params["script"].endswith("--lr 0.1")
        assert run.data.params["workers"] == "2"
        names = {f"step_seconds/{part.label}/worker_{worker}" for part in Part for worker in range(2)}
        assert names | {"system/resident_memory_bytes/worker_1"} <= set(run.data.metrics)
        assert run.data.metrics["step_seconds/input/worker_0"] >= 0.002
        assert {one.path for one in client.list_artifacts(run.info.run_id)} == {"verdict.txt", "summary.json"}


def _round(number: int) -> RoundRecord:
    curves = {"train": {"loss": 1.0 / (number + 1)}, "evaluation": {"loss": 2.0 / (number + 1)}}
    counts = {"selected": 5, "used": 4, "examples": 40, "clipped_updates": 2}
    return RoundRecord(round=number, attempt=0, seconds=0.5, **counts, **curves)  # type: ignore[arg-type]


def test_rounds_are_exported_and_go_on_in_the_same_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient  # takes half a second in each process that collects the tests

    from tfdist.monitor.exporters import mlflow_exporter

    for name, value in {**mlflow_exporter.OWN, "_MLFLOW_TELEMETRY_SESSION_ID": ""}.items():
        monkeypatch.setenv(name, value)  # what exporting changes is put back
    port, dead = free_ports(2)
    texts = [f"tensorboard:{tmp_path}/board", f"prometheus:{port}", f"mlflow:{tmp_path}/runs"]
    about, warnings = RunAbout("0123456789", {"algorithm": "FedAvg()"}), list[str]()

    def ends_early() -> None:
        with exported(targets_of(texts, option="--export"), about, warn=warnings.append) as put:
            put(_round(0))
            wait_until(lambda: metrics(port).get(("tfdist_federated_rounds_total", "", "")) == 1, "no metrics")
            assert metrics(port)["tfdist_federated_clients_lost", "", ""] == 1
            assert metrics(port)["tfdist_federated_clipped_updates", "", ""] == 2
            raise ConfigError("the disk is full.", name="disk")

    with refused(ConfigError, name="disk"):
        ends_early()
    texts = [texts[0], texts[2], f"mlflow:http://127.0.0.1:{dead}"]
    assert not warnings
    with exported(targets_of(texts, option="--export"), about, warn=warnings.append) as put:
        put(_round(1))
    assert [f"mlflow:http://127.0.0.1:{dead}" in line for line in warnings] == [True]
    assert metrics(port) == {}, "the port is still there"
    for part, expected in (("train", [1.0, 0.5]), ("evaluation", [2.0, 1.0])):
        found = EventAccumulator(str(tmp_path / "board" / "01234567" / part))
        found.Reload()
        assert [(one.step, one.value) for one in found.Scalars("loss")] == list(zip((1, 2), expected, strict=True))
    client = MlflowClient(tracking_uri=str(tmp_path / "runs"))
    experiment = client.get_experiment_by_name("tfdist")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.data.params, run.data.metrics["evaluation/loss"]) == (
        "FINISHED",
        {"algorithm": "FedAvg()"},
        1.0,
    )
    assert [one.step for one in client.get_metric_history(run.info.run_id, "rounds/clients")] == [1, 2]
    with refused(ConfigError, name="--export", received="html"):
        targets_of(["html"], option="--export")


ALONE = Path(__file__).parent / "cases" / "monitored_alone.py"


def test_the_callback_does_so_without_the_launcher(shared: Path, forking: Forks) -> None:
    (dead,) = free_ports(1)
    (shared / "taken").touch()
    targets = [f"tensorboard:{shared}/board", f"html:{shared}/page.html", f"mlflow:http://127.0.0.1:{dead}"]
    assert forking.run(str(ALONE), str(shared), *targets, f"tensorboard:{shared}/taken") == 0, forking.output
    warnings = [line for line in forking.output.splitlines() if "warning: export to" in line]
    assert len(warnings) == 2, forking.output
    assert all("continues without it" in line for line in warnings)
    for name in ("scope", "plain"):
        assert json.loads((shared / f"{name}.json").read_text())[0].startswith("verdict    bound by")
    assert "too few steps: 15" in json.loads((shared / "again.json").read_text())[0]  # one of 16 was traced
    trace = json.loads((shared / "trace.json").read_text())["traceEvents"]
    assert {one["args"]["step"] for one in trace if one["name"] == "train"} == set(range(32))
    assert {"forward", "update"} <= {one["name"] for one in trace}  # so small, it may be back before it has the loss
    (folder,) = (shared / "board").iterdir()
    assert not list(Path("/dev/shm").glob(f"tfdist-job-{folder.name}*")), "memory is left"
    found = EventAccumulator(str(folder / "worker-0"), size_guidance={"histograms": 0})
    found.Reload()
    histograms = found.Histograms("step_seconds_histogram/backward")
    assert sum(one.histogram_value.num for one in histograms) == 31, "one step of 32 was traced, which is none"
    assert np.isfinite([one.value for one in found.Scalars("loss")]).all()
    page = (shared / "page.html").read_text()
    assert folder.name in page
    assert page.count("warning: of the step") == 1
    assert forking.output.count("\nwarning: of the step") == 1  # below the verdict of the one that prints it
    assert page.count("<i style=") > 3
    assert "<script" not in page


TRAINING = """
import keras
import numpy as np
from tfdist.callbacks import Monitor

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
monitor = Monitor(exporters=[f"html:{SHARED}/page {ME}.html"])
last = keras.callbacks.LambdaCallback(on_train_end=lambda logs: ME or wait_told("trained 1"))
model.fit(np.ones((96, 4)), np.ones(96), batch_size=4, epochs=2, verbose=0, callbacks=[last, monitor])
tell(f"trained {ME}", monitor.verdict[0] if monitor.verdict else "-")
"""


def test_the_first_worker_of_a_launched_job_sees_all(script, shared: Path, forking: Forks) -> None:  # type: ignore[no-untyped-def]
    with job("-n", 2, script(TRAINING), shared=shared, forking=forking) as run:
        _, errors = run.communicate(timeout=DEADLINE_SECONDS)
    assert run.returncode == 0, errors.decode()
    assert told(shared, "trained 0").startswith("verdict")
    assert told(shared, "trained 1") == "-", "the first worker tells it"
    (page,) = shared.glob("page*.html")
    assert page.name == "page 0.html"
    rows = [line for line in page.read_text().splitlines() if line.startswith("<tr><td>")]
    assert [line.removeprefix("<tr><td>")[0] for line in rows] == ["0", "1"]
    assert all("compute" in line for line in rows), "a worker has no bar"
