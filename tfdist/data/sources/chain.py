"""Several sources as one, one behind the other.

Example:
    >>> from tfdist.data.sources.memory.array_source import open_arrays
    >>> whole = chained([open_arrays({"x": [1, 2]}), open_arrays({"x": [3]})])
    >>> whole.count, [block["x"].tolist() for block in whole.blocks(1, 3)]
    (3, [[2], [3]])
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.sources.example_blocks import cut
from tfdist.data.sources.protocol import Block, Source


def chained(sources: Sequence[Source]) -> Source:
    """Return the sources as one; all must have been opened with one schema."""
    return sources[0] if len(sources) == 1 else Chain(sources)


class Chain:
    """The examples of several sources; seekable when all of them are."""

    def __init__(self, sources: Sequence[Source]) -> None:
        counts = [source.count for source in sources]
        sizes = [source.sizes for source in sources]
        self._sources = list(sources)
        self.schema = sources[0].schema
        self.count: int | None = None if None in counts else sum(count or 0 for count in counts)
        known = [size for size in sizes if size is not None]
        self.sizes: NDArray[np.int64] | None = np.concatenate(known) if len(known) == len(sizes) else None
        self.seekable = all(source.seekable for source in sources)
        self.identity: dict[str, Any] = {"kind": "chain", "parts": [source.identity for source in sources]}
        self.identifies = all(source.identifies for source in sources)

    def blocks(self, start: int, stop: int | None) -> Iterator[Block]:
        """Yield the examples from ``start`` to ``stop``."""
        if self.count is None:
            return cut((block for source in self._sources for block in source.blocks(0, None)), start, stop)
        return self._found(start, self.count if stop is None else stop)

    def _found(self, start: int, stop: int) -> Iterator[Block]:
        at = 0
        for source in self._sources:
            count = source.count or 0
            if at < stop and at + count > start:
                yield from source.blocks(max(start - at, 0), min(stop - at, count))
            at += count
