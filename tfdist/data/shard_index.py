"""Where the records of a shard stand, and what is known of them without reading them: safetensors beside the shard.

offset        int64 ``[records + 1]``: first byte of each record's frame, and the end of the last
start:NAME    uint32 ``[records]``: first byte of a text within the payload (layout extent)
size:NAME     uint32 ``[records]``: its bytes
value:NAME    ``[records, ...]``: values of features with a fixed size
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import google_crc32c
import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from tfdist.data import example, records
from tfdist.data.layout import EXTENT, indexed_values
from tfdist.data.manifest import Shard
from tfdist.data.schema import Schema
from tfdist.errors import CorruptDataError


@dataclass(frozen=True)
class Index:
    """The index of one shard.

    Attributes:
        offsets: int64, ``[records + 1]``.
        columns: the other arrays by their names in the file.
    """

    offsets: NDArray[np.int64]
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the file that `from_bytes` reads."""
        arrays = {name: np.ascontiguousarray(values) for name, values in self.columns.items()}
        return bytes(safetensors.numpy.save({"offset": self.offsets, **arrays}))

    @classmethod
    def from_bytes(cls, data: bytes, shard: Shard, schema: Schema, layout: str) -> "Index":
        """Return the index that `to_bytes` wrote, if it fits the shard, whoever wrote it.

        Raises:
            CorruptDataError: it does not.
        """
        assert shard.index is not None
        name = shard.index.file
        if len(data) != shard.index.bytes or google_crc32c.value(data) != shard.index.crc32c:
            raise CorruptDataError(f"{name} is not what was written: its {len(data)} bytes have another checksum.")
        try:
            arrays = safetensors.numpy.load(data)
        except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
            raise CorruptDataError(f"{name} is no index ({error}).") from error
        wanted = arrays_of(shard.examples, schema, layout)
        for key, (dtype, shape) in wanted.items():
            if key not in arrays or arrays[key].dtype != dtype or arrays[key].shape != shape:
                raise CorruptDataError(f"{name} has no array {key!r} of {dtype} and shape {shape}.")
        offsets = arrays.pop("offset")
        lengths = np.diff(offsets)
        if offsets[0] < 0 or offsets[-1] > shard.bytes or (lengths < records.OVERHEAD_BYTES).any():
            raise CorruptDataError(f"{name} has records outside of {shard.file}.")
        return cls(offsets, arrays)


def arrays_of(count: int, schema: Schema, layout: str) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Return dtype and shape of each array of the index of ``count`` records."""
    found: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {"offset": (np.dtype(np.int64), (count + 1,))}
    for name in texts_of(schema, layout):
        found[f"start:{name}"] = found[f"size:{name}"] = (np.dtype(np.uint32), (count,))
    for name in indexed_values(schema, layout):
        feature = schema[name]
        found[f"value:{name}"] = (np.dtype(feature.dtype), (count, *(dim or 0 for dim in feature.shape)))
    return found


def texts_of(schema: Schema, layout: str) -> list[str]:
    """Return the features whose place in the payload stands in the index."""
    return [name for name, feature in schema.items() if not feature.is_fixed] if layout == EXTENT else []


def index_of(data: Any, shard: str, schema: Schema, layout: str) -> Index:
    """Return the index of a shard, from the shard itself.

    Args:
        data: its bytes, or a memory map.
        shard: its name, for messages.
        schema: of its examples.
        layout: extent or generic.
    Raises:
        CorruptDataError: a record does not have its checksum, or is no example of the schema.
    """
    found = records.scan(data)
    if found.problem:
        raise CorruptDataError(f"{shard}: at byte {int(found.offsets[-1])} there is {found.problem}.")
    count = len(found.offsets) - 1
    columns = {
        key: np.zeros(shape, dtype)
        for key, (dtype, shape) in arrays_of(count, schema, layout).items()
        if key != "offset"
    }
    texts, values = texts_of(schema, layout), indexed_values(schema, layout)
    for place in range(count if columns else 0):
        begin = int(found.offsets[place]) + records.HEADER_BYTES
        payload = bytes(data[begin : int(found.offsets[place + 1]) - 4])
        if not records.payload_fits(data, int(found.offsets[place]), len(payload)):
            raise CorruptDataError(f"{shard}: record {place} at byte {begin - records.HEADER_BYTES} is corrupt.")
        parsed, spans = example.parse(payload), example.extents(payload) if texts else {}
        for name in texts:
            if name not in spans:
                raise CorruptDataError(f"{shard}: record {place} has not exactly one value of bytes in {name!r}.")
            columns[f"start:{name}"][place], columns[f"size:{name}"][place] = spans[name]
        for name in values:
            columns[f"value:{name}"][place] = example.value(name, schema[name], parsed)
    return Index(found.offsets, columns)
