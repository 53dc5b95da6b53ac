"""The parameter-server strategy beside what the matrix compares: exact counts, bounds, parts, and workers that go."""

import functools
import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration import case_pools
from tests.integration.agents import says
from tests.integration.case_pools import CASES
from tests.integration.cases import refusal_fields
from tests.integration.forks import Forks
from tests.integration.light import python_path
from tfdist.cluster import ports
from tfdist.testing.pool import WorkerPool, worker_environments

call = functools.partial(case_pools.call_one, of="parameter_server_cases")


def environments(path: str = python_path(CASES)) -> list[dict[str, str]]:
    made = worker_environments(os.environ, strategy=None, ports=ports.free_ports(1), replicas_per_worker=1)
    return [environment | {"PYTHONPATH": path} for environment in made]


@pytest.fixture(scope="module")
def pool(forking: Forks) -> Iterator[WorkerPool]:
    """A chief whose tasks live as long as it does; it learns the digits, which are scikit-learn's."""
    with WorkerPool(lambda: environments(str(CASES)), start=forking.worker) as chief:
        call(chief, "ready")
        yield chief


def once(forking: Forks, function: str, **arguments: Any) -> Any:
    """Call a function that ends tasks, in a chief of its own."""
    with WorkerPool(environments, start=forking.worker) as chief:
        return call(chief, function, **arguments)


@pytest.mark.parametrize("bound", [None, 0, 2])
def test_what_is_counted_is_what_was_applied(pool: WorkerPool, bound: int | None) -> None:
    seen = call(pool, "count_exactly", options={"max_staleness": bound})
    assert seen["iterations"] == seen["weight"] == seen["staleness"] == 63
    assert seen["examples"] == [165.0] * 3
    assert seen["lost"] == 0
    if bound is not None:
        assert seen["largest"] <= bound
    if bound == 0:
        assert seen["staleness_max"] is None
    else:
        assert max(seen["staleness_max"]) == seen["largest"]


@pytest.mark.parametrize("bound", [0, None])
def test_a_chief_is_seen_to_wait_and_to_update(pool: WorkerPool, bound: int | None) -> None:
    seen = call(pool, "of_a_chief", of="step_cases", max_staleness=bound)
    assert seen["are_sound"]
    assert seen["are_in_a_row"]
    assert seen["kinds"] == ["train"] * 4
    assert seen["updates"] == 6
    phases = {phase for step in seen["phases"] for phase in step}
    assert phases == {"dispatch", "input", "wait", "update"}


def test_workers_tell_a_chief_that_is_recorded_how_long_their_passes_took(pool: WorkerPool) -> None:
    seen = call(pool, "passes_of_a_chief", of="step_cases", forward=0.1, backward=0.1, max_staleness=0)
    assert seen["difference"] == 0.0, "as without stamps"
    assert seen["losses"][0] == seen["losses"][1]
    assert (seen["workers"], seen["is_divided"]) == (3, True)
    assert seen["steps"] == 5  # and one in which it was traced
    forward, backward, exchange = seen["parts"]
    # stamps may come late, as whatever waits for a processor; in the first steps on a single one, behind all else
    if len(os.sched_getaffinity(0)) > 1:
        assert forward >= 0.05
        assert backward >= 0.05
    assert forward + backward + exchange >= 0.2
    assert exchange > 0
    assert seen["missing"] < 1e-6
    # Keras' loss is the mean over the two steps of an epoch; the first step was traced and is not told
    assert [sum(seen["loss"][place : place + 2]) / 2 for place in (1, 3)] == pytest.approx(seen["losses"][0][1:])


def test_of_workers_that_nobody_waits_for_a_chief_knows_the_loss(pool: WorkerPool) -> None:
    seen = call(pool, "passes_of_a_chief", of="step_cases", forward=0.0, backward=0.0, max_staleness=None)
    assert seen["workers"] == 1
    assert not any(seen["parts"])
    seen = [loss for loss in seen["loss"] if not math.isnan(loss)]  # a step may take no result, or several
    assert seen
    assert min(seen) > 0


@pytest.mark.parametrize(
    ("optimizer", "bound", "updates"), [("keras", 1, 63), ("distributed", None, 63), ("accumulated", 2, 21)]
)
def test_a_gradient_keeps_its_size_while_the_loss_scale_changes(
    pool: WorkerPool, optimizer: str, bound: int | None, updates: int
) -> None:
    seen = call(pool, "count_while_the_scale_grows", optimizer=optimizer, options={"max_staleness": bound})
    assert seen["largest"] > 0
    assert seen["scale"] == 2.0 ** (15 + updates // 2)
    assert (seen["updates"], seen["weight"], seen["skipped"]) == (updates, updates, 0)


@pytest.mark.parametrize("wire_dtype", ["float16", pytest.param("bfloat16", marks=pytest.mark.release)])
def test_gradients_leave_a_worker_in_the_dtype_of_the_wire(pool: WorkerPool, wire_dtype: str) -> None:
    assert call(pool, "what_travels", wire_dtype=wire_dtype) == {"dtypes": [wire_dtype], "weight": 2}


@pytest.mark.parametrize(("codec", "words", "bound"), [("qsgd-8", 646, 0.2), ("natural", 721, 0.6)])
def test_workers_leave_what_a_codec_makes_of_gradients(pool: WorkerPool, codec: str, words: int, bound: float) -> None:
    seen = call(pool, "encoded", of="compression_server_cases", codec=codec)
    assert seen["left"] == [["int32", words]]
    assert 0 < seen["off"] < bound


def test_reducers_give_the_gradients_of_one_device(pool: WorkerPool) -> None:
    assert call(pool, "reducers") == []


@pytest.mark.parametrize("bound", [2, 0])
def test_a_killed_worker_changes_no_count(bound: int | None, forking: Forks) -> None:
    seen = once(forking, "count_with_trouble", what="killed", options={"max_staleness": bound})
    assert seen["iterations"] == seen["weight"] == 60
    assert seen["examples"] == [160.0] * 3
    assert seen["lost"] >= 1
    assert seen["again"] == [160.0]
    assert seen["weight_again"] == 80


@pytest.mark.parametrize("workers", [2])
def test_who_is_killed_for_good_is_done_without(workers: int, forking: Forks) -> None:
    seen = once(forking, "count_without", workers=workers)
    assert seen["iterations"] == seen["weight"] == 60
    assert seen["examples"] == [160.0] * 3
    assert seen["lost"] == workers
    assert seen["present"] == 3 - workers


@pytest.mark.parametrize("bound", [None, 0])
def test_a_stopped_worker_is_given_up_and_comes_back(pool: WorkerPool, bound: int | None) -> None:
    options = {"max_staleness": bound, "worker_timeout_seconds": 3.0}
    seen = call(pool, "count_with_trouble", what="stopped", options=options)
    assert seen["iterations"] == seen["weight"] == 60
    assert seen["examples"] == [160.0] * 3
    assert seen["lost"] == 1
    assert seen["again"] == [160.0]
    assert seen["weight_again"] == 80


def test_an_evaluation_sees_every_example_once_though_a_worker_dies(forking: Forks) -> None:
    seen = once(forking, "evaluate_with_a_kill")
    assert seen["examples"] == 203
    assert math.isclose(seen["loss"], 101.0, rel_tol=1e-5)
    assert seen["rows"] == [11, 1]


def test_a_stale_gradient_takes_a_smaller_step(pool: WorkerPool) -> None:
    seen = call(pool, "corrected_rates")
    assert math.isclose(seen["weight"], seen["expected"], rel_tol=1e-5)
    assert seen["mean"] > 0


def test_the_last_part_is_not_waited_for(pool: WorkerPool) -> None:
    seen = call(pool, "backup_workers", of="uneven_server_cases")
    assert seen["weight"] == seen["iterations"] == 2 + 10
    assert seen["dropped"] == 10 * 4
    assert seen["by worker"] == [[0, 10 * 4]], "the worker that is stopped"
    assert seen["steps"] == list(range(1, 11))
    assert seen["logs"] == [20.0, 20.0]
    (told,) = seen["told"]
    assert "40 of 120" in told
    assert "worker 0" in told
    assert seen["examples"] == [40.0, 40.0]


def test_a_metric_that_may_lose_examples_is_named(pool: WorkerPool) -> None:
    together = call(pool, "undeclared_counts", of="uneven_server_cases", max_staleness=0)
    assert together["count"] == 40.0
    (told,) = call(pool, "undeclared_counts", of="uneven_server_cases", max_staleness=None)["told"]
    assert "'undeclared'" in told
    assert "'mae'" not in told


def test_a_group_waits_for_no_other(pool: WorkerPool) -> None:
    seen = call(pool, "groups_by_name", of="uneven_server_cases")
    assert seen["weight"] == seen["iterations"] == 12 + 60
    assert seen["examples"] == [480.0]
    assert seen["groups"] == {"fast": ["worker-0", "worker-1"], "slow": ["worker-2"]}
    assert seen["largest"] > 20, "the batch of the stopped worker, while its group applied nothing"
    assert seen["lost"] == 0


def test_groups_are_made_by_speed_and_every_batch_counts_once(pool: WorkerPool) -> None:
    seen = call(pool, "groups_by_speed", of="uneven_server_cases")
    assert seen["before"] == {"all": ["worker-0", "worker-1", "worker-2"]}
    assert seen["groups"] == {"group-1": ["worker-0", "worker-2"], "group-2": ["worker-1"]}
    assert seen["weight"] == seen["iterations"] == 2 * 101
    assert seen["examples"] == [805.0, 805.0]
    assert seen["evaluated"] == 50.0
    (told,) = seen["told"]
    assert "group-2 (1)" in told


def test_batches_of_a_group_that_dies_are_computed_by_others(pool: WorkerPool) -> None:
    seen = call(pool, "a_group_dies", of="uneven_server_cases")
    assert seen["weight"] == seen["iterations"] == 60
    assert seen["examples"] == [160.0] * 3
    assert seen["lost"] == 1


@pytest.mark.parametrize(
    ("optimizer", "dense", "saves"),
    [
        ("sgd", True, False),
        ("adam", True, True),
        pytest.param("adagrad", False, False, marks=pytest.mark.release),
        ("positions", False, True),
        ("ema", True, False),
        ("accumulated", False, False),
        ("distributed", False, True),
    ],
)
def test_parts_have_the_numbers_of_a_whole(pool: WorkerPool, optimizer: str, dense: bool, saves: bool) -> None:
    seen = call(pool, "partitioned", optimizer=optimizer, dense=dense, saves=saves)
    assert seen["exported"] < 1e-6
    assert seen["difference"] < 1e-5
    assert seen["logs"] == ["loss", *(["loss_scale", "skipped_steps"] if optimizer == "distributed" else [])]
    assert len(seen["loaded"]) == (2 if saves else 0)
    assert all(difference < 1e-5 for difference in seen["loaded"])
    assert seen["servers"] == [0, 1]
    assert "1/2" in seen["table"]
    assert seen["in parts"] >= 6


def test_a_step_uses_what_it_has_updated(pool: WorkerPool) -> None:
    seen = call(pool, "differences", of="update_cases")
    assert len(seen) == 4
    assert max(seen.values()) < 1e-5, seen


def test_a_gan_may_be_stale_and_must_update_at_every_step(pool: WorkerPool) -> None:
    seen = call(pool, "stale_and_refused", of="update_cases")
    assert seen["updates"] == [40, 40]
    assert 0 < seen["largest"] <= 2
    assert "inside a tf.cond" in seen["said"]
    assert refusal_fields.are(seen["coordinator"], "UnsupportedError", "ClusterCoordinator", ..., "fit")
    assert refusal_fields.are(seen["state of rows"], "UnsupportedError", ..., ..., "'kept'")


def test_one_worker_predicts_a_batch_whose_rows_are_compared(pool: WorkerPool) -> None:
    assert call(pool, "predictions_that_compare_rows") < 1e-5


def test_noise_of_an_optimizer_is_that_of_one_device(pool: WorkerPool) -> None:
    assert call(pool, "noise_of_an_optimizer") < 1e-5


def test_numbers_are_looked_at_as_on_one_device(pool: WorkerPool) -> None:
    assert call(pool, "numbers", of="update_cases") == {}
    assert call(pool, "logged", of="update_cases", number=2**40 + 1) == 2**40 + 1


def test_a_large_table_lies_in_parts(pool: WorkerPool) -> None:
    seen = call(pool, "rows_travel_alone")
    assert seen["iterations"] == 100
    assert seen["pieces"][:2] == [[1_000_000, 16]] * 2


def test_the_largest_variables_are_placed_first(pool: WorkerPool) -> None:
    seen = call(pool, "largest_first")
    assert seen["loads"] == seen["real"]
    biggest = 8 * 60 * 4
    rest = 6 * (64 + 8) * 4 + 240
    assert max(seen["real"]) <= max(biggest, (biggest + rest) / 2 + 8 * 8 * 4)


def test_steps_go_beyond_a_pass(pool: WorkerPool) -> None:
    seen = call(pool, "steps_beyond_a_pass")
    assert seen["iterations"] == seen["weight"] == 24 + 5
    assert seen["examples"] == [96.0, 96.0]
    assert seen["generated"] == [40.0]


def test_batch_logs_are_those_of_applied_steps(pool: WorkerPool) -> None:
    seen = call(pool, "batch_logs")
    assert len(seen) == 10
    applied = [examples / 8 for _, examples in seen]
    assert applied == sorted(applied)
    assert all(1 <= count <= place for place, count in enumerate(applied, 1))
    assert all(999 < loss <= 1000 for loss, _ in seen)


def test_stale_gradients_learn_as_well_within_a_band(pool: WorkerPool) -> None:
    # In several runs the losses lay 1 % below to 6 % above those of one device.
    for alone, stale in call(pool, "losses_over_seeds"):
        assert 0.85 * alone < stale < 1.15 * alone


def test_a_callback_may_evaluate_while_workers_train(pool: WorkerPool) -> None:
    seen = call(pool, "evaluate_in_the_middle")
    assert seen["seen"] == [50.0, 7.0] * 4
    assert seen["iterations"] == 20
    assert "staleness_mean" in seen["staleness"]


def test_an_interrupted_fit_leaves_nothing_to_the_next(pool: WorkerPool) -> None:
    seen = call(pool, "interrupted")
    assert seen == {"again": 10, "examples": [80.0], "exact": True}
    assert call(pool, "an_interrupted_call", of="update_cases") == ["interrupted", "second"]


def test_an_error_of_the_users_is_raised_and_no_worker_is_blamed(pool: WorkerPool) -> None:
    seen = call(pool, "wrong_steps")
    assert "9" in seen["error"]
    assert seen["iterations"] == 16
    assert seen["lost"] == 0


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ("staleness", ("ConfigError", "max_staleness", "-1")),
        ("bool", ("ConfigTypeError", "max_staleness", "True")),
        ("backup", ("ConfigError", "backup_workers", "1")),
        ("all backup", ("ConfigError", "backup_workers", "3")),
        ("partitioner", ("ConfigError", "variable_partitioner", "2")),
        ("other size", ("ConfigError", "cluster", "(2, 2)")),
        ("timeout", ("ConfigError", "worker_timeout_seconds", "0")),
        ("no servers", ("ConfigError", "cluster", "2")),
        ("a worker", ("ConfigError", "cluster", "worker 0")),
        ("second axis", ("ConfigError", "variable_partitioner", "[1, 2]")),
        ("norms of parts", ("UnsupportedError", "Lamb", ..., "cut/kernel")),
        ("norms of parts, wrapped", ("UnsupportedError", "LARS", ...)),
        ("federated client", ("UnsupportedError", "make_model", "ParameterServerStrategy")),
    ],
)
def test_wrong_use_is_refused(pool: WorkerPool, wrong: str, expected: tuple[Any, ...]) -> None:
    report = _refusals(pool)[wrong]
    assert refusal_fields.are(report, *expected), report


def test_a_strategy_that_is_refused_leaves_no_tasks(pool: WorkerPool) -> None:
    started = {"workers": 3, "servers": 2}
    seen = call(pool, "refused", of="server_task_cases")
    assert seen == ["backup_workers", "groups", started, "ended", "ps 0"]


def test_workers_run_programs_of_xla(pool: WorkerPool) -> None:
    """A program reads variables from servers before it begins; one that XLA cannot compile is refused, without harm."""
    seen = call(pool, "under_xla", of="server_xla_cases")
    assert seen["differ"] < 1e-5
    assert "XLA cannot compile AsString" in seen["refused"]


_reports: dict[int, dict[str, list[Any]]] = {}


def _refusals(pool: WorkerPool) -> dict[str, list[Any]]:
    if id(pool) not in _reports:
        _reports[id(pool)] = call(pool, "refusals")
    return _reports[id(pool)]


def test_a_server_that_goes_ends_training_at_once_with_the_cure(forking: Forks) -> None:
    seen = once(forking, "a_server_goes")
    assert re.search(r"parameter server [01] \(", seen["error"])  # threads of a killed one may still hold its port
    assert "BackupAndRestore" in seen["error"]


# The chief may have the job asked to end in its fourth epoch. It prints what came of it.
SCRIPT = f"""
import os, signal, sys, time
import keras, numpy as np, tensorflow as tf, tfdist
sys.path.append({str(CASES)!r})
from parameter_server_cases import At, Constant, Examples, RATE

what, backup = sys.argv[1:]

def ask_to_end():
    came, handler = [], signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda number, frame: (came.append(number), handler(number, frame)))
    os.kill(os.getppid(), signal.SIGTERM)
    deadline = time.monotonic() + 200
    while not came and time.monotonic() < deadline:
        time.sleep(0.01)  # else training would be over before the agent has passed it on

strategy = tfdist.strategies.from_environment()
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), Constant()])
    model.compile(keras.optimizers.SGD(RATE), "mae", metrics=[Examples()])
trouble = [At(3, 5, ask_to_end)] if what == "asked" else []
x, y = np.zeros((80, 2)), np.full((80, 1), -1000.0)
callbacks = [tfdist.callbacks.BackupAndRestore(backup), *trouble]
history = model.fit(x, y, batch_size=8, epochs=5, verbose=0, callbacks=callbacks)
told = [int(model.optimizer.iterations.numpy()), float(model.get_weights()[0][0]) / -RATE, len(history.epoch)]
print("finished", *told, "restarts", os.environ["TFDIST_RESTARTS"], "lost", strategy.lost_workers, flush=True)
"""


def job(folder: Path, what: str) -> list[str]:
    """Write the script; return what runs it."""
    script = folder / "train ü.py"
    script.write_text(SCRIPT)
    launcher = ["tfdist", "run", "--strategy", "parameter-server", "-n", "2", "--parameter-servers", "2"]
    launcher += ["--hang-seconds", "10"]  # a busy machine may hold a step up for longer than the usual 2 s
    return [*launcher, str(script), what, str(folder / "backup")]


def test_a_worker_a_server_and_the_chief_fail_and_no_step_counts_twice(forking: Forks, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    faults: list[dict[str, Any]] = [
        {"kind": "kill", "task": "worker 1", "step": 7},
        {"kind": "kill", "task": "ps 0", "step": 23},
        {"kind": "hang", "task": "chief", "step": 14, "restart": 1},
        {"kind": "kill", "task": "chief", "at": "save-middle", "restart": 2},
    ]
    plan.write_text(json.dumps(faults))
    with forking.start("tfdist", "chaos", "--plan", str(plan), "--", *job(tmp_path, "nothing")) as process:
        out, err = (written.decode() for written in process.communicate())
    assert process.returncode == 0, out + err
    assert "finished 50 50.0 5 restarts 3" in out
    worker, server, hang, save, last = out[out.index("fault ") :].splitlines()[1:]
    assert "worker 1 replaced" in worker
    assert says(server, " 3  ps 0 ", "SIGKILL")  # 23 steps, of which 20 were saved
    assert says(hang, " 4  chief hangs", "in step 15 ")  # 34 steps, of which 30 were
    assert says(save, " 10  chief ", "SIGKILL")
    assert says(last, "4 of 4 faults", " 0.")
    said = [line for line in err.splitlines() if line.startswith("tfdist run: ")]
    assert sum("the job steps again" in line for line in said) == 3
    assert says(said[-1], "code 0", "3 of 4 restarts", "1 worker replaced", "17 steps")


def test_a_job_is_asked_to_end_and_no_step_counts_twice(forking: Forks, tmp_path: Path) -> None:
    assert forking.run(*job(tmp_path, "asked")) == 143, forking.output
    assert forking.run(*job(tmp_path, "nothing")) == 0, forking.output
    assert "finished 50 50.0 5 restarts 0 lost 0" in forking.output


def test_the_gradient_noise_scale_is_that_of_one_device(pool: WorkerPool) -> None:
    seen = call(pool, "compared", of="noise_cases", strategy="parameter-server")
    assert seen["scope"] == pytest.approx(seen["alone"], rel=1e-5)


def test_keras_that_is_not_recognised_is_refused(pool: WorkerPool) -> None:
    seen = call(pool, "refusals", of="refusal_cases", moved="self", cases_of="parameter_server_cases")
    for method, came in seen.items():
        assert came.startswith("UnsupportedError: "), (method, came)
    seen = call(pool, "loop_of_ones_own", of="refusal_cases", cases_of="parameter_server_cases")
    assert seen["count"] == 3.0
    assert seen["traced"] == seen["replicas"] == len(seen["eager"]) == 1


def test_optimizers_that_their_first_step_builds_have_the_numbers_of_one_device(pool: WorkerPool) -> None:
    seen = call(pool, "apart", of="first_step_cases", cases_of="parameter_server_cases")
    assert {name: apart for name, apart in seen.items() if apart > 1e-5} == {}
