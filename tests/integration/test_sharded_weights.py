"""Sharded data parallelism whose workers have a part of the weights too; `test_sharded.py` has the other stages."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cases import refusal_fields
from tests.integration.forks import Forks
from tests.integration.sharded_groups import (
    DEADLINE_SECONDS,
    OVER_OTHERS,
    Group,
    call,
    require_that_a_saved_model_is_one_devices,
    require_that_training_goes_on,
    require_the_memory_of_the_formula,
    require_the_numbers_of_one_device,
    start,
    within,
)
from tfdist.testing.pool import WorkerPool

WEIGHTS = (2, 3, "native")
OVER_TENSORFLOW = (2, 3, "tensorflow")
# by elements, and whole by one worker for which all gather; others in the group over TensorFlow's collectives
OF_WEIGHTS = [
    ("adam, accumulating", "table"),
    ("adamw, average", "plain"),
    ("lamb, average", "plain"),
    ("unknown", "plain"),
    ("distributed, accumulating whole", "plain"),
]


@pytest.fixture(scope="module")
def pool(request: pytest.FixtureRequest, forking: Forks) -> Iterator[WorkerPool]:
    with start(forking, *request.param) as workers:
        yield workers


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Group:
    found: Group = request.node.callspec.params["pool"]
    return found


@within(WEIGHTS, OVER_TENSORFLOW)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_optimizers_have_the_numbers_of_one_device(pool: WorkerPool, group: Group) -> None:
    require_the_numbers_of_one_device(pool, {WEIGHTS: OF_WEIGHTS}.get(group) or OVER_OTHERS[group[2]])


@within(WEIGHTS)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_each_worker_has_its_part_of_the_weights(pool: WorkerPool) -> None:
    answers = call(pool, "elements_of_weights")
    for mine, whole in zip(zip(*[held for held, _ in answers], strict=True), answers[0][1], strict=True):
        assert sum(mine) == whole
        assert max(mine) - min(mine) <= 1


@within(WEIGHTS)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_weights_are_gathered_for_each_pass(pool: WorkerPool) -> None:
    # before the models with larger weights: what a strategy lets arrive ahead follows from the largest that it has seen
    for found in call(pool, "bytes_of_a_step"):
        sent, half = found["sent"], found["all_reduce"] / 2
        assert set(sent) == {"reduce_scatter", "all_gather"}
        assert sent["reduce_scatter"] == pytest.approx(half, rel=0.02)
        # of six layers the first one's weights are not used in the backward pass, and the last one's are still there
        assert sent["all_gather"] == pytest.approx(half * (1 + 4 / 6), rel=0.02)


@within(WEIGHTS)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_a_process_takes_the_memory_of_the_formula(pool: WorkerPool) -> None:
    require_the_memory_of_the_formula(pool, layers=28)  # so that a window of gathered layers is a small part


@within(WEIGHTS)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_a_saved_model_is_one_devices(pool: WorkerPool, tmp_path: Path) -> None:
    require_that_a_saved_model_is_one_devices(pool, tmp_path, ["adam, average at the end", "several"])


@within(WEIGHTS)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_workers_may_save_to_paths_of_their_own(pool: WorkerPool, tmp_path: Path) -> None:
    assert all(call(pool, "saved_to_paths_of_their_own", folder=str(tmp_path)))


@within(WEIGHTS)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_a_model_that_runs_eagerly_has_the_numbers_of_one_device(pool: WorkerPool) -> None:
    assert max(call(pool, "eagerly")) < 1e-5


@within(WEIGHTS)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_weights_may_be_used_in_conditions_loops_and_functions(pool: WorkerPool) -> None:
    assert max(call(pool, "with_control_flow")) < 1e-5


@within(WEIGHTS)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_a_loop_that_updates_weights_is_refused(pool: WorkerPool) -> None:
    for found in call(pool, "refused", among=["loop of updates"]):
        (report,) = found.values()
        assert refusal_fields.are(report, "UnsupportedError", ..., ..., "loop")


@pytest.mark.timeout(2 * DEADLINE_SECONDS)
def test_resuming_is_never_to_have_stopped_and_another_number_of_workers_goes_on(
    forking: Forks, tmp_path: Path
) -> None:
    require_that_training_goes_on(forking, tmp_path, stage=3, names=["adam, accumulating", "adafactor"])
