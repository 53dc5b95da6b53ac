"""A cache of aligned blocks of remote files, in memory or in a local folder that processes share.

Blocks stay until their bytes exceed a limit; then the least recently used go. A block in a folder is trusted only if
its length and its checksum are right. Threads that want the same block fetch it once.
"""

import functools
import hashlib
import itertools
import logging
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c

from tfdist import validation
from tfdist.errors import DeadlineError
from tfdist.storage.files import is_temporary, temporary_name
from tfdist.storage.ranges import Range, require_length

BLOCK_BYTES = 1 << 20
_WAIT_SECONDS = 3600.0  # for another thread's fetch, whose driver gives up long before
_SLACK = 16  # a folder is looked through when a 16th of its limit was written
_CHECKSUM_BYTES = 4
_BLOCK = re.compile(r".{64}\.block")
_log = logging.getLogger(__name__)


class File(NamedTuple):
    """A remote file in one state: its name, its size in bytes, and an identity that differs when its content does."""

    name: str
    size: int
    identity: str


class Block(NamedTuple):
    """One block of a file; the first has number 0."""

    file: File
    number: int


@dataclass(frozen=True)
class Counts:
    """The use of a cache: the blocks that it had, that it fetched, and that it evicted."""

    hits: int = 0
    misses: int = 0
    evicted: int = 0


class BlockCache:
    """A cache of blocks of remote files; threads may share one, and a pickled one starts empty.

    Args:
        limit_bytes: the most bytes that are kept. In a folder, each process may exceed it by a 16th for a moment.
        folder: the folder for the blocks, shared by processes of one host and kept for later runs. Default: in memory.
        block_bytes: the size of a block, in bytes.
    Raises:
        ConfigError: the limit is below one block.

    Example:
        >>> cache = BlockCache(limit_bytes=8, block_bytes=4)
        >>> file = File("letters", 10, "version 1")
        >>> cache.read_ranges([(file, 3, 4)], lambda wanted: [b"abcdefghij"[s : s + n] for _, s, n in wanted])
        [b'defg']
        >>> cache.counts()
        Counts(hits=0, misses=2, evicted=0)
    """

    def __init__(
        self, *, limit_bytes: int, folder: str | os.PathLike[str] | None = None, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self._block_bytes = validation.integer("block_bytes", block_bytes, minimum=1)
        self._limit_bytes = validation.integer(
            "limit_bytes", limit_bytes, minimum=block_bytes, hint="It must hold one block."
        )
        self._folder = None if folder is None else Path(os.path.abspath(os.path.expanduser(folder)))
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._coming: dict[Block, Future[bytes | None]] = {}
        self._counts = Counts()
        folder, limit = self._folder, self._limit_bytes
        self._store: _Memory | _Folder = _Memory(limit) if folder is None else _Folder(folder, limit)

    def __reduce__(self) -> tuple[Any, ...]:
        sizes = {"limit_bytes": self._limit_bytes, "block_bytes": self._block_bytes}
        return functools.partial(BlockCache, folder=self._folder, **sizes), ()

    def counts(self) -> Counts:
        """Return the use of the cache in this process."""
        return self._counts

    def clear(self) -> None:
        """Forget all blocks."""
        with self._lock:
            self._store.clear()

    def read_ranges(
        self, ranges: Sequence[tuple[File, int, int]], fetch: Callable[[list[Range]], Sequence[bytes]]
    ) -> list[bytes]:
        """Return the bytes of each (file, start, length), from blocks; missing blocks are fetched together.

        Args:
            ranges: the ranges as (file, start, length), in bytes; each must lie within its file.
            fetch: a function called with the sorted (name, start, length) of blocks, which returns the bytes of each.
        Raises:
            ShortReadError: a fetched block has the wrong length.
        """
        blocks = {Block(file, i): None for file, start, length in ranges for i in self._numbers(start, length)}
        have = self._obtain(list(blocks), fetch)
        return [self._cut(have, file, start, length) for file, start, length in ranges]

    def _numbers(self, start: int, length: int) -> range:
        return range(start // self._block_bytes, -(-(start + length) // self._block_bytes) if length else 0)

    def _length(self, block: Block) -> int:
        return min(self._block_bytes, block.file.size - block.number * self._block_bytes)

    def _cut(self, have: dict[Block, bytes], file: File, start: int, length: int) -> bytes:
        numbers = self._numbers(start, length)
        if len(numbers) == 0:
            return b""
        skipped = start - numbers[0] * self._block_bytes
        if len(numbers) == 1:
            return have[Block(file, numbers[0])][skipped : skipped + length]
        first, *middle, last = (memoryview(have[Block(file, i)]) for i in numbers)
        return b"".join([first[skipped:], *middle, last[: start + length - numbers[-1] * self._block_bytes]])

    def _obtain(self, blocks: list[Block], fetch: Callable[[list[Range]], Sequence[bytes]]) -> dict[Block, bytes]:
        if self._pid != os.getpid():  # a forked child: the threads that fetch for it, and hold its lock, are elsewhere
            self._start()
        have: dict[Block, bytes] = {}
        while missing := [block for block in blocks if block not in have]:
            ours: list[Block] = []
            try:
                theirs = self._claim(missing, have, ours)
                have.update(self._fetched(sorted(ours), fetch) if ours else {})
            finally:  # whatever happened, no thread waits for this one any longer
                if ours:
                    self._release(ours, have)
            for block, future in theirs.items():
                data = _result(future, block)
                if data is not None:  # else its thread failed, and this one tries in the next round
                    have[block] = data
        return have

    def _claim(
        self, missing: list[Block], have: dict[Block, bytes], ours: list[Block]
    ) -> dict[Block, Future[bytes | None]]:
        """Take the blocks that the store has; add those to fetch here to ``ours``, and return those on their way."""
        theirs: dict[Block, Future[bytes | None]] = {}
        with self._lock:
            for block in missing:
                data = self._store.get(block, self._length(block))
                if data is not None:
                    have[block] = data
                elif block in self._coming:
                    theirs[block] = self._coming[block]
                else:
                    ours.append(block)  # first: an interruption in between must leave nothing that is on its way
                    self._coming[block] = Future()
            self._count(hits=len(missing) - len(ours), misses=len(ours))
        return theirs

    def _fetched(self, ours: list[Block], fetch: Callable[[list[Range]], Sequence[bytes]]) -> dict[Block, bytes]:
        wanted = [(b.file.name, b.number * self._block_bytes, self._length(b)) for b in ours]
        done: dict[Block, bytes] = {}
        for block, one, data in zip(ours, wanted, fetch(wanted), strict=True):
            require_length(one, data)
            done[block] = data
        with self._lock:
            for block, data in done.items():
                self._count(evicted=self._store.put(block, data))
        return done

    def _release(self, ours: list[Block], have: dict[Block, bytes]) -> None:
        """Let threads that wait for these blocks have them, or try themselves."""
        with self._lock:
            for block in ours:
                if (future := self._coming.pop(block, None)) is not None:
                    future.set_result(have.get(block))

    def _count(self, *, hits: int = 0, misses: int = 0, evicted: int = 0) -> None:
        now = self._counts
        self._counts = Counts(now.hits + hits, now.misses + misses, now.evicted + evicted)


def _result(future: "Future[bytes | None]", block: Block) -> bytes | None:
    try:
        return future.result(_WAIT_SECONDS)
    except TimeoutError:
        raise DeadlineError(
            f"block {block.number} of {block.file.name}, which another thread fetches, did not come in "
            f"{_WAIT_SECONDS:g} seconds. Check the network, and the timeouts in storage_options."
        ) from None


class _Memory:
    """The store of blocks in memory, the last used at the end."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._blocks: OrderedDict[Block, bytes] = OrderedDict()
        self._bytes = 0

    def get(self, block: Block, length: int) -> bytes | None:
        data = self._blocks.get(block)
        if data is not None:
            self._blocks.move_to_end(block)
        return data

    def put(self, block: Block, data: bytes) -> int:
        """Store a block, and return the number of blocks that were evicted for it."""
        evicted = 0
        while self._bytes + len(data) > self._limit_bytes:
            self._bytes -= len(self._blocks.popitem(last=False)[1])
            evicted += 1
        self._blocks[block] = data
        self._bytes += len(data)
        return evicted

    def clear(self) -> None:
        self._blocks.clear()
        self._bytes = 0


class _Folder:
    """The store of blocks in files, each with its checksum at its end; a file's modification time is its last use.

    A block appears by renaming, so it is never read half. Nothing is synced to the disk: the checksum reveals the
    damage of a crash. Several processes may clean the folder at once.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder, self._limit_bytes = folder, limit_bytes
        self._bytes = 0  # in the folder, when it was last looked through, and written here since
        self._written = limit_bytes  # here since then: the first block has a look
        self._clock = itertools.count()
        self._is_broken = False

    def get(self, block: Block, length: int) -> bytes | None:
        path = self._path(block)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        content, checksum = data[:length], data[length:]
        if len(data) != length + _CHECKSUM_BYTES or checksum != _checksum(content):
            _log.warning("%s is damaged; the block is fetched again.", path)
            with suppress(OSError):
                path.unlink()
            return None
        self._touch(path)
        return content

    def put(self, block: Block, data: bytes) -> int:
        """Store a block, and return the number evicted for it; a folder that cannot be written keeps none."""
        path, size, evicted = self._path(block), len(data) + _CHECKSUM_BYTES, 0
        if size > self._limit_bytes:
            return 0
        temporary = path.with_name(temporary_name(path.name))
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._written + size > self._limit_bytes // _SLACK or self._bytes + size > self._limit_bytes:
                evicted = self._make_room(size)
            with open(temporary, "xb") as file:
                file.write(data)
                file.write(_checksum(data))
            self._touch(temporary)
            os.replace(temporary, path)
        except OSError as error:
            if not self._is_broken:
                _log.warning("Blocks are not kept in %s: %s. Reading continues without them.", self._folder, error)
            self._is_broken = True
        else:
            self._bytes += size
            self._written += size
        finally:
            with suppress(OSError):
                temporary.unlink()
        return evicted

    def clear(self) -> None:
        for path, _, _ in self._files():
            with suppress(OSError):
                os.unlink(path)
        self._bytes, self._written = 0, self._limit_bytes

    def _make_room(self, size: int) -> int:
        """Remove the least recently used blocks of a full folder, until about a 16th of the limit is free."""
        files = sorted(self._files(), key=lambda file: file[1])
        total, evicted = sum(size for _, _, size in files), 0
        if total + size <= self._limit_bytes:
            self._bytes, self._written = total, 0
            return 0
        # room for more than one: else a full folder is looked through for every block
        most = self._limit_bytes - max(0, self._limit_bytes // _SLACK - size)
        for path, _, length in files:
            if total + size <= most:
                break
            with suppress(OSError):
                os.unlink(path)
            total, evicted = total - length, evicted + 1
        self._bytes, self._written = total, 0
        return evicted

    def _files(self) -> Iterable[tuple[str, int, int]]:
        """Return (path, time of last use, size) of each block, and of the leftovers of killed writers."""
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                is_ours = _BLOCK.fullmatch(entry.name) or is_temporary(entry.name)
                with suppress(OSError):
                    if is_ours and entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        yield entry.path, status.st_mtime_ns, status.st_size

    def _touch(self, path: Path) -> None:
        with suppress(OSError):
            now = time.time_ns() + next(self._clock)  # blocks used within one tick of the clock keep their order
            os.utime(path, ns=(now, now))

    def _path(self, block: Block) -> Path:
        key = repr((*block.file, block.number)).encode("utf-8", "surrogatepass")
        return self._folder / f"{hashlib.sha256(key).hexdigest()}.block"


def _checksum(data: bytes) -> bytes:
    return int(google_crc32c.value(data)).to_bytes(_CHECKSUM_BYTES, "little")
