"""Weights in parts over a mesh of devices: the numbers of one device, whatever is cut along which axis."""

import functools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration import case_pools
from tests.integration.case_pools import CASES
from tests.integration.cases import refusal_fields
from tests.integration.forks import Forks
from tests.integration.light import python_path
from tfdist.testing.pool import WorkerPool

call = functools.partial(case_pools.call, of="model_parallel_cases")
# a mesh says how many of its devices a process has
start = functools.partial(case_pools.start, strategy="model-parallel", replicas=None)
# Once for each kind of mesh; a partial batch takes part in what follows.
ALL: dict[str, Any] = {"rows": 41, "then": ["validate", "evaluate", "predict"]}
EVALUATE: dict[str, Any] = {"rows": 41, "then": ["evaluate", "predict"]}


def require_near(found: list[dict[str, Any]]) -> None:
    """Require all processes to have the same, which process 0 has compared with one device."""
    assert found[0]["far"] < 1e-5
    assert len({one["digest"] for one in found}) == 1


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of the results of one device."""
    return str(tmp_path_factory.mktemp("references"))


@pytest.fixture(scope="module")
def equal(references: str) -> Callable[..., None]:
    """Return a check that a training has the numbers of one device, in every process."""

    def require(pool: WorkerPool, mesh: str, name: str, *, cut: int | None, **options: Any) -> None:
        found = call(pool, "distances", mesh=mesh, name=name, references=references, **options)
        assert found[0]["far"] == {}
        assert found == [found[0]] * len(found)
        assert cut in (None, found[0]["cut"])

    return require


@pytest.fixture(scope="module")
def devices(forking: Forks) -> Iterator[WorkerPool]:
    """One process with four devices."""
    with start(forking, workers=1, LOGICAL_CPUS="4") as worker:
        yield worker


@pytest.fixture(scope="module")
def two(forking: Forks) -> Iterator[WorkerPool]:
    """Two processes, with two devices each for those meshes that have more places than processes."""
    with start(forking, workers=2, LOGICAL_CPUS="2") as workers:
        yield workers


@pytest.fixture(scope="module")
def three(forking: Forks) -> Iterator[WorkerPool]:
    with start(forking, workers=3) as workers:
        yield workers


@pytest.fixture(scope="module")
def four(forking: Forks) -> Iterator[WorkerPool]:
    with start(forking, workers=4) as workers:
        yield workers


CUT = {"mlp": 5, "embedding": 4, "convolution": 6, "recurrent": 5, "attention": 22, "einsums": 10}
Equal = Callable[..., None]


# other optimizers: where there are sums over both axes, and on devices
@pytest.mark.parametrize(
    ("name", "then"),
    [
        ("mlp", ALL),
        ("mlp-adamw", {}),
        ("embedding", {"rows": 41, "then": ["predict"]}),
        ("convolution", EVALUATE),
        ("recurrent", {}),
        ("einsums", {}),
    ],
)
def test_two_processes_have_the_numbers_of_one_device(
    two: WorkerPool, equal: Equal, name: str, then: dict[str, Any]
) -> None:
    equal(two, "batch=1,model=2", name, cut=CUT[name.split("-")[0]], **then)


def test_an_axis_of_one_cuts_nothing(two: WorkerPool, equal: Equal) -> None:
    equal(two, "batch=2,model=1", "convolution", cut=0)


# a layer's rows that have a constraint and a regularizer: where weights are cut along two axes
# over those of TensorFlow: in two processes of two devices
@pytest.mark.parametrize("collectives", [pytest.param("tensorflow", marks=pytest.mark.release), "native"])
def test_rows_may_be_cut(two: WorkerPool, equal: Equal, collectives: str) -> None:
    equal(two, "batch=1,model=2", "embedding", cut=3, layouts="rows", collectives=collectives)


def test_three_processes_have_the_numbers_of_one_device(three: WorkerPool, equal: Equal) -> None:
    equal(three, "batch=1,model=3", "mlp", cut=None)


# what has sums over both axes: norms, finite checks, statistics of batches, rows of tables
@pytest.mark.parametrize(
    ("name", "then"),
    [
        # trained on this mesh below, in two processes of two devices
        pytest.param("mlp-accumulating", {}, marks=pytest.mark.release),
        ("mlp-scaling", {}),
        # both are trained on this mesh below, on devices, and above in two processes
        pytest.param("embedding", {}, marks=pytest.mark.release),
        pytest.param("convolution", EVALUATE, marks=pytest.mark.release),
    ],
)
def test_four_processes_have_the_numbers_of_one_device(
    four: WorkerPool, equal: Equal, name: str, then: dict[str, Any]
) -> None:
    equal(four, "batch=2,model=2", name, cut=CUT[name.split("-")[0]], **then)


@pytest.mark.parametrize(
    ("mesh", "name", "then"),
    [
        ("batch=1,model=2", "mlp-adamw", {}),
        ("batch=1,model=2", "attention", {}),
        pytest.param("batch=2,model=2", "mlp-scaling", {}, marks=pytest.mark.release),
        pytest.param("batch=2,model=2", "embedding", {}, marks=pytest.mark.release),
        ("batch=2,model=2", "convolution", EVALUATE),
    ],
)
def test_devices_of_a_process_have_the_numbers_of_one(
    devices: WorkerPool, equal: Equal, mesh: str, name: str, then: dict[str, Any]
) -> None:
    equal(devices, mesh, name, cut=CUT[name.split("-")[0]], **then)


@pytest.mark.parametrize(
    ("mesh", "name", "layouts", "collectives", "options"),
    [
        ("batch=2,model=2", "mlp-accumulating", "auto", "native", {}),
        ("batch=2,model=2", "embedding", "auto", "tensorflow", {}),
        pytest.param("model=2,batch=2", "mlp", "auto", "native", {}, marks=pytest.mark.release),
        ("batch=4,model=1", "mlp", "auto", "native", ALL),
        ("batch=1,model=2,row=2", "mlp", "both", "native", {}),
    ],
)
def test_processes_of_several_devices_have_the_numbers_of_one(
    two: WorkerPool, equal: Equal, mesh: str, name: str, layouts: str, collectives: str, options: dict[str, Any]
) -> None:
    equal(two, mesh, name, cut=None, layouts=layouts, collectives=collectives, **options)


def test_parts_of_a_batch_may_have_other_sizes(devices: WorkerPool, four: WorkerPool) -> None:
    for pool in (devices, four):
        require_near(call(pool, "uneven", mesh="batch=2,model=2"))


@pytest.mark.release  # as a table does above, in two processes of two devices
def test_devices_reduce_by_collectives_of_tensorflow_too(devices: WorkerPool, equal: Equal) -> None:
    equal(devices, "batch=2,model=2", "mlp", cut=CUT["mlp"], collectives="tensorflow")


def test_devices_find_the_loss_of_their_parts(devices: WorkerPool) -> None:
    (found,) = call(devices, "classes", mesh="batch=2,model=2", kind="logits")
    assert found["far"] < 1e-5
    assert 2 not in found["gathered"]


def test_a_distribution_over_the_devices_of_a_process_is_followed(devices: WorkerPool, references: str) -> None:
    (found,) = call(devices, "by_distribution", mesh="batch=2,model=2", references=references)
    assert found["far"] < 1e-5
    assert found["refusal"][:2] == ["UnsupportedError", "keras.distribution.set_distribution"]
    assert "ModelParallelStrategy trains on cpu:0, cpu:1" in found["refusal"][3]
    assert found["places"] == [[6, 6, 144], [12, 48], [12, 3, 144], [6, 24], [6, 1, 24], [2, 8]]


def test_a_model_in_one_process_is_saved_as_one_ordinary_file(devices: WorkerPool, tmp_path: Path) -> None:
    (found,) = call(devices, "saved", mesh="batch=1,model=2", folder=str(tmp_path))
    assert found["far"] == {"one device": 0.0, "mesh": 0.0, "weights": 0.0}
    assert found["slots"] == 0.0
    assert found["exported"] < 1e-6
    assert found["files"] == ["exported", "last.keras", "own.weights.h5"]


# to one device of a process: `test_a_training_goes_on_with_another_mesh`
@pytest.mark.parametrize("back", [False, pytest.param(True, marks=pytest.mark.release)])
def test_a_training_goes_on_from_devices_with_processes_and_back(
    devices: WorkerPool, two: WorkerPool, tmp_path: Path, back: bool
) -> None:
    first, then = (two, devices) if back else (devices, two)
    for found in call(first, "resumed", folder=str(tmp_path), meshes=["batch=2,model=2"], ends=False):
        assert found["steps"] == 3
    answers = call(then, "resumed", folder=str(tmp_path), meshes=["batch=1,model=2"])
    require_near(answers)
    assert {found["steps"] for found in answers} == {12}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("run_eagerly", ("UnsupportedError", "run_eagerly", "True")),
        ("a loop by hand", ("UnsupportedError", "experimental_distribute_dataset")),
        ("an absent row", ("InvalidArgumentError", ..., ..., "[0 12)")),
        ("devices", ("ConfigError", "devices", "['CPU:0']")),
        ("size", ("ConfigError", "mesh", "5")),
        ("lamb", ("UnsupportedError", "Lamb", ...)),
        ("jit_compile", ("UnsupportedError", ..., ..., "jit_compile")),
    ],
)
def test_what_devices_cannot_do_is_refused(devices: WorkerPool, kind: str, expected: tuple[Any, ...]) -> None:
    (report,) = call(devices, "refused", kind=kind, mesh="batch=1,model=2")
    assert refusal_fields.are(report, *expected), report


@pytest.mark.release  # on the same mesh above, in two processes of two devices
def test_a_weight_may_be_cut_along_two_axes(four: WorkerPool, equal: Equal) -> None:
    equal(four, "batch=1,model=2,row=2", "mlp", layouts="both", cut=6)


def test_those_with_the_same_examples_draw_the_same_masks(four: WorkerPool) -> None:
    digests = call(four, "digests_with_dropout", mesh="batch=2,model=2")
    assert digests == [digests[0]] * 4


def test_heads_and_what_is_between_columns_and_rows_stay_in_parts(two: WorkerPool, equal: Equal) -> None:
    equal(two, "batch=1,model=2", "attention", cut=CUT["attention"])
    for worker, seen in enumerate(call(two, "gathered", mesh="batch=1,model=2", name="attention")):
        told = re.search(r"attention\w*/query/kernel': \(None, 'model', None\)", "".join(seen["logged"]))
        assert (told is not None) == (worker == 0)
        assert layers_in(seen["gathered"]) == {"last"}  # no weight, and no other activation, is ever whole
        assert layers_in(seen["summed"]) == {"embedding", "attention_output", "wide", "narrow", "last"}


# the first with the masks of one device, the second with patterns of its own for activations
@pytest.mark.parametrize(
    ("mesh", "layouts", "cut"), [("batch=1,model=2", "auto-sequence", 19), ("batch=2,model=2", "outputs", 6)]
)
def test_activations_may_lie_in_parts_of_their_sequence(
    two: WorkerPool, equal: Equal, mesh: str, layouts: str, cut: int
) -> None:
    equal(two, mesh, "sequence", cut=cut, layouts=layouts)


def test_summands_become_parts_of_a_sequence(two: WorkerPool) -> None:
    forward = {"embedding/embeddings", "multi_head_attention/attention_output/kernel", "sequential/dense_1/kernel"}
    backward = {"3 LayerNormalization", "6 RMSNormalization", "8 Add"}  # what layers by columns and attention take
    for seen in call(two, "gathered", mesh="batch=1,model=2", name="sequence", layouts="auto-sequence"):
        scattered = {label.removeprefix("activations of ") for label in seen["scattered"]}
        assert scattered == {*forward, *backward, "dense_4/kernel"}
        # added up are the gradients of scales that have seen a part of a sequence
        assert "activations of 3 LayerNormalization" in seen["summed"]
        assert "activations of embedding/embeddings" not in seen["summed"]


@pytest.mark.parametrize(
    ("kind", "needs_all"),
    [("probabilities", False), ("probabilities, accuracy", True), ("logits, the best", True)],
)
def test_logits_are_gathered_where_something_takes_them(two: WorkerPool, kind: str, needs_all: bool) -> None:
    answers = call(two, "classes", mesh="batch=1,model=2", kind=kind)
    require_near(answers)
    for found in answers:
        assert (2 in found["gathered"]) == needs_all


@pytest.mark.release  # on the same mesh above, on devices of a process, and in two processes
def test_four_processes_find_the_loss_of_their_parts(four: WorkerPool) -> None:
    answers = call(four, "classes", mesh="batch=2,model=2", kind="logits")
    require_near(answers)
    for found in answers:
        assert 2 not in found["gathered"]


def layers_in(labels: list[str]) -> set[str]:
    """Return the layers whose activations are named; parts of norms are left out."""
    return {label.split("/")[-2].split()[-1] for label in labels if label.startswith("activations of ")}


def test_a_distribution_of_keras_is_followed_or_refused(two: WorkerPool, references: str) -> None:
    answers = call(two, "by_distribution", mesh="batch=1,model=2", references=references)
    require_near(answers)
    for found in answers:
        assert found["refusal"][:2] == ["UnsupportedError", "keras.distribution.set_distribution"]
        assert "ModelParallelStrategy" in found["refusal"][3]
        assert found["places"] == [[6, 6, 144], [12, 48], [12, 3, 144], [6, 24], [6, 1, 24], [2, 8]]
        assert "all weights" in found["table"]
        assert "of 704 bytes" in found["table"]


def test_no_process_ever_holds_a_whole_table(two: WorkerPool) -> None:
    answers = call(two, "memory_of_a_table", mesh="batch=1,model=2", rows=1 << 18, width=64)
    for found in answers:
        if found is None:
            pytest.skip("TensorFlow does not count the memory of this kind of processor")
        assert found["part"] <= found["made"] < 1.5 * found["part"]
        assert found["part"] <= found["trained"] < 1.5 * found["part"]
        assert found["value"] == answers[0]["on one device"]


def test_a_saved_model_is_one_ordinary_file(two: WorkerPool, tmp_path: Path) -> None:
    for found in call(two, "saved", mesh="batch=1,model=2", folder=str(tmp_path)):
        assert found["far"] == {"one device": 0.0, "mesh": 0.0, "weights": 0.0}
        assert found["slots"] == 0.0
        assert found["exported"] < 1e-6
        assert found["files"] == ["exported", "last.keras", "own.weights.h5"]


def test_a_training_goes_on_with_another_mesh(two: WorkerPool, tmp_path: Path) -> None:
    meshes = ["batch=1,model=2", "batch=2,model=1", None]
    answers = call(two, "resumed", folder=str(tmp_path), meshes=meshes)
    require_near(answers)
    assert {found["steps"] for found in answers} == {12}


def test_a_training_goes_on_with_another_number_of_processes(two: WorkerPool, four: WorkerPool, tmp_path: Path) -> None:
    for found in call(four, "resumed", folder=str(tmp_path), meshes=["batch=2,model=2"], ends=False):
        assert found["steps"] == 3
    answers = call(two, "resumed", folder=str(tmp_path), meshes=["batch=1,model=2"])
    require_near(answers)
    assert {found["steps"] for found in answers} == {12}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("pattern", ("ConfigError", "layout_map", "lost.*")),
        ("activation", ("ConfigError", "layout_map", "lost/output")),
        ("division", ("ConfigError", ..., "(None, 'model')")),
        ("lamb", ("UnsupportedError", "Lamb", ...)),
        ("own apply", ("UnsupportedError", "OwnApply", "apply")),
        ("own pairs", ("UnsupportedError", "OwnPairs", "apply_gradients")),
        ("own data", ("UnsupportedError", "auto_shard_policy", "OFF")),
        ("jit_compile", ("UnsupportedError", ..., ..., "jit_compile")),
        ("size", ("ConfigError", "mesh", "batch=1,model=5")),
        ("divided", ("ConfigError", "mesh", "batch=1,model=4")),
        ("devices", ("ConfigError", "devices", "['CPU:0']")),
    ],
)
def test_what_cannot_be_is_refused_on_all(two: WorkerPool, kind: str, expected: tuple[Any, ...]) -> None:
    for report in call(two, "refused", kind=kind, mesh="batch=1,model=2"):
        assert refusal_fields.are(report, *expected), report


@pytest.mark.release
def test_dtensor_has_the_same_losses_and_weights(four: WorkerPool, forking: Forks) -> None:
    options = {"width": 12, "steps": 6, "rate": 0.1}
    alone = {**os.environ, "PYTHONPATH": python_path(CASES), "LOGICAL_CPUS": "4"}
    with WorkerPool(lambda: [alone], start=forking.worker) as one:
        (expected,) = call(one, "blocks_in_dtensor", **options)
    losses, weights = expected
    assert losses[-1] < losses[0] / 2  # there is something to compare
    for found in call(four, "blocks", mesh="batch=2,model=2", **options):
        assert found[0] == pytest.approx(losses, abs=1e-5)
        assert found[1].keys() == weights.keys()
        for name, values in found[1].items():
            for mine, theirs in zip(values, weights[name], strict=True):
                np.testing.assert_allclose(mine, theirs, atol=1e-5, err_msg=name)
