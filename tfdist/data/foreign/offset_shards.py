"""Shards that begin with the number of their samples and their offsets, as those of MDS and LitData do."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.foreign.foreign_files import Files, Foreign, Places
from tfdist.data.format.data_manifest import Shard

_Ids = NDArray[np.int64]


class OffsetShards(Foreign):
    """Samples that begin with the sizes of their columns that have no fixed one; `sizes` are those of all columns."""

    def __init__(self, files: Files, counts: Sequence[int], sizes: Mapping[str, int | None]) -> None:
        self.files = files
        self._sizes = sizes
        self._head = struct.Struct(f"<{sum(size is None for size in sizes.values())}I")
        self._fixed = sum(size or 0 for size in sizes.values())
        offsets = [_offsets(files, number, count) for number, count in enumerate(counts)]
        self._places = Places(counts, np.concatenate(offsets))
        self.begins = self._places.begins

    def described(self) -> list[Shard]:
        """The description of each shard."""
        counts = np.diff(self.begins).tolist()
        return [self.files.shard(number, count, self._places.of_file(number)) for number, count in enumerate(counts)]

    def samples(self, ids: _Ids) -> list[bytes]:
        return self.bytes_at(ids, *self._places(ids))

    def rows(self, ids: _Ids) -> dict[str, list[bytes]]:
        """The bytes of each column."""
        found: dict[str, list[bytes]] = {name: [] for name in self._sizes}
        columns = [(values, self._sizes[name]) for name, values in found.items()]
        head, fixed = self._head, self._fixed
        for number, data in zip(ids.tolist(), self.samples(ids), strict=True):
            given = head.unpack_from(data) if len(data) >= head.size else ()
            if head.size + fixed + sum(given) != len(data) or 4 * len(given) != head.size:
                raise self.bad(number, f"its columns do not take its {len(data)} bytes.")
            at, unsized = head.size, iter(given)
            for values, size in columns:
                end = at + (next(unsized) if size is None else size)
                values.append(data[at:end])
                at = end
        return found


def _offsets(files: Files, number: int, count: int) -> NDArray[Any]:
    content = files.maps[number]
    stored = int.from_bytes(content[:4].tobytes(), "little")
    if stored != count or len(content) < 8 + 4 * count:
        raise files.damaged(number, f"has {stored} samples in {len(content)} bytes; index.json says {count}.")
    offsets = np.frombuffer(content[4 : 8 + 4 * count].tobytes(), "<u4")
    if (offsets[1:] < offsets[:-1]).any() or offsets[0] < 8 + 4 * count or offsets[-1] > len(content):
        raise files.damaged(number, "has offsets that do not rise, or lead out of it.")
    return offsets
