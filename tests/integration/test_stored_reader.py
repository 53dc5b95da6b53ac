"""Unencoded values in files of other libraries: the compiled ops read the same values as NumPy, or refuse them."""

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import foreign_writers as writers
from tests.integration.test_records import HUGE, ops
from tests.refusals import refused
from tfdist import data
from tfdist.data.reading.stored_reader import StoredByOps, stored_reader
from tfdist.data.reading.view import fetcher_of
from tfdist.errors import CorruptDataError, DataChangedError
from tfdist.native import Records

__all__ = ["ops"]  # a fixture
pytestmark = pytest.mark.quick

ENCODINGS = {"id": "int", "matrix": "ndarray:float32:2,3", "text": "str"}
ROWS = writers.rows()
HALF = len(ROWS) // 2


@pytest.fixture
def folder(ops: Records, tmp_path: Path) -> Path:
    writers.mds(tmp_path / "mds", [ROWS[:HALF], ROWS[HALF:]], ENCODINGS)
    return tmp_path / "mds"


def batches(folder: Path, **known: Any) -> list[list[Any]]:
    import tensorflow as tf

    reading = data.read(folder, global_batch_size=5, seed=3, label="id", **known)
    return [[part.numpy().tolist() for part in tf.nest.flatten(batch)] for batch in reading]


def reads_by_ops(folder: Path) -> bool:
    return isinstance(stored_reader(fetcher_of(data.open(folder), verify="first", skip=False)), StoredByOps)


def test_batches_are_those_of_numpy(folder: Path) -> None:
    assert reads_by_ops(folder)
    found = batches(folder)
    assert found == batches(folder, ops=False)
    numbers = [number for *_, label, weight in found for number, kept in zip(label, weight, strict=True) if kept]
    assert sorted(numbers) == list(range(len(ROWS)))


def test_what_has_to_be_computed_goes_to_numpy(folder: Path, tmp_path: Path) -> None:
    writers.mds(tmp_path / "lists", [ROWS[:HALF], ROWS[HALF:]])
    assert not reads_by_ops(tmp_path / "lists")


def test_a_bad_example_is_named_or_skipped(ops: Records, tmp_path: Path) -> None:
    folder = tmp_path / "mds"
    writers.mds(folder, [ROWS[:HALF], ROWS[HALF:]], {"id": "int", "text": "str"})  # arrays would be read on opening
    path = folder / "shard.00001.mds"
    content = bytearray(path.read_bytes())
    (begin,) = struct.unpack_from("<I", content, 4)
    content[begin : begin + 4] = struct.pack("<I", 1 << 30)  # the number of bytes of its text
    path.write_bytes(content)
    with refused(CorruptDataError, mentions=(f"example {HALF}", path.name)):
        batches(folder)
    found = batches(folder, on_corrupt="skip")
    assert found == batches(folder, on_corrupt="skip", ops=False)
    numbers = [number for *_, label, weight in found for number, kept in zip(label, weight, strict=True) if kept]
    assert sorted(numbers) == [number for number in range(len(ROWS)) if number != HALF]


def test_a_file_that_was_written_anew_is_refused(folder: Path) -> None:
    reading = data.read(folder, global_batch_size=5, label="id")
    path = folder / "shard.00000.mds"
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))
    with refused(DataChangedError):
        list(reading)


def test_bytes_without_a_frame_lie_in_their_file_or_are_not_ok(ops: Records, tmp_path: Path) -> None:
    path, content = tmp_path / "a", bytes(range(40))
    path.write_bytes(content)
    places = [(0, 40), (0, 0), (40, 0), (39, 1), (7, 20), (1, 40), (41, 0), (-1, 3), *((huge, 3) for huge in HUGE)]
    places += [(3, huge) for huge in HUGE]
    offset, size = map(list, zip(*places, strict=True))
    zeros = [0] * len(places)
    parts, ok = ops.read_records([str(path)], zeros, offset, size, zeros, size, [True] * len(places), framed=False)
    is_there = [0 <= a <= 40 and 0 <= b <= 40 - a for a, b in places]
    assert ok.numpy().tolist() == is_there
    cut = [content[a : a + b] if there else b"" for (a, b), there in zip(places, is_there, strict=True)]
    assert parts.numpy().tolist() == cut
    begins = [0, 37, 38, -1, *HUGE]
    rows, ok = ops.read_rows([str(path)], [0] * len(begins), begins, [False] * len(begins), 3, framed=False)
    assert ok.numpy().tolist() == [True, True, *[False] * (len(begins) - 2)]
    assert rows.numpy()[:2].tolist() == [[0, 1, 2], [37, 38, 39]]
    assert not np.any(rows.numpy()[2:])
