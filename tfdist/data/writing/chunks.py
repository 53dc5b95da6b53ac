"""Encoded records of a source, taken in chunks: what fits into a shard, wherever the blocks of the source end."""

from collections.abc import Iterator
from typing import Any

from tfdist.data.sources.protocol import Source
from tfdist.data.writing.encode import Encoded, Encoder


def blocks_from(source: Source, start: int) -> Iterator[Any]:
    """Yield the blocks from an example on; what a source that cannot be entered there gives before is left out."""
    if source.seekable or not start:
        yield from source.blocks(start, None)
        return
    skipped = 0
    for block in source.blocks(0, None):
        count = len(next(iter(block.values())))
        if skipped + count > start:
            yield {name: values[max(0, start - skipped) :] for name, values in block.items()}
        skipped += count


class Chunks:
    """Blocks, taken in chunks that fit what is left of a shard."""

    def __init__(self, blocks: Iterator[Any]) -> None:
        self._blocks = blocks
        self._block: Any = None
        self._encoded: Encoded | None = None

    def more(self) -> bool:
        """Whether an example is left."""
        while self._encoded is None and self._block is None:
            block = next(self._blocks, None)
            if block is None:
                return False
            self._block = block if len(next(iter(block.values()))) else None
        return True

    def next(self, encode: Encoder, count: int) -> Iterator[Encoded]:
        """Yield so many records, or all that are left."""
        while count and self.more():
            encoded = self.take(encode, room=count, room_bytes=0)
            assert encoded is not None
            count -= len(encoded.ends)
            yield encoded

    def take(self, encode: Encoder, *, room: int | None, room_bytes: int) -> Encoded | None:
        """Return the next records, up to a number of them or until their bytes are reached; None if none fits."""
        if self._encoded is None:
            self._encoded, self._block = encode(self._block), None
        encoded = self._encoded
        stop = room if room is not None else int((encoded.ends - encoded.ends[0]).searchsorted(max(room_bytes, 0)))
        if room is None and room_bytes > 0:
            stop = max(1, stop)
        stop = min(stop, len(encoded.ends))
        if stop <= 0:
            return None
        self._encoded = encoded.cut(stop, len(encoded.ends)) if stop < len(encoded.ends) else None
        return encoded.cut(0, stop)
