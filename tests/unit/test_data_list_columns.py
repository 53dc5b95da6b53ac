"""Lists of integers are decoded together as they are one by one, whatever wrote them."""

from pathlib import Path

import numpy as np
import pytest

from tests.refusals import refused
from tests.unit.test_data_index_files import put, record
from tfdist import data
from tfdist.data.format import example
from tfdist.data.views.sequence_packing import lists_of
from tfdist.errors import CorruptDataError

LISTS = [[1, 2, 300], [], [-1], [2**63 - 1, -(2**63)], list(range(1000)), [0]]


def unpacked(values: list[int]) -> bytes:
    """A record as some writers make it: each integer is a field of its own."""
    fields = b"".join(b"\x08" + bytes([value]) for value in values)
    value = example.delimited(3, fields)
    return example.delimited(1, example.delimited(1, example.delimited(1, b"x") + example.delimited(2, value)))


def test_lists_are_those_that_parsing_gives() -> None:
    payloads = [record(x=values, y=[7], z=[b"x"]) for values in LISTS]
    payloads += [unpacked([3, 4]), payloads[0] + payloads[0], payloads[0][:-1], b""]
    found = example.integer_lists(payloads, "x")
    whole = [None if values is None else values.tolist() for values in found]
    assert whole == [values or None for values in LISTS] + [None] * 4
    assert [values is None for values in example.integer_lists(payloads[:3], "z")] == [True] * 3


@pytest.mark.parametrize("several", [False, True])
def test_lists_of_directories(tmp_path: Path, several: bool) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        put(tmp_path / name / "a.tfrecord", *(record(x=values, y=[1]) for values in LISTS), unpacked([5, 6]))
        data.index(tmp_path / name)
    examples = data.open([tmp_path / "a", tmp_path / "b"] if several else tmp_path / "a")
    expected = [*LISTS, [5, 6]] * (2 if several else 1)
    ids = np.random.default_rng(1).permutation(len(expected))
    assert [values.tolist() for values in lists_of(examples, "x", ids)] == [expected[number] for number in ids]
    content = bytearray((tmp_path / "a/a.tfrecord").read_bytes())
    content[-6] ^= 1
    (tmp_path / "a/a.tfrecord").write_bytes(content)
    with refused(CorruptDataError, mentions=("example 6",)):
        lists_of(data.open(tmp_path / "a"), "x", np.arange(7))
