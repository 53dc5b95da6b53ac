"""The index of a shard: the offsets of its records and some of their values, as a safetensors file next to the shard.

offset        int64 ``[records + 1]``: first byte of each record's frame, and the end of the last
start:NAME    uint32 ``[records]``: first byte of a text within the payload (layout extent)
size:NAME     uint32 ``[records]``: its bytes
value:NAME    ``[records, ...]``: values of features with a fixed size
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from tfdist.data.format import record_framing
from tfdist.data.format.data_manifest import Manifest, Shard
from tfdist.data.format.schema import Schema, indexed_values, texts_of
from tfdist.errors import CorruptDataError
from tfdist.storage.directory import Storage

_STEP = 1 << 16  # number of offsets that are checked at a time
_HEADER_BYTES = 256  # of an array in a safetensors file, and more than it takes


@dataclass(frozen=True)
class Index:
    """The index of one shard: offsets, int64 ``[records + 1]``, and the other arrays by their names in the file."""

    offsets: NDArray[np.int64]
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        arrays = {name: np.ascontiguousarray(values) for name, values in self.columns.items()}
        return bytes(safetensors.numpy.save({"offset": self.offsets, **arrays}))

    @classmethod
    def from_bytes(cls, data: bytes, shard: Shard, schema: Schema, layout: str) -> "Index":
        """Return the index that `to_bytes` wrote, after checking that it fits the shard."""
        assert shard.index is not None
        name = shard.index.file
        wanted = arrays_of(shard.examples, schema, layout)
        if len(data) != shard.index.bytes or google_crc32c.value(data) != shard.index.crc32c:
            raise CorruptDataError(f"{name} is not what was written: its {len(data)} bytes have another checksum.")
        arrays = {key: _view(data, key, dtype, shape, name) for key, (dtype, shape) in wanted.items()}
        offsets = arrays["offset"]
        if not all(_rise(offsets[at : at + _STEP + 1], shard.bytes) for at in range(0, shard.examples + 1, _STEP)):
            raise CorruptDataError(f"{name} has records outside of {shard.file}.")
        return cls(offsets, {key: arrays[key] for key in wanted if key != "offset"})


def _view(data: bytes, key: str, dtype: np.dtype[Any], shape: tuple[int, ...], name: str) -> NDArray[Any]:
    """Return an array of a safetensors file without a copy; `safetensors.numpy.load` copies all arrays."""
    kind = "BOOL" if dtype.kind == "b" else f"{dtype.kind.upper()}{8 * dtype.itemsize}"
    count = math.prod(shape)
    try:
        end = 8 + int.from_bytes(data[:8], "little")
        about = json.loads(data[8:end]).get(key, {"dtype": None})
        if about["dtype"] != kind or tuple(about["shape"]) != shape:
            raise CorruptDataError(f"{name} has no array {key!r} of {dtype} and shape {shape}.", name=key, path=name)
        begin, last = about["data_offsets"]
        if begin < 0 or last - begin != count * dtype.itemsize:
            raise ValueError(f"{key} has the bytes {begin} to {last}")
        return np.frombuffer(data, dtype, count, end + begin).reshape(shape)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, CorruptDataError):
            raise
        raise CorruptDataError(f"{name} is not an index ({error!r}).", path=name) from error


def _rise(offsets: NDArray[np.int64], last: int) -> bool:
    """Return whether offsets are inside the file and leave room for the frames of records."""
    inside = (offsets >= 0) & (offsets <= last)  # first, so that differences cannot overflow
    return bool(inside.all() and (np.diff(offsets) >= record_framing.OVERHEAD_BYTES).all())


def arrays_of(count: int, schema: Schema, layout: str) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    found: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {"offset": (np.dtype(np.int64), (count + 1,))}
    for name in texts_of(schema, layout):
        found[f"start:{name}"] = found[f"size:{name}"] = (np.dtype(np.uint32), (count,))
    for name in indexed_values(schema, layout):
        feature = schema[name]
        found[f"value:{name}"] = (np.dtype(feature.dtype), (count, *(dim or 0 for dim in feature.shape)))
    return found


def stored_index(place: Storage, found: Manifest, shard: Shard) -> Index:
    assert shard.index is not None
    size = place.size(shard.index.file)
    arrays = arrays_of(shard.examples, found.schema, found.layout)
    contents = sum(dtype.itemsize * math.prod(shape) for dtype, shape in arrays.values())
    most = contents + _HEADER_BYTES * len(arrays) + sum(6 * len(name) for name in arrays)  # JSON may escape names
    if size != shard.index.bytes or size > most:
        raise CorruptDataError(
            f"{shard.index.file} has {size} bytes; the manifest says {shard.index.bytes}, and an index of "
            f"{shard.examples} examples has at most {most}."
        )
    return Index.from_bytes(place.read(shard.index.file, 0, size), shard, found.schema, found.layout)
