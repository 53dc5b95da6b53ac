"""The .bin and .idx files of Megatron: token sequences, and an index of their types, lengths and places."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tfdist.data.examples.computed_examples import Columns
from tfdist.data.foreign.foreign_files import Files, Foreign
from tfdist.data.format.schema import Feature, Schema
from tfdist.errors import CorruptDataError

MAGIC = b"MMIDIDX\x00\x00"
#: the dtypes by their codes
DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}
_PARTS = [(9, 17), (17, 18), (18, 26), (26, 34)]  # of the header behind it
_HEADER = 34
_Ids = NDArray[np.int64]


class Tokens(Foreign):
    """Token sequences as examples with `tokens`, of any length, and `document`, the number of the document."""

    def __init__(self, files: Files, dtype: str, lengths: _Ids, pointers: _Ids, documents: _Ids) -> None:
        self._dtype, self._lengths, self._pointers = np.dtype(dtype), lengths, pointers
        ends = np.searchsorted(documents, np.arange(len(lengths)), side="right") - 1
        self._document = ends.astype(np.int64)
        shard = files.shard(0, len(lengths), lengths, pointers, documents, np.frombuffer(dtype.encode(), np.uint8))
        super().__init__(files, [shard])

    def _schema(self) -> Schema:
        return Schema({"tokens": Feature(self._dtype.name, (None,), encoding="raw"), "document": Feature("int64")})

    def columns(self, ids: _Ids, names: Iterable[str]) -> Columns:
        found: Columns = {}
        for name in names:
            if name == "document":
                found[name] = self._document[ids]
            else:
                parts = self.bytes_at(ids, self._pointers[ids], self._lengths[ids] * self._dtype.itemsize)
                found[name] = [np.frombuffer(part, self._dtype) for part in parts]
        return found

    def lengths(self, name: str) -> _Ids:
        return self._lengths if name == "tokens" else super().lengths(name)


def open_tokens(base: Path) -> Tokens | None:
    """Return the files base.bin and base.idx; None if the index is of something else."""
    index = base.with_name(base.name + ".idx")
    with open(index, "rb") as file:
        head = file.read(_HEADER)
    if not head.startswith(MAGIC):
        return None
    data = np.fromfile(index, np.uint8)
    version, code, count, documents = (int.from_bytes(head[at:end], "little") for at, end in _PARTS)
    expected = _HEADER + 12 * count + 8 * documents
    modes = len(data) - expected
    if version != 1 or code not in DTYPES or modes not in (0, count):
        raise CorruptDataError(
            f"{index} has version {version}, the dtype {code} and {len(data)} bytes for {count} sequences of "
            f"{documents} documents; version 1, a dtype of {sorted(DTYPES)} and {expected} bytes are required.",
            path=str(index),
        )
    at = _HEADER
    lengths = np.frombuffer(data, "<i4", count, at).astype(np.int64)
    pointers = np.frombuffer(data, "<i8", count, at + 4 * count).astype(np.int64)
    bounds = np.frombuffer(data, "<i8", documents, at + 12 * count).astype(np.int64)
    files = Files([base.with_name(base.name + ".bin")], "megatron")
    ends = pointers + lengths * np.dtype(DTYPES[code]).itemsize
    size = len(files.maps[0])
    if count and (lengths.min() < 0 or pointers.min() < 0 or ends.max() > size):
        raise files.damaged(0, f"has {size} bytes; its index names bytes up to {int(ends.max())}.")
    if documents and (np.diff(bounds).min(initial=0) < 0 or bounds[0] != 0 or bounds[-1] > count):
        raise CorruptDataError(f"{index} has documents that do not rise from 0 to {count}.", path=str(index))
    return Tokens(files, DTYPES[code], lengths, pointers, bounds)
