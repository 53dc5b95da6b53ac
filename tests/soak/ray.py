"""Train on a real cluster of Ray with three nodes on this machine, and check that the results are those of one host.

python -m tests.soak.ray
python -m tests.soak.ray autoscaled             # one trial
"""

import argparse
import contextlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.ray_nodes import added_nodes, ray_nodes
from tests.soak.trials import QUIET, SECONDS, Trial

# kills the raylet of worker 1 at its third step, unless that is the head's, whose end is the cluster's: then worker 0's
KILLING = """
import os, runpy, sys
import psutil
from tfdist.monitor.process_clock import step_clock

me = int(os.environ["TFDIST_WORKER_INDEX"])
hosts = [address.split(":")[0] for address in os.environ["TFDIST_WORKERS"].split(",")]
victim = 1 if hosts[1].startswith("127.0.0.") else 0
if os.environ["TFDIST_RESTARTS"] == "0" and me == victim:
    import keras

    class Kill(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 2:
                [raylet] = [one for one in psutil.Process().parents() if one.name() == "raylet"]
                raylet.kill()
                raylet.wait()

    fit = keras.Model.fit
    keras.Model.fit = lambda self, *args, callbacks=(), **options: fit(
        self, *args, callbacks=[*callbacks, Kill()], **options
    )
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def equal_to_the_bit(trial: Trial, where: tuple[object, ...]) -> None:
    """A job on two nodes has the weights of one on one host, also when a worker is killed."""
    kill = json.dumps([{"kind": "kill", "worker": 1, "at": "step", "step": 3}])
    for strategy, collectives in (("multi-worker", "native"), ("sharded-data-parallel", "native")):
        options = ("--strategy", strategy, "--collectives", collectives, "-n", 2)
        local, _ = trial.trained(*options)
        remote, _ = trial.trained(*options, *where)
        assert remote == local
        restarted = (*options, *where, "--max-restarts", 1, "--pass-env", "OWN_BACKUPS")
        killed, events = trial.trained(*restarted, TFDIST_FAULTS=kill, OWN_BACKUPS="1")
        assert killed == local
        told(f"{strategy} {collectives}: one host, two nodes, and two with a worker killed: equal to the bit", events)


def a_raylet_killed(trial: Trial, where: tuple[object, ...]) -> None:
    """A job whose node is killed at its third step goes on at another one, to the weights of one on one host."""
    script = trial.folder / "killing.py"
    script.write_text(KILLING)
    options = ("--strategy", "multi-worker", "--collectives", "native", "-n", 2)
    local, _ = trial.trained(*options)
    remote, events = trial.trained(*options, *where, "--max-restarts", 1, before=(script,))
    assert remote == local
    [failed] = [one for one in events if one["event"] == "failed"]
    told(f"multi-worker native, a raylet killed ({failed['text']}): equal to the bit", events)


def reports(trial: Trial, where: tuple[object, ...]) -> None:
    """A function reports models whose weights or slots lie in parts, fails, and reports each epoch once."""
    from tfdist.engines.ray import FailureConfig, Result, RunConfig, ScalingConfig, Trainer

    def train(config: dict[str, Any]) -> list[Any]:
        from typing import Any  # the body of a class looks for it by name, which cloudpickle does not see

        import keras
        import numpy as np

        import tfdist
        from tfdist.engines.ray import ReportCheckpointCallback

        class Fails(keras.callbacks.Callback):
            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                if epoch == 2 and os.environ["TFDIST_RESTARTS"] == "0":
                    raise InterruptedError

        keras.utils.set_random_seed(1)
        with tfdist.strategies.from_environment().scope():
            model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        x = np.random.default_rng(1).normal(size=(64, 8)).astype("float32")
        callbacks = [
            ReportCheckpointCallback(),
            tfdist.callbacks.BackupAndRestore(config["backup"]),
            *([Fails()] if config["fails"] else []),
        ]
        model.fit(x, x[:, :1], batch_size=16, epochs=4, shuffle=False, callbacks=callbacks, verbose=0)
        return [weight.tolist() for weight in model.get_weights()]

    import keras

    os.environ["RAY_ADDRESS"] = str(where[3])
    os.chdir(trial.folder)
    for strategy, more in (("multi-worker", {}), ("sharded-data-parallel", {"TFDIST_SHARDING_STAGE": "3"})):
        histories = []
        for fails in (False, True):
            name = f"{strategy}-{fails}"
            result = Trainer(
                train_fn=train,
                train_loop_config={"backup": str(trial.folder / f"backup-{name}"), "fails": fails},
                scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 2}),
                run_config=RunConfig(
                    name=name, storage_path="runs", failure_config=FailureConfig(max_failures=int(fails))
                ),
                strategy=strategy,
                options={"env": {**QUIET, **more}},
            ).fit()
            assert Result.from_path(f"runs/{name}").metrics == result.metrics
            assert [one["checkpoint_dir_name"][-1] for one in result.history] == list("0123")
            assert result.checkpoint is not None
            loaded = keras.saving.load_model(f"{result.checkpoint.path}/model.keras")
            assert [one.tolist() for one in loaded.get_weights()] == result.return_value
            histories.append(([one["loss"] for one in result.history], result.return_value))
        assert histories[0] == histories[1]
        told(f"{strategy}: four epochs reported once, with checkpoints, also after a failure: equal to the bit", [])


def data_sets(trial: Trial, where: tuple[object, ...]) -> None:
    """Blocks that nodes make, each as fast as it happens to be, are written in the order of their numbers. By name."""
    import ray
    import ray.data  # needs pandas

    from tfdist import data

    ray.init(address=str(where[3]), log_to_driver=False, logging_level="ERROR")
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order, context.enable_progress_bars = True, False

    def made(blocks: int) -> Any:
        def make(rows: Any) -> Any:
            import random
            import time

            import numpy as np

            time.sleep(0.1 * random.random())
            numbers = rows["id"]
            images = numbers[:, None, None] * np.ones((1, 2, 3), "float32")
            return {"id": numbers, "text": np.array([f"a{one}" for one in numbers]), "image": images}

        return ray.data.range(40_000, override_num_blocks=blocks).map_batches(make, batch_size=500)

    def stop(examples: int, *_: Any) -> None:
        if examples > 25_000:
            raise InterruptedError

    for name, blocks in (("few", 3), ("many", 23)):
        if name == "many":
            with contextlib.suppress(InterruptedError):
                data.write(made(blocks), trial.folder / name, shard_bytes=600_000, progress=stop)
        data.write(made(blocks), trial.folder / name, shard_bytes=600_000)
    for number, example in enumerate(data.open(trial.folder / "few")):
        assert (int(example["id"]), example["text"], example["image"].shape) == (number, f"a{number}".encode(), (2, 3))
        assert (example["image"] == number).all()
    files = sorted((trial.folder / "few").glob("data-*"))
    assert len(files) > 8
    for path in files:
        assert path.read_bytes() == (trial.folder / "many" / path.name).read_bytes()
    ray.shutdown()
    told("ray.data: 3 blocks, and 23 with an interruption: 40,000 examples in order, the same bytes", [])


def parameter_servers(trial: Trial, where: tuple[object, ...]) -> None:
    """A chief, workers and a server on three nodes."""
    options = ("--strategy", "parameter-server", "-n", 2, "--parameter-servers", 1)
    variables = {"TFDIST_MAX_STALENESS": "0"}
    local, _ = trial.trained(*options, **variables)
    remote, _ = trial.trained(*options, *where, "--cpus-per-worker", 1, **variables)
    assert remote == local
    told("parameter-server: one host and nodes of Ray: equal to the bit", [])


def autoscaled(trial: Trial) -> None:
    """A job on nodes that Ray's autoscaler adds, of which one is killed: it goes on at another one, to the bit."""
    script = trial.folder / "killing.py"
    script.write_text(KILLING)
    options = ("--strategy", "multi-worker", "--collectives", "native", "-n", 2)
    local, _ = trial.trained(*options)
    with ray_nodes(0, more=3) as address:
        there = ("--engine", "ray", "--ray-address", address, "--wait-seconds", 300, "--max-restarts", 1)
        remote, events = trial.trained(*options, *there, before=(script,))
        begun = time.monotonic()
        assert remote == local
        [failed] = [one for one in events if one["event"] == "failed"]
        told(f"multi-worker native on nodes of an autoscaler ({failed['text']}): equal to the bit", events)
        while added_nodes(address):
            assert time.monotonic() - begun < SECONDS, "nodes that nobody needs are left"
            time.sleep(0.2)
        told(f"the nodes have ended {time.monotonic() - begun:.0f} s after the job", [])


def told(text: str, events: list[Any]) -> None:
    for one in events:
        if one["event"] == "stepping" and "seconds" in one:
            text += f"; steps again after {one['seconds']:.1f} s from step {one['resumed']}, {one['lost']} repeated"
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = ["equal_to_the_bit", "parameter_servers", "reports", "a_raylet_killed", "autoscaled"]
    parser.add_argument("trials", nargs="*", default=usual)
    options = parser.parse_args()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(Path(folder))
        others = [name for name in options.trials if name != "autoscaled"]
        if others:
            with ray_nodes(2, 2, 2) as address:
                where = ("--engine", "ray", "--ray-address", address, "--cpus-per-worker", 2)
                for name in others:
                    globals()[name](trial, where)
        if "autoscaled" in options.trials:  # on a cluster of its own
            autoscaled(trial)
    print(f"{time.monotonic() - begun:.0f} s in all")


if __name__ == "__main__":
    main()
