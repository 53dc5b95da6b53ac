"""Orders in compiled code: bit for bit those of NumPy and of plain Python, on any processor, in a reading as well."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.slow_orders import CASES, epoch_length, slow_ids, slow_value, stretches
from tfdist import data
from tfdist.data.order.epoch_orders import Full, round_keys
from tfdist.data.order.mixtures import Mixed, Schedule
from tfdist.native.compiled_orders import CompiledOrders, compiled_orders

pytestmark = pytest.mark.quick

SIZES = (4097, 5003, 65_536, 65_537, 131_072, 1_000_003, 2**31 + 11, 2**33 + 5, 2**50)


@pytest.fixture(scope="module", params=[False, True], ids=["fastest", "portable"])
def compiled(request: pytest.FixtureRequest) -> CompiledOrders:
    found = compiled_orders()
    assert found is not None
    return CompiledOrders(found.path, portable=request.param)


@pytest.mark.parametrize("size", SIZES)
def test_permutations_are_those_of_numpy(compiled: CompiledOrders, size: int) -> None:
    positions = np.random.default_rng(7).integers(0, size, 3001)
    positions[:2] = 0, size - 1
    found = Full(size, compiled=compiled).ids(seed=3, epoch=2, positions=positions)
    assert (found == Full(size).ids(seed=3, epoch=2, positions=positions)).all()
    assert found[:20].tolist() == [slow_value(size, at, "full", 3, 2) for at in positions[:20].tolist()]


@pytest.mark.parametrize("case", CASES)
def test_mixtures_are_those_of_numpy_and_of_plain_python(compiled: CompiledOrders, case: str) -> None:
    phases, sizes, stop, examples = CASES[case]
    length = epoch_length(phases, sizes, stop, examples)
    schedule = Schedule(phases) if stop == "never" else Schedule(phases, length)
    ways = [
        Mixed(schedule, [Full(size, compiled=one) for size in sizes], stop, length, "x") for one in (None, compiled)
    ]
    for epoch in (0, 3):
        whole, found = (order.ids(seed=5, epoch=epoch, positions=np.arange(length)) for order in ways)
        assert (found == whole).all()
        for positions in stretches(length):
            expected = slow_ids(phases, sizes, stop, length, seed=5, epoch=epoch, positions=positions)
            for order in ways:
                at = np.array(positions)
                assert order.ids(seed=5, epoch=epoch, positions=at).tolist() == expected
                assert order.ids(seed=5, epoch=epoch, positions=at[::-1]).tolist() == expected[::-1]


def test_positions_outside_are_refused(compiled: CompiledOrders) -> None:
    for position in (5003, -1, 2**62):
        with pytest.raises(IndexError):
            compiled.permuted(round_keys("x"), 5003, np.array([0, position]))


@pytest.mark.parametrize(
    "change",
    [{"met": [[0, 0], [3, 2]]}, {"met": [[0, 0], [-1, 5]]}, {"numbers": [1, 0]}, {"sizes": [9, 0]}, {"sizes": [2, 9]}],
    ids=str,
)
def test_what_does_not_fit_is_refused(compiled: CompiledOrders, change: dict[str, Any]) -> None:
    """A window of four positions, of which each source has two."""
    given = {"met": [[0, 0], [2, 2]], "firsts": [0, 9], "sizes": [9, 9], "begins": [0, 1, 2], "numbers": [0, 0]}
    keys, tables = np.zeros((2, 8), np.uint32), [np.arange(9)[::-1].copy(), np.arange(9)]
    window = np.array([0, 2, 1, 3], np.uint16), 2, 0, 0, 4, 0, 4
    arrays = {name: np.array(values) for name, values in given.items()}
    assert compiled.mixed([window], **arrays, keys=keys, tables=tables).tolist() == [8, 9, 7, 10]
    if change == {"sizes": [2, 9]}:  # the lap of the first source ends in the window, and there is no other
        arrays["met"] = np.array([[1, 0], [3, 2]])
    arrays |= {name: np.array(values) for name, values in change.items()}
    with pytest.raises(ValueError, match="fit"):
        compiled.mixed([window], **arrays, keys=keys, tables=tables)


def test_a_reading_is_the_same_with_and_without(tmp_path: Path) -> None:
    parts = {}
    for name, size in (("a", 5003), ("b", 4201)):
        data.write({"x": np.arange(size)}, tmp_path / name, num_shards=1, processes=1)
        parts[name] = tmp_path / name
    for source in (parts["a"], data.mix(parts, weights={"a": 1, "b": 2}, stop="never")):
        compiled, plain = (data.read(source, global_batch_size=512, tail="drop", ops=ops) for ops in (None, False))
        state = compiled.state(batches=5)
        for batch, other in zip(compiled, plain, strict=True):
            assert (batch.numpy() == other.numpy()).all()
        compiled.seek(state)
        plain.seek(state)
        assert (next(iter(compiled)).numpy() == next(iter(plain)).numpy()).all()
