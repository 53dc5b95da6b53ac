"""Files of a directory that is left as it is, and what belongs to them in a folder elsewhere, as one storage."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO

from tfdist.storage.directory import Storage
from tfdist.storage.local_storage import LOCK_SECONDS


class Overlay:
    """A `tfdist.storage.directory.Storage` that reads some files of one directory and writes into another."""

    def __init__(self, files: Storage, names: Sequence[str], notes: Storage, *, url: str) -> None:
        self.url: str = url
        self.local: Path | None = files.local
        self._files = files
        self._names = frozenset(names)
        self._notes = notes

    def names(self) -> list[str]:
        """Return the names of the files of both, sorted."""
        return sorted(self._names.union(self._notes.names()))

    def size(self, name: str) -> int:
        """Return the size of a file in bytes."""
        return self._of(name).size(name)

    @property
    def fetched(self) -> float:
        """When bytes of a file came last."""
        return self._files.fetched

    def state(self, name: str) -> Any:
        """Return what differs when a file does, as it is now."""
        return self._of(name).state(name)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Return ``length`` bytes from ``start``, or all that follow."""
        return self._of(name).read(name, start, length)

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Return the bytes of each (name, start, length), in the order of ``ranges``."""
        found = [b""] * len(ranges)
        for place in (self._files, self._notes):
            chosen = [number for number, (name, _, _) in enumerate(ranges) if self._of(name) is place]
            for number, data in zip(chosen, place.read_ranges([ranges[i] for i in chosen]), strict=True):
                found[number] = data
        return found

    def create(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Write a file beside the others in a block, whole or not at all."""
        return self._notes.create(name)

    def append(self, name: str, line: bytes) -> None:
        """Add a line to a file beside the others."""
        self._notes.append(name, line)

    def remove(self, name: str) -> None:
        """Remove a file beside the others."""
        self._notes.remove(name)

    def lock(
        self, *, timeout_seconds: float = LOCK_SECONDS, on_wait: Callable[[str], None] | None = None
    ) -> AbstractContextManager[None]:
        """Be the only writer beside the others for a block."""
        return self._notes.lock(timeout_seconds=timeout_seconds, on_wait=on_wait)

    def _of(self, name: str) -> Storage:
        return self._files if name in self._names else self._notes
