"""Shards that begin with the number of their samples and their offsets, such as those of MDS and LitData."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.foreign.foreign_files import Files, Foreign, Places

_Ids = NDArray[np.int64]


class OffsetShards(Foreign):
    """Samples that begin with the sizes of their columns of varying size; `sizes` has the sizes of all columns."""

    def __init__(self, files: Files, counts: Sequence[int], sizes: Mapping[str, int | None]) -> None:
        self._sizes = sizes
        self._head = 4 * sum(size is None for size in sizes.values())
        offsets = [_offsets(files, number, count) for number, count in enumerate(counts)]
        self._places = Places(counts, np.concatenate(offsets))
        super().__init__(files, self._places.shards(files))

    def samples(self, ids: _Ids) -> list[bytes]:
        return self.bytes_at(ids, *self._places(ids))

    def extents(self, ids: _Ids) -> dict[str, tuple[_Ids, _Ids]]:
        """Return the first byte and the size of each column, in the files of these samples."""
        begins, wholes = self._places(ids)
        wrong = wholes < self._head
        heads = np.zeros((len(ids), 0), np.uint32)
        if self._head and not wrong.any():
            heads = self.arrays_at(ids, begins, self._head).view("<u4")
        given = iter(heads.T.astype(np.int64))
        at, found = begins + self._head, {}
        for name, size in self._sizes.items():
            sizes = next(given, wholes) if size is None else np.full(len(ids), size)
            found[name] = at, sizes
            at = at + sizes
        wrong |= at != begins + wholes
        if wrong.any():
            place = int(np.argmax(wrong))
            raise self.bad(int(ids[place]), f"its columns do not take its {wholes[place]} bytes.")
        return found

    def rows(self, ids: _Ids) -> dict[str, list[bytes]]:
        """Return the bytes of each column."""
        return {name: self.bytes_at(ids, *extent) for name, extent in self.extents(ids).items()}


def _offsets(files: Files, number: int, count: int) -> NDArray[Any]:
    content = files.maps[number]
    stored = int.from_bytes(content[:4].tobytes(), "little")
    if stored != count or len(content) < 8 + 4 * count:
        raise files.damaged(number, f"has {stored} samples in {len(content)} bytes; index.json says {count}.")
    offsets = np.frombuffer(content[4 : 8 + 4 * count].tobytes(), "<u4")
    if (offsets[1:] < offsets[:-1]).any() or offsets[0] < 8 + 4 * count or offsets[-1] > len(content):
        raise files.damaged(number, "has offsets that do not rise, or lead out of it.")
    return offsets
