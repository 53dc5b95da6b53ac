"""The index of a shard: the offsets of its records and some of their values, as a safetensors file next to the shard.

offset        int64 ``[records + 1]``: first byte of each record's frame, and the end of the last
start:NAME    uint32 ``[records]``: first byte of a text within the payload (layout extent)
size:NAME     uint32 ``[records]``: its bytes
value:NAME    ``[records, ...]``: values of features with a fixed size
"""

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
        try:
            arrays = safetensors.numpy.load(data)
        except Exception as error:  # what safetensors and NumPy raise about a stranger's file is not documented
            raise CorruptDataError(f"{name} is not an index ({error}).", path=name) from error
        for key, (dtype, shape) in wanted.items():
            if key not in arrays or arrays[key].dtype != dtype or arrays[key].shape != shape:
                raise CorruptDataError(
                    f"{name} has no array {key!r} of {dtype} and shape {shape}.", name=key, path=name
                )
        offsets = arrays["offset"]
        inside = (offsets >= 0) & (offsets <= shard.bytes)  # first, so that differences cannot overflow
        if not inside.all() or (np.diff(offsets) < record_framing.OVERHEAD_BYTES).any():
            raise CorruptDataError(f"{name} has records outside of {shard.file}.")
        return cls(offsets, {key: arrays[key] for key in wanted if key != "offset"})


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
