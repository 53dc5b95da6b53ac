"""Training over several workers, beside what the matrix compares: agreement, files, data, failure.

Every registered strategy that runs in several processes goes through what its own variables, optimizers or collectives
could change. What is decided above them is tried under two that share no collective; the matrix trains under all.
"""

import contextlib
import functools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tests.integration import case_pools
from tests.integration.agents import says
from tests.integration.case_pools import CASES, DEADLINE_SECONDS
from tests.integration.cases import refusal_fields
from tests.integration.forks import Forks
from tests.integration.light import python_path
from tfdist.cluster import ports, strategy_table
from tfdist.cluster.shares import Shares
from tfdist.testing.pool import WorkerPool, worker_environments
from tfdist.variables import COLLECTIVES, MESH

call = functools.partial(case_pools.call, of="multi_worker_cases")
TWO = ["multi-worker", "ring"]
# of a pipeline, whose workers have other parts of one model, test_training_pipeline.py has all
OTHERS = [
    name for name in strategy_table.names() if strategy_table.get(name).processes == "workers" and name != "pipeline"
]
STRATEGIES = TWO + [name for name in OTHERS if name not in TWO]
under_two = pytest.mark.parametrize("pool", TWO, indirect=True)
under_one = pytest.mark.parametrize("pool", TWO[:1], indirect=True)  # the matrix, or the tests of the ring, have others
# marks of `pool` have no other parameter: else pytest would not group the tests of a pool, and start it again and again
under_the_ring = pytest.mark.parametrize("pool", TWO[1:], indirect=True)
# what carries the workers' tensors, by what is asked for; each ends waits, and is ended, in another way
CARRIERS = [
    ("multi-worker", "auto", "NativeCollective"),
    ("multi-worker", "auto without a compiler", "TensorFlowCollective"),
    ("ring", "auto", "HorovodCollective"),
]


def start(forking: Forks, strategy: str, workers: int, collectives: str = "auto") -> WorkerPool:
    def environments() -> list[dict[str, str]]:
        free = ports.free_ports(workers)
        made = worker_environments(os.environ, strategy=strategy, ports=free, replicas_per_worker=1)
        asked, _, lacks = collectives.partition(" without ")
        more = {"PYTHONPATH": python_path(CASES), COLLECTIVES.name: asked}
        more[MESH.name] = f"batch={workers},model=1"  # of model-parallel, where each has its own examples
        made[-1] |= {"CXX": "/no/compiler", "TFDIST_CACHE_DIR": os.devnull} if lacks else {}
        return [environment | more for environment in made]

    pool = WorkerPool(environments, start=forking.worker)
    pool.call("os:getpid", {}, timeout_seconds=DEADLINE_SECONDS)  # starts the processes
    return pool


@pytest.fixture(scope="module", params=STRATEGIES)
def pool(request: pytest.FixtureRequest, forking: Forks) -> Iterator[WorkerPool]:
    with start(forking, request.param, 2) as workers:
        yield workers


# what is decided, and cut, does not depend on the collectives
INPUTS = {"arrays": 1, "reading": 1, "dataset": 2}  # the steps of an execution
further = functools.partial(pytest.param, marks=pytest.mark.release)


@under_one
@pytest.mark.parametrize("kind", ["arrays", "reading", further("dataset")])
def test_shares_follow_the_speed_of_workers_with_the_numbers_of_one_device(pool: WorkerPool, kind: str) -> None:
    require_that_shares_follow(pool, kind)


@under_the_ring
@pytest.mark.parametrize("kind", ["dataset", further("arrays"), further("reading")])
def test_shares_follow_the_speed_of_a_ring_with_the_numbers_of_one_device(pool: WorkerPool, kind: str) -> None:
    require_that_shares_follow(pool, kind)


def require_that_shares_follow(pool: WorkerPool, kind: str) -> None:
    seen = call(pool, "shares_follow", of="balance_cases", kind=kind, at_once=INPUTS[kind])
    assert seen[0]["changes"] == seen[1]["changes"]
    assert 1 <= len(seen[0]["changes"]) <= 5
    first, last = (np.array(rows) for _, rows in (seen[0]["changes"][0], seen[0]["changes"][-1]))
    assert first[0] > first[1], "the rows of the slow worker become fewer"
    assert abs(last[0] / last.sum() - 0.8) <= 1 / 16, "four rows of five, to within one example"
    for one in seen:
        assert one["gap"] < 1e-5, "every example counts once in every epoch"
        assert one["traces"] <= 4, "for the build, the trial and the step, and none for the sizes"
        assert one["restored"] == list(Shares(tuple(last.tolist())).weights)


@under_one
def test_shares_stay_where_fewer_rows_would_not_help(pool: WorkerPool) -> None:
    seen = call(pool, "shares_stay", of="balance_cases")[0]
    assert [(len(told), *rest) for told, *rest in seen] == [(1, [], [1, 1])] * 3
    for (told, *_), reason in zip(seen, ("worker 1", "synchronized=True", "1 row,"), strict=True):
        assert reason in told[0]


def test_numbers_are_looked_at_as_on_one_device(pool: WorkerPool) -> None:
    assert call(pool, "numbers") == [{}, {}]


def test_gradients_leave_as_the_backward_pass_makes_them(pool: WorkerPool, request: pytest.FixtureRequest) -> None:
    strategy = request.node.callspec.params["pool"]
    engines = ["tensorflow", "native"] if strategy == "multi-worker" else [None]
    for engine in engines:
        chief, other = call(pool, "reductions_of_a_step", of="bucket_cases", engine=engine)
        assert chief == other
        # what is used last leaves first, whatever was created first
        assert chief["leave"] == [["last"], ["second"], ["first"]]
        if engine == "tensorflow":  # whose reductions wait for those that were traced before them
            assert chief["needs"] == [["last"], ["last", "second"], ["first", "last", "second"]]
        else:
            assert chief["needs"] == chief["leave"]
            assert chief["waits"] == [[], [], [], []]
            assert chief["others_need"] == [[]]  # metrics wait for no gradient


@under_two
def test_measured_buckets_are_alike(pool: WorkerPool) -> None:
    chief, other = call(pool, "measured_buckets", of="bucket_cases")
    assert chief == other
    assert chief["mebibytes"] in (1, 2, 4, 8, 16, 32, 64)
    assert refusal_fields.are(chief["refused"], "ConfigError", "bucket_bytes", "large")


@under_two
def test_steps_that_reduce_different_gradients_are_named(pool: WorkerPool) -> None:
    for said in call(pool, "models_that_differ", of="bucket_cases"):
        assert "different functions" in said
        assert "gradient of" in said


@under_two
def test_an_optimizer_that_adds_up_no_gradients_is_named(pool: WorkerPool) -> None:
    chief, other = call(pool, "loops_of_ones_own")
    assert [len(said) for said in chief["alone"]] == [1, 1], "once for each optimizer"
    assert all("'alone" in said[0] for said in chief["alone"])
    assert other["alone"] == other["together"] == chief["together"] == [[], []]
    for seen in (chief, other):
        for report, name in zip(seen["refused"], ("outside:0", "unbuilt"), strict=True):
            assert refusal_fields.are(report, "ConfigError", name)


# each makes variables in its own way; what is compared of them is decided above
def test_a_variable_that_differs_is_named_on_every_worker(pool: WorkerPool) -> None:
    require_that_a_variable_is_named(pool, "size")


@under_one
@pytest.mark.parametrize("kind", ["transposed", "dtype"])
def test_a_variable_with_as_many_elements_that_differs_is_named_on_every_worker(pool: WorkerPool, kind: str) -> None:
    require_that_a_variable_is_named(pool, kind)


def require_that_a_variable_is_named(pool: WorkerPool, kind: str) -> None:
    for differs, alike in call(pool, "variables_that_differ", kind=kind):
        assert "/kernel" in differs
        assert "same model" in differs
        assert alike == "trained"


@under_one
def test_reducers_give_the_gradients_of_one_device(pool: WorkerPool) -> None:
    assert call(pool, "collectives", of="reducer_cases") == [[], []]


def test_all_begin_with_the_chiefs_weights(pool: WorkerPool) -> None:
    chief, other = call(pool, "seeds_that_differ")
    assert chief == other
    assert chief["began"] != chief["ended"]
    assert chief["small"] == [[0.0, 100.0]] * len(chief["small"])


@under_two
@pytest.mark.parametrize(
    ("rows", "shift", "facts"),
    [
        ([40, 40], [0.0, 0.5], ["worker 1 has a batch", "fingerprint"]),
        ([40, 24], [0.0, 0.0], ["worker 0 has 5 batches", "worker 1 has 3 batches"]),
        ([40, 38], [0.0, 0.0], ["step 4 ", "worker 0 has a batch", "of 8 examples", "worker 1 has a batch", "of 6 "]),
    ],
)
def test_data_that_differs_is_named(pool: WorkerPool, rows: list[int], shift: list[float], facts: list[str]) -> None:
    for said in call(pool, "data_that_differs", rows=rows, shift=shift):
        assert says(said, *facts), said


@under_one
def test_generators_of_different_lengths_are_named_when_the_shorter_ends(pool: WorkerPool) -> None:
    for said in call(pool, "generators_that_differ"):
        assert says(said, "step 3 ", "worker 0 has a further", "worker 1 has no further"), said


@under_two
def test_workers_with_data_of_their_own_end_together_and_count_every_example_once(pool: WorkerPool) -> None:
    each = [[40, 24], [7, 19], [6, 6]]
    chief, other = call(pool, "data_of_their_own", each=each)
    assert chief == other
    assert chief["seen"] == [[rows[0] + 2.0 * rows[1]] * 2 for rows in each]


@under_one
def test_graphs_of_several_workers_take_their_batches_too(pool: WorkerPool) -> None:
    for seen in call(pool, "both_ways", of="lone_replica_cases"):
        assert seen.pop("made ahead")["arrays"] == seen["graph"]["arrays"], "what is made ahead takes no step"
        assert [found.pop("in_a_graph") for found in seen["graph"].values()] == [True, False], "of a known number alone"
        assert not any(found.pop("in_a_graph") for found in seen["python"].values())
        assert seen["graph"] == seen["python"]


@under_one
def test_an_input_that_fails_ends_no_collectives(pool: WorkerPool) -> None:
    for seen in call(pool, "error_of_input", of="lone_replica_cases"):
        assert seen == {"raised": "InvalidArgumentError", "in_a_graph": True, "steps": 10}


# of the others whose processes have parts, test_sharded.py and test_training_model_parallel.py save and load
@under_two
def test_the_chief_alone_writes(pool: WorkerPool, tmp_path: Path) -> None:
    assert call(pool, "callbacks_that_write", folder=str(tmp_path)) == [
        {"same": True, "orbax": 3},
        {"same": True, "orbax": 0},
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "board",
        "last.keras",
        "log.csv",
        "part.weights.h5",
        "whole.keras",
    ]
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 4
    written = (tmp_path / "board" / "train").glob("events*.v2")  # events.out.tfevents.TIME.HOST.PID.NUMBER.v2
    assert len({path.name.split(".")[-3] for path in written}) == 1
    keras.models.load_model(tmp_path / "whole.keras").load_weights(tmp_path / "part.weights.h5")


def test_the_chief_may_save_alone(pool: WorkerPool, tmp_path: Path) -> None:
    chief, _ = call(pool, "chief_saves_alone", folder=str(tmp_path))
    assert chief == ["chief.keras"]


def test_a_worker_that_saves_to_a_path_of_its_own_has_its_file_at_once(pool: WorkerPool, tmp_path: Path) -> None:
    assert call(pool, "saves_to_paths_of_their_own", folder=str(tmp_path)) == [True, True]


def test_workers_wait_for_a_file_that_the_chief_writes_slowly(pool: WorkerPool, tmp_path: Path) -> None:
    assert call(pool, "waits_for_a_slow_chief", folder=str(tmp_path)) == [[True], [False]]


def test_a_model_that_is_saved_in_an_accumulation_says_what_it_has_not(pool: WorkerPool, tmp_path: Path) -> None:
    chief, other = call(pool, "saved_in_an_accumulation", folder=str(tmp_path))
    for answer in (chief, other):
        halfway, loaded, *done = answer["sums"]
        assert any(halfway)
        assert loaded == pytest.approx(halfway)
        assert done == [[0.0] * 4] * 2
    [said] = chief["said"]
    assert "the accumulated gradients" in said
    assert "BackupAndRestore" in said
    assert not other["said"]


@under_two
def test_one_worker_stops_all(pool: WorkerPool) -> None:
    chief, other = call(pool, "one_worker_stops", at_batch=2)
    assert chief == other
    assert chief["steps"] == 3


@under_one
def test_a_callback_that_can_only_watch_costs_no_agreement(pool: WorkerPool) -> None:
    chief, other = call(pool, "agreements")
    assert chief == other
    assert chief["watch"] == chief["nothing"]
    assert chief["ask"] == chief["nothing"] + 5, "one after each batch"


@under_one
def test_the_chiefs_learning_rate_holds(pool: WorkerPool) -> None:
    chief, other = call(pool, "chief_sets_the_rate")
    assert chief == other
    assert chief["rate"] == pytest.approx(0.01)


# test_run_recovers.py kills workers of the other strategies, which resume from backups
@pytest.mark.parametrize("pool", ["multi-worker", "model-parallel"], indirect=True)
def test_a_backup_restores_all_workers(pool: WorkerPool, tmp_path: Path) -> None:
    chief, other = call(pool, "backup_and_restore", folder=str(tmp_path / "backup"))
    assert chief == other
    assert (chief["epochs"], chief["steps"]) == ([3, 4], 25)
    assert not (tmp_path / "backup").exists()


@under_two
def test_every_worker_predicts_all_rows_in_order(pool: WorkerPool) -> None:
    for seen in call(pool, "predictions", counts=[33, 7, 1]):
        for rows, found in seen.items():
            assert found["shape"] == [int(rows), 1]
            assert found["error"] < 1e-5, rows


@under_two
def test_predictions_of_other_types_are_gathered_or_refused(pool: WorkerPool) -> None:
    for seen in call(pool, "predictions_of_kinds"):
        assert seen["bool"] is True
        assert seen["uint8"] is True
        assert seen["complex128"] is True
        assert seen["string"] is True
        assert refusal_fields.are(seen["ragged"], "UnsupportedError")


def test_a_worker_that_waits_in_vain_is_told(forking: Forks) -> None:
    """Over each carrier, all at the same time, because the waits take longer than the work."""
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(len(CARRIERS)) as threads:
        pools = []
        for strategy, asked, carrier in CARRIERS:
            pools.append(stack.enter_context(start(forking, strategy, 2, asked)))
            assert call(pools[-1], "carrier") == [carrier] * 2
        answers = list(threads.map(lambda pool: call(pool, "waits_for_one_who_left", seconds=20.0), pools))
    for waiting, left in answers:
        assert left == "left"
        assert "waited 20 s in" in waiting


@under_two  # what the others' collectives are called is what the first one's are
def test_several_strategies_in_a_process(pool: WorkerPool) -> None:
    assert call(pool, "several_strategies") == [[[True] * 4, True]] * 2


KILLED_AT_STEP_3 = """
import os, signal
import keras, numpy as np, tfdist

strategy = tfdist.strategies.from_environment()
rank = tfdist.cluster.from_environment().worker_index

class Kill(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print("step", batch, flush=True)
        if rank == 1 and batch == 3:
            os.kill(os.getpid(), signal.SIGKILL)

with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(np.zeros((80, 4)), np.zeros((80, 1)), batch_size=8, epochs=1000, verbose=0, callbacks=[Kill()])
"""


@pytest.mark.parametrize(
    ("strategy", "collectives"), [("multi-worker", "native"), ("multi-worker", "tensorflow"), ("ring", "auto")]
)
def test_a_killed_worker_ends_the_job_and_is_named(
    strategy: str, collectives: str, forking: Forks, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(KILLED_AT_STEP_3)
    command = ["tfdist", "run", "--strategy", strategy, "-n", "3", "--grace-seconds", "2", str(script)]
    with forking.start(*command, cwd=tmp_path, **{COLLECTIVES.name: collectives}) as process:
        out, err = (written.decode() for written in process.communicate())
    assert process.returncode == 128 + 9, err[-2000:]
    assert "[worker 2] step 2" in out  # all agree after every batch, so nobody is a step behind
    assert "step 9" not in out  # nobody trained on alone
    assert "worker 1" in err
    assert "SIGKILL" in err


@pytest.fixture(scope="module")
def noise() -> dict[str, Any]:
    """Return the dictionary of one device's measurements, which the first test fills."""
    return {}


def test_the_gradient_noise_scale_is_that_of_one_device(pool: WorkerPool, noise: dict[str, Any]) -> None:
    if not noise:
        noise |= call(pool, "measured", of="noise_cases", strategy=None)[0]
    for found in call(pool, "measured", of="noise_cases"):
        assert found == pytest.approx(noise, rel=1e-5)


@under_two
def test_keras_that_is_not_recognised_is_refused(pool: WorkerPool) -> None:
    refusal = functools.partial(call, pool, of="refusal_cases", cases_of="multi_worker_cases")
    for seen in refusal("refusals", moved="self"):
        for method, came in seen.items():
            assert came.startswith("UnsupportedError: "), (method, came)
    assert refusal("loop_of_ones_own") == [{"traced": 2.0, "eager": [2.0], "replicas": 2, "count": 3.0}] * 2


def test_optimizers_that_their_first_step_builds_have_the_numbers_of_one_device(pool: WorkerPool) -> None:
    for seen in call(pool, "apart", of="first_step_cases", cases_of="multi_worker_cases"):
        assert {name: apart for name, apart in seen.items() if apart > 1e-5} == {}


@under_one
@pytest.mark.parametrize("case", ["contrast", further("reduced")])
def test_what_a_step_takes_from_all_workers_is_that_of_one_device(pool: WorkerPool, case: str) -> None:
    require_the_step_of_one_device(pool, case)


@under_one
def test_a_loss_that_is_counted_by_a_metric_of_the_users_is_that_of_one_device(pool: WorkerPool) -> None:
    for seen in call(pool, "losses_counted_apart"):
        assert seen["said"] == []
        for found, one in zip(seen["found"], seen["one"], strict=True):
            assert found == pytest.approx(one, abs=1e-5)


@under_the_ring
@pytest.mark.parametrize("case", ["reduced", further("contrast")])
def test_what_a_step_takes_from_a_ring_is_that_of_one_device(pool: WorkerPool, case: str) -> None:
    require_the_step_of_one_device(pool, case)


def require_the_step_of_one_device(pool: WorkerPool, case: str) -> None:
    for seen in call(pool, case, of="own_gradient_cases", names=["mean", "clipped"]):
        (run,) = seen.values()
        assert run["apart"] < 1e-5
        assert run["said"] == []
