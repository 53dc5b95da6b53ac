"""The promises of every storage: a folder, fsspec's memory, and a real S3 service."""

import errno
import gc
import io
import json
import pickle
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from tests.refusals import refused
from tests.s3_service import s3_service
from tfdist.errors import (
    ConfigError,
    ConfigTypeError,
    MissingDependencyError,
    MissingFileError,
    ShortReadError,
    StorageError,
    TfdistError,
)
from tfdist.storage import remote_storage
from tfdist.storage.block_cache import BlockCache
from tfdist.storage.directory import LocalStorage, Storage, storage
from tfdist.storage.ranges import Plan
from tfdist.storage.remote_storage import FsspecStorage

BUCKET = "digits"
ROOT = Path(__file__).parents[2]
FOLDERS = ["plain", "größe mit Leerzeichen 数据", "a/b c/d+e%20f"]
Make = Callable[..., Storage]


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    with s3_service(BUCKET) as options:
        yield options


@pytest.fixture(params=["local", "memory", "cached", "s3"])
def make(request: pytest.FixtureRequest, tmp_path: Path, s3: dict[str, Any]) -> Iterator[Make]:
    """Makes storages of new directories; the same for the same folder."""
    root = uuid.uuid4().hex

    def made(folder: str = "plain") -> Storage:
        if request.param == "local":
            return storage(tmp_path / folder)
        if request.param == "s3":
            return storage(f"s3://{BUCKET}/{root}/{folder}", storage_options=s3)
        cache = BlockCache(limit_bytes=1 << 12, block_bytes=64) if request.param == "cached" else None
        return storage(f"memory://{root}/{folder}", cache=cache)

    yield made
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]


def put(place: Storage, name: str, content: bytes) -> None:
    with place.create(name) as file:
        file.write(content)


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_is_written_is_read(make: Make, folder: str) -> None:
    place = make(folder)
    content = bytes(range(256)) * 3
    assert place.names() == []
    for name in ("b.tfrecord", "a b.index", "größe.json"):
        put(place, name, content + name.encode())
    for reader in (place, make(folder), pickle.loads(pickle.dumps(make(folder)))):  # noqa: S301
        assert reader.names() == ["a b.index", "b.tfrecord", "größe.json"]
        assert reader.size("b.tfrecord") == len(content) + 10
        assert reader.read("größe.json") == content + "größe.json".encode()
        assert reader.read("b.tfrecord", 700) == content[700:] + b"b.tfrecord"
        assert reader.read("b.tfrecord", 250, 10) == content[250:260]


def test_ranges_come_in_the_order_asked_for(make: Make) -> None:
    place, content = make(), bytes(i % 251 for i in range(5000))
    for name in ("a", "b", "c", "d"):
        put(place, name, name.encode() + content)
    wanted = [("c", 4000, 900), ("a", 0, 1), ("b", 10, 0), ("a", 4990, 11), ("c", 3900, 200), ("d", 63, 2), ("a", 0, 1)]
    expected = [(name.encode() + content)[start : start + length] for name, start, length in wanted]
    assert make().read_ranges(wanted) == expected
    assert place.read_ranges(wanted) == expected
    assert place.read_ranges([]) == []


def test_empty_files(make: Make) -> None:
    place = make()
    put(place, "none", b"")
    assert (place.names(), place.size("none"), place.read("none")) == (["none"], 0, b"")


@pytest.mark.parametrize(
    ("start", "length"), [(0, 11), (10, 1), (11, 0), (5, 1 << 62), (1 << 62, 1), (1 << 62, 1 << 62), (-1, 2), (3, -1)]
)
def test_short_reads_raise(make: Make, start: int, length: int) -> None:
    place = make()
    put(place, "ten", b"0123456789")
    error = ConfigError if min(start, length) < 0 else ShortReadError
    with refused(error, mentions=["ten"]):
        place.read("ten", start, length)
    with refused(error, mentions=["ten"]):
        place.read_ranges([("ten", np.int64(start), np.int64(length))])
    with refused(error, mentions=["ten"]):
        place.read_ranges([("ten", 0, 2), ("ten", start, length)])
    assert place.read("ten", 10, 0) == b""


def test_a_missing_file_is_named(make: Make) -> None:
    place = make()
    put(place, "there", b"1")
    for look in (place.size, place.read, lambda name: place.read_ranges([(name, 0, 1)])):
        with refused(MissingFileError, mentions=["elsewhere"]) as caught:
            look("elsewhere")  # type: ignore[operator]
        assert isinstance(caught.value, FileNotFoundError)
        assert isinstance(caught.value, TfdistError)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_file_whose_writer_fails_does_not_appear(make: Make, error: type[BaseException]) -> None:
    place = make()
    put(place, "old", b"old")
    for name in ("old", "new"):
        with pytest.raises(error), place.create(name) as file:  # noqa: PT012
            file.write(b"x" * 3_000_000)
            file.flush()
            assert place.names() == ["old"]
            raise error
    del file
    gc.collect()  # a driver's file must not complete itself when it is collected
    for reader in (place, make()):
        assert reader.names() == ["old"]
        assert reader.read("old") == b"old"
    assert not left_behind(place)


def test_a_file_does_not_appear_before_it_is_complete(make: Make) -> None:
    place = make()
    with place.create("new") as file:
        file.write(b"x" * 3_000_000)
        file.flush()
        assert make().names() == []
    assert place.size("new") == 3_000_000
    assert not left_behind(place)


def test_a_writer_may_close_its_file(make: Make) -> None:
    place = make()
    with place.create("new") as file:
        file.write(b"all")
        file.close()
    assert place.read("new") == b"all"


def left_behind(place: Storage) -> list[str]:
    if place.local is not None:
        return [path.name for path in place.local.iterdir() if path.name.startswith(".")]
    assert isinstance(place, FsspecStorage)
    return [name for name in place._driver().find(place._root) if "/." in name]


def test_replacing_a_file(make: Make) -> None:
    place, other = make(), make()
    put(place, "f", b"old content")
    assert other.read("f") == b"old content"
    put(place, "f", b"new")
    assert (place.size("f"), place.read("f", 0, 3)) == (3, b"new")
    assert other.read("f") == b"new"  # the whole file is read as it is now


def test_lines_are_appended(make: Make) -> None:
    place = make()
    place.append("journal", b"one\n")
    place.append("journal", b"two")
    assert make().read("journal") == b"one\ntwo\n"
    put(place, "journal", b"one\nhal")  # its writer was killed
    place.append("journal", b"three\n")
    assert place.read("journal") == b"one\nhal\nthree\n"
    assert place.names() == ["journal"]


def test_removing(make: Make) -> None:
    place = make()
    place.remove("never")
    put(place, "f", b"1")
    put(place, "[f]*?", b"2")  # no pattern
    place.remove("[f]*?")
    assert place.names() == ["f"]
    place.remove("f")
    assert place.names() == []
    with pytest.raises(MissingFileError):
        place.size("f")


@pytest.mark.parametrize(
    "name", ["", " ", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", ".hidden", "a\0", "a\nb", "x" * 201, "\udcff"]
)
def test_only_plain_names(make: Make, name: str) -> None:
    place = make()
    for act in (
        place.size,
        place.read,
        place.remove,
        lambda name: place.append(name, b"x"),
        lambda name: place.read_ranges([(name, 0, 1)]),
        lambda name: place.create(name).__enter__(),
    ):
        with refused(ConfigError, received=name):
            act(name)  # type: ignore[operator]
    assert place.names() == []


def test_names_are_those_of_this_directory_alone(make: Make) -> None:
    place, below, beside = make("top"), make("top/below"), make("top2")
    for one in (place, below, beside):
        put(one, "f", b"1")
    assert place.names() == ["f"]


def test_the_lock_is_for_a_block(make: Make) -> None:
    for _ in range(2):
        with make().lock(), make().create("f") as file:
            file.write(b"1")


def test_a_file_of_a_folder_that_was_cut_is_written_again(tmp_path: Path) -> None:
    def cut(file: Any) -> None:
        file.write(b"ab")
        raise OSError(errno.ENOSPC, "No space left on device")

    def whole(file: Any) -> None:
        file.write(b"failed")

    place, mark = storage(tmp_path), "0123456789abcdef"
    with refused(StorageError, path=str(tmp_path / "step-1")):
        place.stage("step-1", [("a.receipt", cut)], mark=mark)
    place.stage("step-1", [("a.receipt", whole)], mark=mark)
    assert place.staged("step-1", "a.receipt", mark=mark) == b"failed"


def test_parts_of_an_upload_that_fails_are_given_up(s3: dict[str, Any]) -> None:
    place = storage(f"s3://{BUCKET}/{uuid.uuid4().hex}", storage_options={**s3, "default_block_size": 5 << 20})
    with pytest.raises(ValueError, match="stop"), place.create("large") as file:  # noqa: PT012
        file.write(b"x" * (11 << 20))
        file.flush()
        assert uploads(place)
        raise ValueError("stop")
    assert not uploads(place)
    assert place.names() == []
    with place.create("large") as file:
        file.write(b"x" * (11 << 20))
    assert place.size("large") == 11 << 20


def uploads(place: Storage) -> list[Any]:
    assert isinstance(place, FsspecStorage)
    return place._driver().call_s3("list_multipart_uploads", Bucket=BUCKET).get("Uploads", [])


FORK = """
import json, os, signal, sys
from tfdist.storage.block_cache import BlockCache
from tfdist.storage.directory import storage
signal.alarm(40)
place = storage(sys.argv[1], storage_options=json.loads(sys.argv[2]), cache=BlockCache(limit_bytes=9999, block_bytes=9))
assert place.read("f") == b"x" * 1000
child = os.fork()
if child == 0:
    signal.alarm(20)
    os._exit(place.read("f", 3, 500) != b"x" * 500 or place.names() != ["f"])
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert place.read("f", 999) == b"x"
"""


def test_a_forked_process_has_connections_of_its_own(s3: dict[str, Any]) -> None:
    url = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    put(storage(url, storage_options=s3), "f", b"x" * 1000)
    command = [sys.executable, "-c", FORK, url, json.dumps(s3)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


def test_a_missing_bucket_is_named(s3: dict[str, Any]) -> None:
    place = storage("s3://no-such-bucket/folder", storage_options=s3)
    for act in (place.names, lambda: place.size("f"), lambda: put(place, "f", b"1")):
        with refused(StorageError, name="no-such-bucket", path="s3://no-such-bucket/folder"):
            act()  # type: ignore[operator]


def test_a_service_that_is_not_there_is_an_error_that_says_so(s3: dict[str, Any]) -> None:
    nowhere = {**s3, "client_kwargs": {**s3["client_kwargs"], "endpoint_url": "http://127.0.0.1:1"}}
    with refused(StorageError, path=f"s3://{BUCKET}/x", mentions=["http://127.0.0.1:1/", "storage_options"]):
        storage(f"s3://{BUCKET}/x", storage_options=nowhere).names()


def test_an_object_that_shrinks_raises(make: Make) -> None:
    place, other = make(), make()
    put(place, "f", b"x" * 1000)
    assert place.size("f") == 1000
    put(other, "f", b"y" * 10)
    with pytest.raises(StorageError) as caught:
        place.read("f", 500, 100)
    assert (caught.value.path or "").endswith("f")


def test_a_file_may_be_forgotten_by_another_thread_at_any_moment() -> None:
    class Forgetting(dict[str, Any]):
        def __contains__(self, name: object) -> bool:
            return self.pop(str(name), None) is not None

    place = FsspecStorage(f"memory://{uuid.uuid4().hex}")
    put(place, "f", b"0123456789")
    assert place.size("f") == 10
    place._files = Forgetting(place._files)
    assert place.read("f", 2, 3) == b"234"
    place._driver().store.clear()


@pytest.mark.parametrize("error", [None, FileExistsError("it is there"), OSError("HDFS rename failed")])
def test_a_file_is_replaced_where_the_driver_renames_over_none(error: OSError | None) -> None:
    class Careful(type(fsspec.filesystem("memory"))):  # type: ignore[misc]
        """Renames as WebHDFS does, which only answers that it did not."""

        cachable = False

        def mv(self, path1: str, path2: str, **_: Any) -> None:
            if not self.exists(path2):
                super().mv(path1, path2)
            elif error is not None:
                raise error

    place = FsspecStorage(f"memory://{uuid.uuid4().hex}")
    place._fs = Careful()
    put(place, "f", b"first")
    put(place, "f", b"second")
    assert place.read("f") == b"second"
    assert len(place._driver().ls(place._root)) == 1
    place._driver().store.clear()


def test_a_driver_may_list_no_sizes_and_return_errors() -> None:
    class Web(type(fsspec.filesystem("memory"))):  # type: ignore[misc]
        """Lists as web servers do; answers as asynchronous drivers did."""

        cachable = False

        def ls(self, path: str, detail: bool = True, **_: Any) -> Any:
            found = super().ls(path, detail=detail)
            return [{**one, "size": None} for one in found] if detail else found

        def cat_ranges(self, *ranges: Any, **_: Any) -> Any:
            return super().cat_ranges(*ranges, on_error="return")

    place = FsspecStorage(f"memory://{uuid.uuid4().hex}")
    for name in "abc":
        put(place, name, name.encode() * 9)
    place._fs = Web()
    assert place.read_ranges([(name, 1, 2) for name in "abc"]) == [b"aa", b"bb", b"cc"]
    place._fs.rm_file(place._path("b"))
    with refused(MissingFileError):
        place.read("b", 0, 2)
    assert place.names() == ["a", "c"]
    place._driver().store.clear()


def test_requests_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_storage, "GAP_BYTES", 10)
    place = FsspecStorage("memory://joined")
    put(place, "f", bytes(200))
    asked: list[Any] = []
    driver = place._driver()
    whole = type(driver).cat_ranges
    monkeypatch.setattr(driver, "cat_ranges", lambda *a, **k: asked.append(a[1:]) or whole(driver, *a, **k))
    place.read_ranges([("f", 0, 10), ("f", 20, 10), ("f", 50, 5)])
    assert asked == [([0, 50], [30, 55])]
    driver.store.clear()


def test_a_cache_saves_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = BlockCache(limit_bytes=1000, block_bytes=10)
    place = FsspecStorage("memory://cached", cache=cache)
    content = bytes(range(100))
    put(place, "f", content)
    assert place.read_ranges([("f", 5, 10), ("f", 95, 5)]) == [content[5:15], content[95:]]
    monkeypatch.setattr(place, "_fetch", lambda *_: pytest.fail("fetched again"))
    assert place.read("f", 0, 20) == content[:20]
    monkeypatch.undo()
    put(place, "f", content[::-1])  # another content is another file to the cache
    assert place.read("f", 0, 20) == content[::-1][:20]
    place._driver().store.clear()


def test_a_cache_knows_an_object_by_its_content(s3: dict[str, Any]) -> None:
    cache, url = BlockCache(limit_bytes=1000, block_bytes=10), f"s3://{BUCKET}/{uuid.uuid4().hex}"
    for content, misses in ((b"a" * 30, 3), (b"b" * 30, 6)):
        put(storage(url, storage_options=s3), "f", content)
        listed, asked = (storage(url, storage_options=s3, cache=cache) for _ in range(2))
        assert listed.names() == ["f"]  # tells sizes and versions too
        assert listed.read_ranges([("f", 0, 30)]) == asked.read_ranges([("f", 0, 30)]) == [content]
        assert cache.counts().misses == misses


@pytest.mark.parametrize(
    ("url", "error", "fact"),
    [
        ("nothing://x", ConfigError, "'nothing'"),
        ("s3:/bucket/x", ConfigError, "'s3://bucket/x'"),
        (Path("s3://bucket/x"), ConfigError, "'s3://bucket/x'"),
        ("s3://", ConfigError, "s3://bucket/folder"),
        ("file://other-host/x", ConfigError, "file:///path"),
        ("", ConfigError, "empty"),
        ("a\0b", ConfigError, "null"),
        (b"/tmp", ConfigTypeError, "str or Path"),
        (3, ConfigTypeError, "str or Path"),
    ],
)
def test_directories_that_cannot_be(s3: dict[str, Any], url: Any, error: type[ConfigError], fact: str) -> None:
    with refused(error, name="directory", received=str(url) if isinstance(url, Path) else url, mentions=[fact]):
        storage(url)


def test_options_are_for_remote_stores() -> None:
    with refused(ConfigError, name="storage_options", path="/tmp/x"):
        storage("/tmp/x", storage_options={"anon": True})


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with refused(MissingDependencyError, name="gs", path="gs://bucket/x", mentions=["pip install 'tfdist[gcs]'"]):
        storage("gs://bucket/x")


def test_paths_in_their_spellings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a b%"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for spelling in (folder, str(folder), folder.as_uri(), "~/a b%", "a b%", "./a b%/"):
        place = storage(spelling)
        assert isinstance(place, LocalStorage)
        assert place.local == folder


def test_answers_must_have_the_length_asked_for() -> None:
    with refused(ShortReadError, path="f", received=2):
        Plan((("f", 0, 3),), (((0, 0, 3),),)).results([b"ab"])


def test_a_file_is_binary(make: Make) -> None:
    with make().create("f") as file:
        assert isinstance(file, io.BufferedIOBase)
        assert file.write(memoryview(b"abc")) == 3
