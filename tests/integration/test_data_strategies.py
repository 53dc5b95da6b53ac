"""`tfdist.data.read` under strategies: the batches of one device, a slice for each worker, and any state on any number.

All cases of a kind run in one call: what takes time is to start processes.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.corruption import flip
from tests.integration import case_pools
from tests.integration.agents import says
from tests.integration.case_pools import CASES, DEADLINE_SECONDS
from tests.integration.forks import Forks
from tests.integration.light import python_path
from tests.integration.resting import RestingPool
from tfdist import data
from tfdist.cluster import ports
from tfdist.testing.pool import WorkerPool, worker_environments

POOLS = {"mirrored": 1, "multi-worker": 2, "ring": 3, None: 1}  # processes; the last one's strategy starts its own
DIGITS = ("mirrored", "ring")  # those that write the digits, which are scikit-learn's
SIZES = (41, 37)  # with batches of 12, the last one has 5 examples, or 1: less than there are workers
ALL = PADDED, DROPPED, KEPT = ("41", "pad"), ("41", "drop"), ("37", "keep")
TRAINED = {
    "mirrored-2": [KEPT],
    "mirrored": [PADDED, DROPPED],  # three replicas
    "multi-worker": [DROPPED, KEPT],
    "ring": [PADDED],  # KEPT, with workers that have no example, is below
    "parameter-server": [KEPT],
}
# inputs are cut above the collectives: the ring's three processes are one more combination of what two others cover
RING_LATER = pytest.param("ring", marks=pytest.mark.release)
EPOCHS, STEPS = 2, {"pad": 4, "keep": 4, "drop": 3}


class Pools:
    """Worker processes, started with this file's first test and kept for all."""

    def __init__(self, stack: ExitStack, forking: Forks) -> None:
        self._of_one: dict[str, Any] = {}
        self._pools = {kind: stack.enter_context(_pool(kind, forking)) for kind in POOLS}
        for pool in self._pools.values():
            pool.call("os:getpid", {}, timeout_seconds=DEADLINE_SECONDS)  # starts the processes

    def __call__(self, strategy: str, function: str, *, of: str = "data_cases", **arguments: Any) -> list[Any]:
        """Call a function of the cases with a strategy, on all workers that it has."""
        kind = {"one": "mirrored", "mirrored-2": "mirrored", "parameter-server": None}.get(strategy, strategy)
        return case_pools.call(self._pools[kind], function, of=of, name=strategy, **arguments)

    def graph_of_one_device(self, function: str) -> Any:
        """Return the results of one device, which are computed once for all strategies."""
        if function not in self._of_one:
            (self._of_one[function],) = self("one", function, of="graph_cases")
        return self._of_one[function]


def _pool(kind: str | None, forking: Forks) -> WorkerPool:
    made = RestingPool if kind == "ring" else WorkerPool
    return made(lambda: _environments(kind), start=forking.worker)


def _environments(kind: str | None) -> list[dict[str, str]]:
    replicas = 3 if kind == "mirrored" else 1
    free = ports.free_ports(POOLS[kind])
    made = worker_environments(os.environ, strategy=kind, ports=free, replicas_per_worker=replicas)
    path = str(CASES) if kind in DIGITS else python_path(CASES)
    return [environment | {"PYTHONPATH": path} for environment in made]


@pytest.fixture(scope="module")
def call(forking: Forks) -> Iterator[Pools]:
    with ExitStack() as stack:
        yield Pools(stack, forking)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A directory of pictures for each size."""
    from PIL import Image

    root, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    found = {}
    for size in SIZES:
        pictures = []
        for _ in range(size):
            file = root / "picture.png"
            Image.fromarray(random.integers(0, 256, (4, 4, 3), np.uint8)).save(file)
            pictures.append(file.read_bytes())
        found[str(size)] = str(root / f"größe {size}")
        data.write({"image": pictures, "label": np.arange(size) % 5}, found[str(size)], num_shards=3)
    return found


@pytest.fixture(scope="module")
def one(call: Pools, folders: dict[str, str]) -> dict[tuple[str, str], Any]:
    """Return the results of plain Keras with the same data on one device."""
    (found,) = call("one", "trained", folders=folders, cases=ALL)
    return dict(zip(ALL, found, strict=True))


@pytest.mark.parametrize("strategy", TRAINED)
def test_fit_has_the_numbers_of_one_device(strategy: str, call: Pools, folders: dict[str, str], one: Any) -> None:
    for worker in call(strategy, "trained", folders=folders, cases=TRAINED[strategy]):
        for case, seen in zip(TRAINED[strategy], worker, strict=True):
            assert seen["steps"] == one[case]["steps"] == EPOCHS * STEPS[case[1]], case
            assert seen["epoch"] == one[case]["epoch"] == EPOCHS, case
            evaluated = case == TRAINED[strategy][0]
            assert len(seen["measured"]) == 2 * evaluated
            for name in ("weights", "logs", "measured")[: 2 + evaluated]:
                np.testing.assert_allclose(seen[name], one[case][name], rtol=1e-5, atol=1e-5, err_msg=str(case))


@pytest.mark.parametrize(("strategy", "ops"), [("multi-worker", True), ("ring", False)])
def test_a_worker_looks_up_its_slice_alone(strategy: str, ops: bool, call: Pools, folders: dict[str, str]) -> None:
    workers = call(strategy, "looked_up", folder=folders["41"], tail="keep", ops=ops)
    for epoch in zip(*workers, strict=True):
        assert sorted(number for worker in epoch for number in worker) == list(range(41))
        shares = [len(worker) for worker in epoch]
        assert max(shares) - min(shares) <= STEPS["keep"]  # parts of a batch differ by one example at most


@pytest.mark.parametrize(("size", "tail", "left", "then"), [("41", "pad", 17 + 7, "one"), ("37", "keep", 13, "ring")])
def test_what_two_workers_began_one_or_three_end(
    size: str, tail: str, left: int, then: str, call: Pools, folders: dict[str, str], one: Any
) -> None:
    chief, other = call("multi-worker", "interrupted", folder=folders[size], tail=tail, epoch=0, batch=1)
    assert chief == other
    assert chief["epoch"] == chief["state"]["epoch"] == 0
    assert chief["state"]["consumed"] == 24
    rest = {"folder": folders[size], "tail": tail, "state": chief["state"], "weights": chief["weights"]}
    workers = call(then, "resumed", **rest, epochs=EPOCHS)
    for seen in workers:
        assert seen["steps"] == EPOCHS * STEPS[tail] - 2
        np.testing.assert_allclose(seen["weights"], one[size, tail]["weights"], rtol=1e-5, atol=1e-5)
    again = 2 * (tail == "keep" and then == "ring")  # workers without an example read a neighbour's
    assert sum(len(seen["looked_up"][0]) for seen in workers) == left + again, "the epoch began anew"


@pytest.mark.parametrize(
    ("strategy", "options"),
    [("multi-worker", {"seed": 6}), ("multi-worker", {"tail": "drop"}), ("ring", {"order": "none"})],
    ids=str,
)
def test_workers_that_read_differently_are_told(
    strategy: str, options: dict[str, Any], call: Pools, folders: dict[str, str]
) -> None:
    for said in call(strategy, "refused", folder=folders["37"], options=options):
        assert says(said, "different data", "step 0 ", "worker 0 has", "worker 1 has"), said
        assert ("batches" if "tail" in options else "a batch with fingerprint") in said


def test_workers_that_write_the_same_at_once_write_it_once(call: Pools, tmp_path: Path) -> None:
    folder = tmp_path / "größe 1"
    written, *others = call("ring", "written", folder=str(folder))
    assert others == [written] * 2
    (place,) = {Path(name).parents[1] for name, *_ in written}
    assert {part.name: len(data.open(part)) for part in place.iterdir()} == {
        "train": 1257,
        "validation": 180,
        "test": 360,
    }
    assert place.parent == folder
    assert [written] == call("mirrored", "written", folder=str(folder))


@pytest.mark.parametrize("strategy", ["one", "mirrored-2", "parameter-server"])
def test_the_error_of_reading_is_what_iterations_and_fit_raise(
    strategy: str, call: Pools, folders: dict[str, str], tmp_path: Path
) -> None:
    for name in ("damaged", "changed"):
        shutil.copytree(folders["37"], tmp_path / name)
    flip(tmp_path / "damaged" / "data-00001.tfrecord", 40)
    (seen,) = call(strategy, "failing", damaged=str(tmp_path / "damaged"), changed=str(tmp_path / "changed"))
    changed = seen.pop("changed")
    assert changed[0] == "DataChangedError", changed
    assert says(changed[1], "written anew", "revision is 2")
    for way, (kind, said) in seen.items():
        assert kind == "CorruptDataError", way
        assert says(said, "example 12 ", "data-00001.tfrecord, byte 0", "`tfdist data verify "), way


@pytest.mark.parametrize("strategy", ["mirrored-2", "multi-worker", RING_LATER, "parameter-server"])
def test_a_batch_whose_inputs_have_unlike_rows_is_refused(strategy: str, call: Pools) -> None:
    for seen in call(strategy, "refused", of="graph_cases"):
        for way, (kind, said) in seen.items():
            assert kind == "UnsupportedError", (way, said)
            assert "'x/edges' has 20" in said, way
            assert "'x/nodes' has 12" in said, way


def test_one_replica_computes_with_all_rows_of_unlike_inputs(call: Pools) -> None:
    (seen,) = call("mirrored-2", "on_one_replica", of="graph_cases")
    for kind in ("", " predicts"):
        np.testing.assert_allclose(seen["replica" + kind], seen["plain" + kind], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("strategy", ["mirrored-2", "multi-worker", RING_LATER, "parameter-server"])
def test_inputs_that_are_no_examples_are_whole_on_every_replica(strategy: str, call: Pools) -> None:
    one = call.graph_of_one_device("whole")
    for seen in call(strategy, "whole", of="graph_cases"):
        assert seen.keys() == one.keys()
        for kind, values in seen.items():
            np.testing.assert_allclose(values, one[kind], rtol=1e-5, atol=1e-5, err_msg=kind)


@pytest.mark.parametrize("strategy", ["mirrored-2", "multi-worker"])
def test_the_noise_scale_is_measured_with_whole_inputs(strategy: str, call: Pools) -> None:
    one = call.graph_of_one_device("noise")
    for seen in call(strategy, "noise", of="graph_cases"):
        np.testing.assert_allclose(seen, one, rtol=1e-4)


@pytest.mark.parametrize("strategy", ["mirrored-2", "multi-worker", RING_LATER])
def test_a_loop_of_ones_own_has_whole_inputs_on_every_replica(strategy: str, call: Pools) -> None:
    one = call.graph_of_one_device("looped")
    for seen in call(strategy, "looped", of="graph_cases"):
        np.testing.assert_allclose(seen, one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("strategy", ["mirrored-2", "multi-worker", RING_LATER])
def test_a_loop_of_ones_own_is_not_given_rows_of_unlike_inputs(strategy: str, call: Pools) -> None:
    for known, found, alike in call(strategy, "cut_by_hand", of="graph_cases"):
        assert known.startswith("UnsupportedError")
        assert found.startswith("InvalidArgumentError")
        assert "x/edges" in found
        assert "strategy.whole_inputs" in found
        assert int(alike) == 2


@pytest.mark.parametrize("strategy", ["mirrored-2", "multi-worker"])
def test_names_that_whole_inputs_cannot_have_are_refused(strategy: str, call: Pools) -> None:
    for seen in call(strategy, "misnamed", of="graph_cases"):
        own = seen.pop("own data fit", None)
        assert (own is None) == (strategy == "mirrored-2")
        assert own is None or own[:2] == ["UnsupportedError", "whole_inputs"]
        assert len(seen) == 6
        for kind, (error, name, said) in seen.items():
            assert (error, name) == ("ConfigError", "whole_inputs"), kind
            assert "'x/edges'" in said, kind
            assert "'x/nodes'" in said, kind


def test_a_table_that_an_eager_model_looks_up_beside_whole_inputs_is_named(call: Pools) -> None:
    (said,) = call("mirrored-2", "eagerly", of="graph_cases")
    assert len(said) == 1
    assert "'THE TABLE'" in said[0]
    assert "strategy.whole_inputs" in said[0]
