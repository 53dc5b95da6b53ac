"""The cache of blocks: what it keeps, what goes, what it believes, and who fetches."""

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from tfdist.errors import ConfigError, ShortReadError
from tfdist.storage import block_cache
from tfdist.storage.block_cache import BlockCache, Counts, File
from tfdist.storage.ranges import Range

CONTENT = bytes(range(100))
FILE = File("f", 100, "version 1")
WAIT_SECONDS = 200


class Remote:
    """A store that keeps the numbers of the fetched blocks."""

    def __init__(self) -> None:
        self.fetched: list[int] = []

    def __call__(self, wanted: Sequence[Range]) -> list[bytes]:
        self.fetched += [start // 10 for _, start, _ in wanted]
        return [CONTENT[start : start + length] for _, start, length in wanted]

    def blocks(self, cache: BlockCache, *numbers: int) -> list[int]:
        """Read blocks one after the other, and return which were fetched."""
        self.fetched.clear()
        for number in numbers:
            [data] = cache.read_ranges([(FILE, 10 * number, 10)], self)
            assert data == CONTENT[10 * number : 10 * number + 10]
        return list(self.fetched)


@pytest.fixture(params=["memory", "folder"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[int], BlockCache]:
    """Makes caches for so many blocks of 10 bytes (and the checksum of 4 that a folder adds)."""
    in_memory = request.param == "memory"

    def made(blocks: int) -> BlockCache:
        size, folder = (10, None) if in_memory else (14, tmp_path / "größe cache")
        return BlockCache(limit_bytes=blocks * size, block_bytes=10, folder=folder)

    return made


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=10), st.integers(1, 120), st.integers(1, 9)
)
def test_any_ranges(ranges: list[tuple[int, int]], block_bytes: int, blocks: int) -> None:
    wanted = [(FILE, min(a, b), abs(a - b)) for a, b in ranges]
    cache, remote = BlockCache(limit_bytes=block_bytes * blocks, block_bytes=block_bytes), Remote()
    for _ in range(2):
        assert cache.read_ranges(wanted, remote) == [CONTENT[s : s + n] for _, s, n in wanted]


def test_hits_are_counted(make: Callable[[int], BlockCache]) -> None:
    cache, remote = make(5), Remote()
    assert cache.read_ranges([(FILE, 5, 20), (FILE, 8, 4), (FILE, 95, 5), (FILE, 3, 0)], remote) == [
        CONTENT[5:25],
        CONTENT[8:12],
        CONTENT[95:],
        b"",
    ]
    assert remote.fetched == [0, 1, 2, 9]
    assert remote.blocks(cache, 0, 2, 3) == [3]
    assert cache.counts() == Counts(hits=2, misses=5, evicted=0)


def test_what_was_not_used_for_the_longest_time_goes_first(make: Callable[[int], BlockCache]) -> None:
    cache, remote = make(3), Remote()
    assert remote.blocks(cache, 0, 1, 2, 0) == [0, 1, 2]
    assert remote.blocks(cache, 3) == [3]  # 1 goes
    assert remote.blocks(cache, 0, 2, 3) == []
    assert remote.blocks(cache, 1) == [1]  # 0 goes
    assert remote.blocks(cache, 2, 3, 1, 0) == [0]
    assert cache.counts().evicted == 3


def test_the_limit_is_kept(make: Callable[[int], BlockCache], tmp_path: Path) -> None:
    cache, remote = make(4), Remote()
    for number in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 3, 1):
        remote.blocks(cache, number)
        assert size_of(tmp_path) <= 4 * 14
    assert cache.counts().misses - cache.counts().evicted == 4
    assert cache.read_ranges([(FILE, 0, 100)], remote) == [CONTENT]  # more than it may keep
    assert size_of(tmp_path) <= 4 * 14
    cache.clear()
    assert size_of(tmp_path) == 0
    assert remote.blocks(cache, 1) == [1]


def test_a_full_folder_is_not_looked_through_for_every_block(tmp_path: Path) -> None:
    class Counted(BlockCache):
        looks = 0

    cache = Counted(limit_bytes=64 * 14, folder=tmp_path, block_bytes=10)
    file, store = FILE._replace(size=10_000), cache._store
    assert isinstance(store, block_cache._Folder)
    listed = store._files

    def files() -> Any:
        Counted.looks += 1
        return listed()

    store._files = files  # type: ignore[method-assign]
    for number in range(320):
        cache.read_ranges([(file, 10 * number, 10)], lambda wanted: [bytes(size) for _, _, size in wanted])
        assert size_of(tmp_path) <= 64 * 14
    assert Counted.looks <= 320 / 4 + 16  # of 64 blocks four are a 16th


def test_an_error_of_the_store_lets_other_threads_try(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, remote = BlockCache(limit_bytes=100, block_bytes=10), Remote()
    with monkeypatch.context() as broken:
        broken.setattr(cache._store, "put", lambda block, data: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            remote.blocks(cache, 0, 1)
    assert not cache._coming
    assert remote.blocks(cache, 0, 1) == [0, 1]


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_another_version_is_another_file(make: Callable[[int], BlockCache]) -> None:
    cache, remote = make(9), Remote()
    remote.blocks(cache, 0)
    for other in (FILE._replace(identity="version 2"), FILE._replace(name="g"), FILE._replace(size=99)):
        remote.fetched.clear()
        cache.read_ranges([(other, 0, 10)], remote)
        assert remote.fetched == [0]


def test_a_block_of_the_wrong_length_is_refused(make: Callable[[int], BlockCache]) -> None:
    cache = make(9)
    for wrong in (b"short", b"x" * 11, b""):
        with refused(ShortReadError, path="f", mentions=["10 from byte 0"]):
            cache.read_ranges([(FILE, 0, 5)], lambda _, wrong=wrong: [wrong])  # type: ignore[misc]
    assert Remote().blocks(cache, 0) == [0]  # nothing of it was kept, and nobody waits for it


def test_a_fetch_that_fails_is_tried_again(make: Callable[[int], BlockCache]) -> None:
    cache = make(9)
    with pytest.raises(KeyboardInterrupt):
        cache.read_ranges([(FILE, 0, 50)], lambda _: (_ for _ in ()).throw(KeyboardInterrupt))  # type: ignore[arg-type]
    assert Remote().blocks(cache, 0, 1) == [0, 1]


@pytest.mark.parametrize("fails", [False, True])
def test_threads_that_want_the_same_block_fetch_it_once(make: Callable[[int], BlockCache], fails: bool) -> None:
    cache, remote, results = make(9), Remote(), []

    def second() -> None:
        results.append(cache.read_ranges([(FILE, 0, 20)], remote))

    other = threading.Thread(target=second)

    def first(wanted: Sequence[Range]) -> list[bytes]:
        before, pause = cache.counts().hits, threading.Event()
        other.start()  # while this one fetches, the other comes to wait for it
        for _ in range(WAIT_SECONDS * 1000):
            if cache.counts().hits > before:
                break
            pause.wait(0.001)
        if fails:
            raise OSError("line broken")
        return Remote()(wanted)

    try:
        data = cache.read_ranges([(FILE, 0, 10)], first)
    except OSError:
        assert fails
    else:
        assert data == [CONTENT[:10]]
    other.join(WAIT_SECONDS)
    assert results == [[CONTENT[:20]]]
    assert remote.fetched == ([1, 0] if fails else [1])


def test_many_threads(make: Callable[[int], BlockCache]) -> None:
    cache, remote, wrong = make(4), Remote(), []

    def work(seed: int) -> None:
        for i in range(30):
            start = (seed * 7 + i * 13) % 90
            if cache.read_ranges([(FILE, start, 10), (FILE, 0, 5)], remote) != [
                CONTENT[start : start + 10],
                CONTENT[:5],
            ]:
                wrong.append((seed, i))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert not wrong


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: data + b"x",
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    ],
)
def test_a_damaged_block_is_fetched_again(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    cache, remote = BlockCache(limit_bytes=1000, block_bytes=10, folder=tmp_path), Remote()
    assert remote.blocks(cache, 0, 1) == [0, 1]
    for path in tmp_path.iterdir():
        path.write_bytes(damage(path.read_bytes()))
    assert remote.blocks(cache, 0, 1) == [0, 1]
    assert remote.blocks(cache, 0, 1) == []


SECOND = """
import sys
from tfdist.storage.block_cache import BlockCache, File
content = bytes(range(100))
cache = BlockCache(limit_bytes=int(sys.argv[2]), block_bytes=10, folder=sys.argv[1])
for number in map(int, sys.argv[3:]):
    fetch = lambda wanted: [content[s : s + n] for _, s, n in wanted]
    assert cache.read_ranges([(File("f", 100, "version 1"), 10 * number, 10)], fetch) == [content[10 * number :][:10]]
print(cache.counts().hits, cache.counts().misses)
"""


def second_process(folder: Path, limit: int, *numbers: int) -> str:
    command = [sys.executable, "-c", SECOND, str(folder), str(limit), *map(str, numbers)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    cache, remote = BlockCache(limit_bytes=70, block_bytes=10, folder=tmp_path), Remote()
    remote.blocks(cache, 0, 1, 2)
    assert second_process(tmp_path, 70, 2, 1, 0, 3, 4) == "3 2"
    assert remote.blocks(cache, 3, 4) == []
    assert remote.blocks(cache, 5) == [5]  # 2 goes: the other process did not use it for the longest time
    assert size_of(tmp_path) == 70
    assert remote.blocks(cache, 0, 1, 3, 4, 5) == []


def test_what_a_killed_writer_left_goes_with_the_rest(tmp_path: Path) -> None:
    left = tmp_path / f".{'0' * 64}.block.{'0' * 16}.tmp"
    left.write_bytes(bytes(14))
    os.utime(left, (1, 1))
    (tmp_path / "notes.txt").write_text("not a block")
    cache, remote = BlockCache(limit_bytes=28, block_bytes=10, folder=tmp_path), Remote()
    remote.blocks(cache, 0, 1, 2)
    assert not left.exists()
    assert (tmp_path / "notes.txt").exists()


def test_a_folder_that_cannot_be_written_is_no_reason_to_fail(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("no folder")
    cache, remote = BlockCache(limit_bytes=100, block_bytes=10, folder=tmp_path / "file" / "below"), Remote()
    assert remote.blocks(cache, 0, 0, 1) == [0, 0, 1]
    assert len(caplog.records) == 1
    assert str(tmp_path / "file") in caplog.text


def test_a_limit_below_one_block() -> None:
    with refused(ConfigError, name="limit_bytes", received=9):
        BlockCache(limit_bytes=9, block_bytes=10)


def test_a_pickled_cache_starts_anew(make: Callable[[int], BlockCache]) -> None:
    cache = make(5)
    Remote().blocks(cache, 0)
    other = pickle.loads(pickle.dumps(cache))  # noqa: S301
    assert other.counts() == Counts()
    assert Remote().blocks(other, 1) == [1]
