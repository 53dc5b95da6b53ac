"""Sharded data parallelism: the numbers of one device, from a part of the slots in each process.

Two workers shard slots, three shard accumulated gradients too; `test_sharded_weights.py` has those that shard weights.
What neither stage, number nor collectives can change is tried in one of the groups.
"""

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

TWO, THREE = (2, 1, "native"), (3, 2, "native")
OVER_HOROVOD = (2, 1, "horovod")
# Every optimizer is trained in one of the lists of both files; what is updated element by element, and what whole, by
# one worker, at each stage. Where weights lie in parts, which is traced longest, other tests train several optimizers
# and a scaled loss.
OF_TWO = [
    ("momentum, clipvalue", "table"),
    ("adam, scaled average", "plain"),
    ("lars", "plain"),
    ("schedule free", "plain"),
    ("several", "plain"),
    ("distributed", "plain"),
]
# Accumulated in parts and whole; clipped by all. Of one that accumulates in parts, without a table, a model is saved.
OF_THREE = [
    ("adam, accumulating", "plain"),
    ("distributed, accumulating", "table"),
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


@within(TWO, THREE, OVER_HOROVOD)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_optimizers_have_the_numbers_of_one_device(pool: WorkerPool, group: Group) -> None:
    require_the_numbers_of_one_device(pool, {TWO: OF_TWO, THREE: OF_THREE}.get(group) or OVER_OTHERS[group[2]])


@within(TWO, THREE)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_each_worker_has_its_part_of_the_slots(pool: WorkerPool, group: Group) -> None:
    workers = group[0]
    answers = call(pool, "bytes_of_slots")
    for name in ("adam, clipnorm", "lamb"):
        held, every = [answer[name][0] for answer in answers], answers[0][name][1]
        assert sum(held) == every
        # variables are divided to an element, or dealt out whole: there are six large ones
        assert max(held) == pytest.approx(every / workers, rel=0.002 if name != "lamb" else 0.02)


@within(TWO, THREE)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_a_step_sends_as_many_bytes_as_an_all_reduce(pool: WorkerPool) -> None:
    for found in call(pool, "bytes_of_a_step"):
        assert set(found["sent"]) == {"reduce_scatter", "all_gather"}
        assert sum(found["sent"].values()) == pytest.approx(found["all_reduce"], rel=0.02)


@within(TWO)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_a_process_takes_the_memory_of_the_formula(pool: WorkerPool) -> None:
    require_the_memory_of_the_formula(pool, layers=28)


@within(TWO)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_dtypes_are_kept(pool: WorkerPool) -> None:
    for found in call(pool, "dtypes"):
        assert found.pop("float64") < 1e-12
        assert found.pop("mixed_bfloat16") < 0.05
        assert max(found.values()) < 0.05, found  # of 8 or 11 bits


@within(THREE)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_a_saved_model_is_one_devices(pool: WorkerPool, tmp_path: Path) -> None:
    require_that_a_saved_model_is_one_devices(pool, tmp_path, ["distributed, accumulating", "adafactor"])


@within(TWO)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_a_chief_that_saves_alone_is_told_to_save_on_all(pool: WorkerPool, tmp_path: Path) -> None:
    said = call(pool, "chief_saves_alone", folder=str(tmp_path))[0]
    assert "worker 1 has not come" in said
    assert "model.save() on every worker" in said


@within(THREE)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_a_gradient_that_is_bad_on_one_worker_is_applied_on_none(pool: WorkerPool) -> None:
    for found in call(pool, "a_bad_gradient"):
        for name in ("keras", "tfdist"):
            apart, skipped = found[name]
            assert skipped == 1, name
            assert apart < 1e-5, name


@within(TWO, THREE)
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_what_cannot_be_is_refused(pool: WorkerPool, group: Group) -> None:
    for found in call(pool, "refused", among=None if group == THREE else ["compression", "adasum"]):
        if group == TWO:
            assert found == {}  # stage 1 takes both
            continue
        for name, expected in {
            "apply": ("UnsupportedError", "OwnApply", "apply"),
            "pairs": ("UnsupportedError", "OwnPairs", "apply_gradients"),
            "scale": ("UnsupportedError", "OwnScale", "apply"),
            "averages": ("UnsupportedError", "OwnAverages", "finalize_variable_values"),
            "number": ("UnsupportedError", "Counts", "count"),
            "vector": ("UnsupportedError", "Norms", "norms"),
            "generator": ("UnsupportedError", "Noisy", "generator"),
            "no stage": ("ConfigError", "shard_optimizer", "0"),
            "loop": ("UnsupportedError", ..., "variable"),
            "checkpoint": ("UnsupportedError", "checked"),
            "compression": ("UnsupportedError", "accumulate_steps", "compression"),
            "adasum": ("UnsupportedError", "accumulate_steps", 'reduction="adasum"'),
        }.items():
            assert refusal_fields.are(found[name], *expected), found[name]


# at stage 2 slots lie in the same parts, beside accumulated gradients
@pytest.mark.parametrize(
    ("stage", "name"), [pytest.param(1, "adam, accumulating", marks=pytest.mark.release), (2, "accumulating")]
)
@pytest.mark.timeout(2 * DEADLINE_SECONDS)
def test_resuming_is_never_to_have_stopped_and_another_number_of_workers_goes_on(
    forking: Forks, tmp_path: Path, stage: int, name: str
) -> None:
    require_that_training_goes_on(forking, tmp_path, stage=stage, names=[name])
