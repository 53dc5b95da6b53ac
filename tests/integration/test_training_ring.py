"""The ring strategy beside what the matrix and the tests of all multi-worker strategies compare."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tfdist.cluster import ports
from tfdist.testing.environment import worker_environments
from tfdist.testing.pool import WorkerPool

DEADLINE_SECONDS = 150
CASES = Path(__file__).parent / "cases"


def start(workers: int, replicas: int = 1) -> WorkerPool:
    def environments() -> list[dict[str, str]]:
        free = ports.free_ports(workers)
        made = worker_environments(os.environ, strategy="ring", ports=free, replicas_per_worker=replicas)
        return [environment | {"PYTHONPATH": str(CASES)} for environment in made]

    pool = WorkerPool(environments)
    pool.call("os:getpid", {}, timeout_seconds=DEADLINE_SECONDS)  # starts the processes
    return pool


def call(pool: WorkerPool, function: str, **arguments: Any) -> list[Any]:
    answers = pool.call(f"ring_cases:{function}", arguments, timeout_seconds=DEADLINE_SECONDS)
    for reply in sorted(answers, key=lambda reply: reply.seconds):  # the first failure is the cause
        assert reply.status == "returned", f"worker {reply.worker} {reply.status}: {reply.message}\n{reply.detail}"
    return [reply.value for reply in answers]


@pytest.fixture(scope="module", params=[(3, 1), (2, 2)], ids=["3x1", "2x2"])
def pool(request: pytest.FixtureRequest) -> Iterator[WorkerPool]:
    with start(*request.param) as workers:
        yield workers


@pytest.fixture(scope="module")
def three() -> Iterator[WorkerPool]:
    with start(3) as workers:
        yield workers


@pytest.mark.parametrize("traced", [True, False], ids=["traced", "eager"])
def test_sums_are_exact_in_every_dtype(pool: WorkerPool, traced: bool) -> None:
    for exact in call(pool, "sums_of_dtypes", traced=traced):
        assert [name for name, right in exact.items() if not right] == []


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


def test_reductions_in_conditions_and_loops(pool: WorkerPool) -> None:
    workers = call(pool, "in_a_condition_and_a_loop")
    replicas = {3: 3, 2: 4}[len(workers)]
    assert workers == [[5.0 * replicas + 3, 2.0, 5.0 * replicas + 3]] * len(workers)


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
        ("shape", ["worker 0 was in the initial value of a/kernel float32 (3, 3)", "worker 2 was in the initial"]),
        ("layer", ["do different things", "worker 2 was in the initial value of dense"]),
        ("name", ["reduction 3 worker 0 has [sum float32 (3,) gradient of b/bias]", "worker 2 has", "z/bias"]),
        ("frozen", ["worker 0 has [", "worker 2 has [", "gradient of b/"]),
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
        assert "averages no gradients under Keras 3" in said["outside"]
        assert "Pass the plain Keras optimizer" in said["inside"]


def test_groups_train_by_themselves() -> None:
    with start(3) as workers:
        zero, one, two = call(workers, "groups")
        assert [worker["replicas"] for worker in (zero, one, two)] == [2, 1, 2]
        assert [worker["chief"] for worker in (zero, one, two)] == [True, True, False]
        assert zero["weights"] == two["weights"]
        assert zero["weights"] != one["weights"]
