"""A model in stages over processes: the numbers of one device, whatever the schedule and wherever it is cut."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration import case_pools
from tests.integration.cases import refusal_fields
from tests.integration.forks import Forks
from tfdist.planner import schedules
from tfdist.testing.pool import WorkerPool
from tfdist.tune.schedule_run import measured

call = functools.partial(case_pools.call, of="pipeline_cases")
# Where a partial batch is no news; and of a model that others evaluate and predict with on the same mesh.
EVEN: dict[str, Any] = {"rows": 24}
FIT: dict[str, Any] = {**EVEN, "evaluates": False}
start = functools.partial(case_pools.start, strategy="pipeline")
Equal = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of the results of one device."""
    return str(tmp_path_factory.mktemp("references"))


@pytest.fixture(scope="module")
def equal(references: str) -> Equal:
    """Return a check that a training has the numbers of one device, alike in every process."""

    def require(pool: WorkerPool, mesh: str, name: str, **options: Any) -> list[dict[str, Any]]:
        found = call(pool, "distances", mesh=mesh, name=name, references=references, **options)
        assert found[0]["far"] == {}
        assert len({one["digest"] for one in found}) == 1
        assert sum(one["counted"] for one in found) == found[0]["elements"]
        return found

    return require


@pytest.fixture(scope="module")
def two(forking: Forks) -> Iterator[WorkerPool]:
    with start(forking, workers=2) as workers:
        yield workers


@pytest.fixture(scope="module")
def four(forking: Forks) -> Iterator[WorkerPool]:
    with start(forking, workers=4) as workers:
        yield workers


@pytest.fixture(scope="module")
def alone(forking: Forks) -> Iterator[WorkerPool]:
    with start(forking, workers=1, LOGICAL_CPUS="2") as workers:
        yield workers


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mlp-scaling", {}),
        ("mlp-accumulating", {"schedule": "eager-1f1b", "recompute": True, **FIT}),
        ("mlp-adamw", {"schedule": "interleaved", "chunks": 2, "microbatches": 4, **FIT}),
        ("branches", {"schedule": "interleaved", "chunks": 2, "microbatches": 2, **EVEN}),
        # trained with weights in parts below, and on devices of a process
        pytest.param("words", {"schedule": "gpipe", **FIT}, marks=pytest.mark.release),
        ("whole batches", {"microbatches": 1, **FIT}),
        ("masked", {"microbatches": 3, **EVEN}),
        ("statistics", {"schedule": "interleaved", "chunks": 2, "recompute": True, **FIT}),
        ("named", EVEN),
    ],
)
def test_two_stages_have_the_numbers_of_one_device(
    two: WorkerPool, equal: Equal, name: str, options: dict[str, Any]
) -> None:
    first, second = (one["held"] for one in equal(two, "data=1,pipeline=2", name, **options))
    for one, other in zip(
        first, second, strict=True
    ):  # a weight lies where it is computed with, and takes no memory else
        assert one or other
        assert name in ("branches", "words") or not (one and other)


def test_stages_on_devices_of_a_process_have_the_numbers_of_one_device(alone: WorkerPool, references: str) -> None:
    options = {"schedule": "interleaved", "chunks": 2, "recompute": True, "references": references, **EVEN}
    (found,) = call(alone, "distances", mesh="data=1,pipeline=2", name="words", **options)
    assert found["far"] == {}
    assert {*found["devices"]} == {"0", "1"}  # a weight, and what an optimizer keeps of it, lies on its stage
    assert found["devices of slots"] == ["0", "1"]


def test_a_training_goes_on_with_stages_on_devices_of_a_process(alone: WorkerPool, tmp_path: Path) -> None:
    meshes = ["data=1,pipeline=2", None, "data=1,pipeline=2"]
    (found,) = call(alone, "resumed", folder=str(tmp_path), meshes=meshes)
    assert found["steps"] == 9
    assert found["far"] < 1e-5


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("replicas", ("ConfigError", "mesh", "data=2,pipeline=2")),
        ("devices", ("ConfigError", "stages", "3")),
        ("other devices", ("ConfigError", "replicas_per_worker", "1")),
        ("one optimizer", ("UnsupportedError", "schedule", "pipedream")),
        ("shared state", ("UnsupportedError", "norm/moving_mean")),
    ],
)
def test_what_devices_of_a_process_cannot_be_is_refused(
    alone: WorkerPool, kind: str, expected: tuple[Any, ...]
) -> None:
    (report,) = call(alone, "refused", of="pipeline_refusals", kind=kind, mesh="data=1,pipeline=2")
    assert refusal_fields.are(report, *expected), report


@pytest.mark.release  # with weights in parts below
def test_replicas_alone_have_the_numbers_of_one_device(two: WorkerPool, equal: Equal) -> None:
    equal(two, "data=2,pipeline=1", "words", microbatches=2, **EVEN)


# of masks, the replicas of whole batches have different numbers too
@pytest.mark.parametrize(("name", "options"), [("masked", FIT), ("statistics", {})])
def test_replicas_of_two_stages_have_the_numbers_of_one_device(
    four: WorkerPool, equal: Equal, name: str, options: dict[str, Any]
) -> None:
    equal(four, "data=2,pipeline=2", name, **options)


PARTS = "data=1,pipeline=2,model=2"


@pytest.mark.parametrize(
    ("mesh", "name", "options"),
    [
        (PARTS, "mlp-accumulating", {"recompute": True, "evaluates": False}),
        (PARTS, "words", EVEN),
        (PARTS, "branches", {"layout_map": "auto:last", **FIT}),
        ("data=2,pipeline=1,model=2", "mlp-scaling", {"shard_optimizer": 1, **FIT}),
    ],
)
def test_weights_of_a_stage_in_parts_have_the_numbers_of_one_device(
    four: WorkerPool, equal: Equal, mesh: str, name: str, options: dict[str, Any]
) -> None:
    equal(four, mesh, name, **{"layout_map": "auto", **options})


@pytest.mark.release  # `make test` has each two of these three divisions
def test_replicas_of_stages_with_weights_in_parts_share_slots_and_have_the_numbers_of_one_device(
    forking: Forks, equal: Equal
) -> None:
    with start(forking, workers=8) as eight:
        options = {"layout_map": "auto", "shard_optimizer": 1, **FIT}
        equal(eight, "data=2,pipeline=2,model=2", "mlp-scaling", **options)


@pytest.mark.parametrize(
    ("name", "slots", "rows"),
    [("mlp-scaling", 2, 27), pytest.param("words-averaged", 3, 24, marks=pytest.mark.release)],
)
def test_replicas_of_a_stage_share_the_slots_of_its_weights(
    four: WorkerPool, equal: Equal, name: str, slots: int, rows: int
) -> None:
    mesh = "data=2,pipeline=2"
    for rank, found in enumerate(equal(four, mesh, name, shard_optimizer=1, rows=rows, evaluates=False)):
        replica = rank // 2
        mine = sum(count // 2 + (replica < count % 2) for count in found["held"])
        assert found["bytes of slots"] == 4 * slots * mine


def test_replicas_and_micro_batches_have_whole_inputs_and_the_numbers_of_one_device(four: WorkerPool) -> None:
    assert call(four, "whole_inputs", mesh="data=2,pipeline=2")[0]["far"] == {}


# of branches two stages have two parts each above
@pytest.mark.parametrize(
    ("name", "options"), [pytest.param("branches", FIT, marks=pytest.mark.release), ("short", EVEN)]
)
def test_four_stages_have_the_numbers_of_one_device(
    four: WorkerPool, equal: Equal, name: str, options: dict[str, Any]
) -> None:
    equal(four, "data=1,pipeline=4", name, schedule="gpipe", **options)


def test_passes_run_in_the_order_of_the_schedule(two: WorkerPool) -> None:
    """So a stage has no more live activations than the schedule promises; and a layer is traced once for all.

    The other schedules: `test_a_step_that_is_measured_ran_as_planned`.
    """
    for ran, wanted, traces in call(two, "order", mesh="data=1,pipeline=2", schedule="1f1b", microbatches=6):
        assert ran == wanted
        # once each: for the shapes of results, for whether it compares rows, for what crosses cuts, and for all passes
        assert traces == 4


def test_a_stage_reduces_and_updates_while_the_one_before_it_drains(four: WorkerPool, tmp_path: Path) -> None:
    found = call(four, "drained", of="waiting_cases", mesh="data=2,pipeline=2", folder=str(tmp_path))
    assert found == [[True], [], [True], []]


@pytest.mark.parametrize(("variables", "threads"), [({}, 2), ({"TF_NUM_INTEROP_THREADS": "1"}, 0)])
def test_what_a_stage_sends_does_not_wait_for_what_it_computes(
    forking: Forks, tmp_path: Path, variables: dict[str, str], threads: int
) -> None:
    """Also with one processor for each process, for which TensorFlow would take one thread; and with that, if asked."""
    with start(forking, workers=2, **variables) as workers:
        call(workers, "bind", of="benchmarks.parallel.parallel_networks")
        found = call(workers, "sent", of="waiting_cases", mesh="data=1,pipeline=2", folder=str(tmp_path))
    assert found == [{"saw": [True], "threads": threads}, {"saw": [], "threads": threads}]


@pytest.mark.parametrize(
    ("schedule", "recompute"),
    [("pipedream", False), pytest.param("pipedream", True, marks=pytest.mark.release), ("spectrain", False)],
)
def test_weights_are_updated_after_each_micro_batch_by_delayed_gradients(
    two: WorkerPool, schedule: str, recompute: bool
) -> None:
    options = {"mesh": "data=1,pipeline=2", "schedule": schedule, "recompute": recompute}
    first, second = call(two, "without_a_flush", of="delayed_gradients_cases", **options)
    assert max(first["far"], second["far"]) < 1e-5
    backward = first["backward"]  # which weight the canary had in each pass
    assert first["forward"] == backward or (recompute and sorted(first["forward"]) == sorted(backward * 2))
    assert len(backward) == 22  # four, four and three of each epoch
    if schedule == "pipedream":  # the first two micro-batches of each of six batches have the same version
        assert len(set(backward)) == 16
    assert not second["forward"]  # the canary lies on the first stage


@pytest.mark.parametrize(
    ("schedule", "microbatches", "chunks"),
    [("1f1b", 5, 1), ("eager-1f1b", 5, 1), ("gpipe", 3, 1), ("interleaved", 4, 2), ("pipedream", 4, 1)],
)
def test_a_step_that_is_measured_ran_as_planned(two: WorkerPool, schedule: str, microbatches: int, chunks: int) -> None:
    planned = schedules.named(schedule, stages=2, microbatches=microbatches, chunks=chunks)
    ran = measured(planned, forward_seconds=0.002, backward=2, pool=two)
    assert [tuple(ran.order(stage)) for stage in range(2)] == list(planned.orders)
    assert tuple(ran.live(stage) for stage in range(2)) == planned.live
    ends = {(slot.stage, slot.work): slot.end for slot in ran.slots}
    for slot in ran.slots:
        assert all(ends[needed] <= slot.begin for needed in planned.needs(slot.stage, slot.work))


def test_dropout_is_the_same_whatever_the_schedule_and_when_it_is_computed_again(two: WorkerPool) -> None:
    for again in call(two, "dropped", mesh="data=1,pipeline=2"):
        assert again == [again[0]] * 3
        assert again[0][0] != again[0][1]


def test_a_saved_model_is_one_ordinary_file(two: WorkerPool, tmp_path: Path) -> None:
    for found in call(two, "saved", mesh="data=1,pipeline=2", folder=str(tmp_path)):
        assert found["far"] == {"one device": 0.0, "stages": 0.0}
        assert found["rows"] < 1e-5
        assert found["files"] == ["last.keras"]


def test_slots_and_weights_in_parts_are_saved_whole_and_go_on_on_other_meshes(four: WorkerPool, tmp_path: Path) -> None:
    options = {"layout_map": "auto", "shard_optimizer": 1, "saves": True}
    meshes = ["data=2,pipeline=1,model=2", PARTS, None]
    (found, *others) = call(four, "resumed", folder=str(tmp_path), meshes=meshes, **options)
    assert found["steps"] == 9
    assert found["far"] < 1e-5
    assert found["loaded"] == {"one device": 0.0, "stages": 0.0}
    assert [one["loaded"] for one in others] == [{"stages": 0.0}] * 3


def test_a_training_goes_on_with_other_stages(two: WorkerPool, tmp_path: Path) -> None:
    """Training moves from stages to replicas, which share slots, and to one device; other tests move back to stages."""
    meshes = ["data=1,pipeline=2", "data=2,pipeline=1", None]
    (found, _) = call(two, "resumed", folder=str(tmp_path), meshes=meshes, shard_optimizer=1)
    assert found["steps"] == 9
    assert found["far"] < 1e-5


def test_a_training_goes_on_on_a_mesh_of_model_parallelism_and_back(two: WorkerPool, tmp_path: Path) -> None:
    meshes = ["data=1,pipeline=2", "batch=1,model=2", "data=1,pipeline=2"]
    (found, _) = call(two, "resumed", folder=str(tmp_path), meshes=meshes)
    assert found["steps"] == 9
    assert found["far"] < 1e-5


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("subclassed", ("UnsupportedError", ..., "Subclassed")),
        ("own call", ("UnsupportedError", ..., "OwnCall")),
        ("between blocks", ("UnsupportedError", ..., ..., "blocks")),
        ("own step", ("UnsupportedError", ..., "train_step")),
        ("eager", ("UnsupportedError", "run_eagerly", "True")),
        ("jit", ("UnsupportedError", "jit_compile", "True")),
        ("one number", ("UnsupportedError", ..., ..., "loss_reduction")),
        ("no loss", ("ConfigError", ...)),
        ("rows and columns", ("UnsupportedError", "Adafactor", ...)),
        ("own apply", ("UnsupportedError", "OwnApply", "apply")),
        ("own pairs", ("UnsupportedError", "OwnPairs", "apply_gradients")),
        ("a number", ("UnsupportedError", "CountingSteps", ...)),
        ("a generator", ("UnsupportedError", "Noisy", "generator")),
        ("counting", ("UnsupportedError", "counts")),
        ("name", ("ConfigError", "stages", "secund")),
        ("names", ("ConfigError", "stages", "first")),
        ("order", ("ConfigError", "mine")),
        ("no momentum", ("UnsupportedError", "SGD", "spectrain")),
        ("clipping", ("UnsupportedError", "SGD", "pipedream")),
        ("mask", ("UnsupportedError", "the layer 'mine' (Block)")),
        ("unlike rows", ("UnsupportedError", "x/edges", ...)),
        ("sizes", ("UnsupportedError", "the layer 'sizes' (Sizes)")),
        ("engine", ("UnsupportedError", "collectives", "tensorflow")),
        ("mesh", ("ConfigError", "stages", "3")),
        ("more places", ("ConfigError", "mesh", "data=2,pipeline=2")),
        ("axis", ("UnsupportedError", "mesh", "batch=1,model=2")),
        ("model axis", ("ConfigError", "mesh", "data=1,model=2,pipeline=2")),
        ("no layouts", ("ConfigError", "layout_map", "None")),
        ("no model axis", ("ConfigError", "layout_map", "auto")),
        ("activations", ("UnsupportedError", "layout_map", "auto-sequence")),
        ("values in parts", ("UnsupportedError", "mesh", "pipeline=1,model=2")),
        ("sharded weights", ("UnsupportedError", "shard_optimizer", "3")),
    ],
)
def test_what_cannot_be_is_refused(two: WorkerPool, kind: str, expected: tuple[Any, ...]) -> None:
    reports = call(two, "refused", of="pipeline_refusals", kind=kind, mesh="data=1,pipeline=2")
    assert any(refusal_fields.are(report, *expected) for report in reports), reports


def test_every_stage_says_why_one_of_them_cannot_compute_a_step(two: WorkerPool) -> None:
    reports = call(two, "refused", of="pipeline_refusals", kind="own weight", mesh="data=1,pipeline=2")
    assert all("SpectralNormalization" in report[-1] for report in reports), reports


def test_a_table_of_two_stages_that_one_looks_up_is_named_if_its_optimizer_squares_rows(two: WorkerPool) -> None:
    first, second = call(two, "tables_of_two_stages")
    assert (len(first["sgd"]), len(first["adam"])) == (0, 1)
    assert second == {"sgd": [], "adam": []}
