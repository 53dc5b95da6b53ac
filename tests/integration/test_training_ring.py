"""The ring strategy beside what the matrix and the tests of all multi-worker strategies compare."""

import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration import case_pools
from tests.integration.case_pools import DEADLINE_SECONDS, start
from tests.integration.cases import refusal_fields
from tests.integration.forks import Forks
from tests.integration.light import python_path
from tests.integration.resting import RestingPool
from tfdist.cluster import ports
from tfdist.jobs.connecting.tcp_joining import own_addresses
from tfdist.jobs.placement.local_placement import LOOPBACK
from tfdist.testing.pool import WorkerPool, worker_environments

call = functools.partial(case_pools.call, of="ring_cases")


@pytest.fixture(scope="module")
def pools(forking: Forks) -> Iterator[dict[tuple[int, int], WorkerPool]]:
    """Yield pools by their numbers of workers, and of replicas in each."""
    with ExitStack() as stack:
        yield {
            (workers, replicas): stack.enter_context(
                start(forking, "ring", workers, replicas=replicas, kind=RestingPool)
            )
            for workers, replicas in ((3, 1), (2, 2))
        }


@pytest.fixture(params=[(3, 1), (2, 2)], ids=["3x1", "2x2"])
def pool(request: pytest.FixtureRequest, pools: dict[tuple[int, int], WorkerPool]) -> WorkerPool:
    return pools[request.param]


@pytest.fixture
def three(pools: dict[tuple[int, int], WorkerPool]) -> WorkerPool:
    return pools[3, 1]


def test_processes_have_the_numbers_that_names_of_their_files_are_made_of(three: WorkerPool) -> None:
    assert call(three, "task_id") == [0, 1, 2]


@pytest.mark.parametrize("traced", [True, False], ids=["traced", "eager"])
def test_sums_are_exact_in_every_dtype(pool: WorkerPool, traced: bool) -> None:
    for exact in call(pool, "sums_of_dtypes", traced=traced):
        assert [name for name, right in exact.items() if not right] == []


@pytest.mark.parametrize(
    ("workers", "replicas", "options"),
    # Several replicas in a process have the same effect for every dtype; multi-worker tests all dtypes.
    [
        (3, 1, {"among": [("mean", None), ("mean", "float16"), ("adasum", "bfloat16")]}),
        (2, 2, {"among": [("mean", "bfloat16"), ("adasum", None)], "briefly": ["adasum"]}),
    ],
)
def test_reducers_give_the_gradients_of_one_device(
    pools: dict[tuple[int, int], WorkerPool], workers: int, replicas: int, options: dict[str, Any]
) -> None:
    assert call(pools[workers, replicas], "collectives", of="reducer_cases", **options) == [[]] * workers


def test_extremes_survive(pool: WorkerPool) -> None:
    for seen in call(pool, "extremes"):
        assert seen.pop("int mean") == [7]
        assert [name for name, right in seen.items() if not right] == []


@pytest.mark.parametrize("traced", [True, False], ids=["traced", "eager"])
@pytest.mark.parametrize("axis", [0, 1])
def test_gathering_keeps_the_order_of_replicas(three: WorkerPool, axis: int, traced: bool) -> None:
    shape = [3, 3]
    shape[axis] = 2 + 3 + 4
    for seen in call(three, "gathered", axis=axis, traced=traced):
        assert seen == [shape, [0.0] * 2 + [1.0] * 3 + [2.0] * 4]


def test_reductions_outside_of_replicas(pool: WorkerPool) -> None:
    workers = call(pool, "reduced")
    replicas = len(workers[0]["eager"][3]) // 2
    numbers = range(replicas)
    wanted = [
        [float(sum(numbers)), float(sum(numbers) + replicas)],
        [sum(numbers) / replicas, sum(numbers) / replicas + 1],
        float(2 * sum(numbers) + replicas),
        [float(n + i) for n in numbers for i in (0, 1)],
    ]
    for seen in workers:
        assert seen == {"eager": wanted, "traced": wanted}


@pytest.mark.parametrize(
    ("vocabulary", "rows", "gathers"),
    [
        (50, [3, 0, 5], None),  # a small table is summed whole
        (100_000, [3, 0, 5], True),
        (100_000, [90_000, 80_000, 70_000], False),  # more rows than the table has: every row once
    ],
)
def test_slices_are_gathered_or_summed_whichever_is_less(
    three: WorkerPool, vocabulary: int, rows: list[int], gathers: bool | None
) -> None:
    for seen in call(three, "sparse", vocabulary=vocabulary, rows=rows):
        assert seen["right"]
        apart, free = seen["rows"]
        assert apart == sum(rows)
        assert free == {None: -1, True: sum(rows), False: vocabulary}[gathers]


def test_reductions_in_conditions(pool: WorkerPool) -> None:
    workers = call(pool, "in_a_condition", then_in_a_loop=False)
    replicas = {3: 3, 2: 4}[len(workers)]
    assert workers == [[5.0 * replicas, -1.0, 5.0 * replicas]] * len(workers)


def test_reductions_in_a_loop(three: WorkerPool) -> None:
    assert call(three, "in_a_condition", then_in_a_loop=True) == [[18.0, 2.0, 18.0]] * 3


def test_gradients_pass_through_a_sum(three: WorkerPool) -> None:
    # total = (6, 12) on each of three replicas; d(3 losses)/dx = 3 * 2 * total
    assert call(three, "gradient_through_a_sum") == [[36.0, 72.0]] * 3


def test_constants_are_not_reduced_once_for_all(three: WorkerPool) -> None:
    assert call(three, "constants_are_reduced_every_time") == [[3.0] * 3] * 3


def test_three_ranks_add_in_the_same_order_every_time(three: WorkerPool) -> None:
    assert call(three, "same_order_every_time", steps=20) == [True] * 3


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("shape", ["a/kernel float32 (3, 3); worker 1 was in", "a/kernel float32 (3, 5). Every worker"]),
        ("layer", ["do different things", "worker 2 was in the initial value of sequential"]),
        (
            "name",
            ["reduction 1 worker 0 has [sum float32 (3,) gradient of sequential/b/bias]", "worker 2 has", "z/bias"],
        ),
        ("frozen", ["reduction 3 worker 0 has [sum float32 (3,) gradient of sequential/a/bias]", "worker 2 has [sum"]),
        ("optimizer", ["do different things", "worker 2 was in the initial value of adam"]),
    ],
)
def test_a_model_that_differs_is_told_before_it_trains(three: WorkerPool, kind: str, says: list[str]) -> None:
    for said in call(three, "model_that_differs", kind=kind):
        for part in says:
            assert part in said
    assert call(three, "still_works") == [3.0] * 3


def test_an_optimizer_wrapped_by_horovod_is_refused(three: WorkerPool) -> None:
    for said in call(three, "horovods_optimizer"):
        assert "averages no gradients" in said["outside"][3]
        assert refusal_fields.are(said["inside"], "UnsupportedError", "SGD", None)


def test_groups_train_by_themselves_and_together(forking: Forks) -> None:
    host = next(iter(own_addresses(["192.0.2.1"])), LOOPBACK)
    with start(forking, "ring", 3, kind=RestingPool, host=host) as workers:
        for reports in call(workers, "refused_groups", of="ring_group_cases"):
            overlap, missing, order, outside, *types = reports
            assert refusal_fields.are(overlap, "ConfigError", "groups", "[[0, 1], [1, 2]]")
            assert refusal_fields.are(missing, "ConfigError", "groups", "[[0], [2]]", "worker 1 ")
            assert refusal_fields.are(order, "ConfigError", "groups", "[[2, 0], [1]]")
            assert refusal_fields.are(outside, "ConfigError", "a worker in groups", "3")
            assert all(refusal_fields.are(report, "ConfigTypeError", "groups") for report in types)
        zero, one, two = call(workers, "groups", of="ring_group_cases")
        assert [worker["replicas"] for worker in (zero, one, two)] == [2, 1, 2]
        assert [worker["chief"] for worker in (zero, one, two)] == [True, True, False]
        assert host == LOOPBACK or all(LOOPBACK not in worker["addresses"] for worker in (zero, one, two))
        assert zero["apart"] == two["apart"]
        assert zero["apart"] != one["apart"]
        assert zero["all"] == one["all"] == two["all"]
        for report in call(workers, "other_groups", of="ring_group_cases"):
            assert refusal_fields.are(report, "ConfigError", "groups", "[[0], [1, 2]]")


LAUNCHED = """
import keras, numpy as np, tensorflow as tf, tfdist

strategy = tfdist.strategies.from_environment()
cluster = tfdist.cluster.from_environment()
x = np.random.RandomState(0).normal(size=(10, 3)).astype("float32")
with strategy.scope():
    keras.utils.set_random_seed(cluster.worker_index)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
keras.utils.set_random_seed(0)
model.fit(x, x[:, :1], batch_size=5, verbose=0)
total = float(tf.add_n([tf.reduce_sum(w) for w in model.weights]))
print(type(strategy).__name__, cluster.source, strategy.num_replicas_in_sync, f"{total:.6f}", flush=True)
"""


HOROVODRUN = ["horovodrun", "-np", "2", "--gloo"]
MPIRUN = [
    "mpirun",
    "--allow-run-as-root",
    "--oversubscribe",
    "-np",
    "2",
    "-x",
    "TFDIST_STRATEGY",
    "-x",
    "TFDIST_COORDINATOR",
]


# what horovodrun tells, tests/unit/test_cluster_environment.py reads; mpirun tells less
@pytest.mark.parametrize(
    ("launcher", "source"),
    [pytest.param(HOROVODRUN, "horovodrun", marks=pytest.mark.release), (MPIRUN, "Open MPI")],
)
def test_other_launchers_start_it(launcher: list[str], source: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LAUNCHED)
    free = ports.free_ports(1)
    (environment, *_) = worker_environments(os.environ, strategy=None, ports=free, replicas_per_worker=1)
    environment = {name: value for name, value in environment.items() if not name.startswith("TFDIST_")}
    environment["PYTHONPATH"] = python_path()
    if source == "Open MPI":  # which tells ranks and no addresses
        environment |= {"TFDIST_STRATEGY": "ring", "TFDIST_COORDINATOR": f"127.0.0.1:{free[0]}"}
    program = Path(sys.executable).with_name(launcher[0])
    process = subprocess.Popen(
        [str(program), *launcher[1:], sys.executable, str(script)],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        output, errors = process.communicate(timeout=DEADLINE_SECONDS)
    finally:
        if process.poll() is None:  # it ends its ranks when it is asked to
            process.terminate()
            process.wait(timeout=60)
    assert process.returncode == 0, errors[-3000:]
    lines = re.findall(rf"RingStrategy {source} 2 (-?\d+\.\d+)", output)
    assert len(lines) == 2
    assert lines[0] == lines[1]


# In workers: test_training_multi_worker.py. On replicas: test_training_mirrored.py and the row of the matrix.
@pytest.mark.release
def test_optimizers_that_their_first_step_builds_have_the_numbers_of_one_device(
    pools: dict[tuple[int, int], WorkerPool],
) -> None:
    for seen in call(pools[2, 2], "apart", of="first_step_cases", cases_of="ring_cases"):
        assert {name: apart for name, apart in seen.items() if apart > 1e-5} == {}
