"""One shard on its way to a storage: records as they come, then the index, both whole or not at all."""

import contextlib
from types import TracebackType
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tfdist.data.encode import Encoded
from tfdist.data.layout import FIXED
from tfdist.data.manifest import IndexFile, Shard
from tfdist.data.records import OVERHEAD_BYTES
from tfdist.data.shard_index import Index
from tfdist.data.storage import Storage


def shard_name(number: int) -> str:
    """Return the file of a shard.

    Example:
        >>> shard_name(7)
        'data-00007.tfrecord'
    """
    return f"data-{number:05}.tfrecord"


def index_name(shard: str) -> str:
    """Return the index that belongs to a shard's file."""
    return shard.removesuffix(".tfrecord") + ".index"


class ShardWriter:
    """Writes one shard in a ``with`` block; nothing is visible when the block ends by an error.

    Args:
        storage: where to.
        name: of the shard's file.
        layout: of the directory.
    """

    def __init__(self, storage: Storage, name: str, layout: str) -> None:
        self._storage = storage
        self._name = name
        self._layout = layout
        self._ends: list[NDArray[np.int64]] = []
        self._columns: list[Any] = []
        self._crc = 0
        self.bytes = 0
        self.examples = 0
        self.shard: Shard | None = None

    def __enter__(self) -> "ShardWriter":
        self._stack = contextlib.ExitStack()
        self._file = self._stack.enter_context(self._storage.create(self._name))
        return self

    def add(self, encoded: Encoded) -> None:
        """Append records."""
        data = encoded.data if isinstance(encoded.data, bytes) else bytes(encoded.data)
        self._file.write(data)
        self._crc = google_crc32c.extend(self._crc, data)
        self._ends.append(encoded.ends + self.bytes)
        self._columns.append(encoded.columns)
        self.bytes += len(data)
        self.examples += len(encoded.ends)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
        if error is None:
            self.shard = self._described()

    def _described(self) -> Shard:
        offsets = np.concatenate([np.zeros(1, np.int64), *self._ends])
        lengths = np.diff(offsets) - OVERHEAD_BYTES
        index = None
        if self._layout != FIXED:
            names = self._columns[0] if self._columns else {}
            columns = {name: np.concatenate([found[name] for found in self._columns]) for name in names}
            index = store_index(self._storage, self._name, Index(offsets, columns))
        return Shard(
            file=self._name,
            examples=self.examples,
            bytes=self.bytes,
            crc32c=self._crc,
            smallest=int(lengths.min()) if len(lengths) else 0,
            largest=int(lengths.max()) if len(lengths) else 0,
            index=index,
        )


def store_index(storage: Storage, shard: str, index: Index) -> IndexFile:
    """Write the index of a shard, and return what a manifest says of it."""
    data, name = index.to_bytes(), index_name(shard)
    with storage.create(name) as file:
        file.write(data)
    return IndexFile(file=name, bytes=len(data), crc32c=google_crc32c.value(data))
