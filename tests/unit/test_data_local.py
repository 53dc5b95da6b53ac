"""A folder as a storage: full disks, killed writers, links that lead out, folders that may not be written, locks."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.refusals import refused
from tfdist.errors import ConfigError, DeadlineError, MissingFileError, StorageError
from tfdist.storage import local_storage
from tfdist.storage.files import advice, is_temporary, storage_error
from tfdist.storage.local_storage import LOCK_NAME, LocalStorage

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 200


@pytest.fixture
def place(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "größe data")


def put(place: LocalStorage, name: str, content: bytes) -> None:
    with place.create(name) as file:
        file.write(content)


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(".") and path.name != LOCK_NAME)


@contextmanager
def child(code: str, *arguments: object, before: tuple[str, ...] = ()) -> Iterator["subprocess.Popen[str]"]:
    """A process that runs ``code``; it has said "ready" when the block begins, and is gone when it ends."""
    process = subprocess.Popen(
        [*before, sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_SECONDS)


# As large as 300 KiB: a real file system in memory where this user may mount one, for itself alone; else a limit of
# the system on the size of files.
FULL = """
import errno, os, resource, subprocess, sys
from pathlib import Path
from tfdist.storage.local_storage import LocalStorage
from tfdist.errors import StorageError

folder, kind = Path(sys.argv[1]), sys.argv[2]
mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "none", str(folder)]
mounted = kind == "disk" and subprocess.run(mount, stderr=subprocess.DEVNULL).returncode == 0
place = LocalStorage(folder / "data")
with place.create("finished") as file:
    file.write(b"1" * 10_000)
place.append("journal", b"finished")
if not mounted:
    resource.setrlimit(resource.RLIMIT_FSIZE, (300 << 10, resource.RLIM_INFINITY))
number = errno.ENOSPC if mounted else errno.EFBIG

def refused(act):
    try:
        act()
    except StorageError as error:
        assert error.errno == number, error
        assert f"{place.local}/" in str(error) and "free there" in str(error), error
        assert ("Free some space" if mounted else "ulimit") in str(error), error
    else:
        raise AssertionError("written?")

def many():
    with place.create("new") as file:
        for _ in range(100):
            file.write(b"x" * 10_000)

def once():
    with place.create("new") as file:
        file.write(b"x" * 1_000_000)  # stays in the buffer until the block ends

for act in (many, once, lambda: place.append("journal", b"x" * 1_000_000)):
    refused(act)
    assert sorted(os.listdir(place.local)) == ["finished", "journal"]
    assert place.read("journal") == b"finished\\n"
place.append("journal", b"after")
assert place.read("finished") == b"1" * 10_000
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["disk", "limit"])
def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, kind: str) -> None:
    alone = ("unshare", "--map-root-user", "--mount")
    possible = shutil.which("unshare") and subprocess.run([*alone, "true"], stderr=subprocess.DEVNULL).returncode == 0
    with child(FULL, tmp_path, kind, before=alone if possible and kind == "disk" else ()):
        pass


WRITER = """
import sys
from tfdist.storage.local_storage import LocalStorage
with LocalStorage(sys.argv[1]).create("shard") as file:
    file.write(b"x" * 5_000_000)
    file.flush()
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("before", [None, b"old"])
def test_a_killed_writer_leaves_what_was_there(place: LocalStorage, before: bytes | None) -> None:
    if before is not None:
        put(place, "shard", before)
    with child(WRITER, place.local) as writer:
        assert len(hidden(place.local)) == 1
        with place.lock():  # the writer lives: what it writes is left alone
            assert len(hidden(place.local)) == 1
        writer.send_signal(signal.SIGKILL)
        writer.wait(DEADLINE_SECONDS)
    assert place.names() == ([] if before is None else ["shard"])
    assert before is None or place.read("shard") == before
    [left] = hidden(place.local)
    assert is_temporary(left)
    with place.lock():
        assert hidden(place.local) == []


def test_a_writer_that_is_interrupted_leaves_nothing(place: LocalStorage) -> None:
    with child(WRITER, place.local) as writer:
        writer.send_signal(signal.SIGINT)
        assert writer.wait(DEADLINE_SECONDS) != 0
    assert os.listdir(place.local) == []


def test_cleaning_up_leaves_other_files_alone(place: LocalStorage) -> None:
    place.local.mkdir()
    for name in (".hidden", ".a.tmp", "a.0123456789abcdef.tmp", ".lock.0123.tmp"):
        (place.local / name).touch()
    (place.local / ".link.0123456789abcdef.tmp").symlink_to(place.local / ".hidden")
    before = sorted(os.listdir(place.local))
    with place.lock():
        pass
    assert sorted(os.listdir(place.local)) == sorted([*before, LOCK_NAME])


HOLDER = """
import sys
from tfdist.storage.local_storage import LocalStorage
with LocalStorage(sys.argv[1]).lock():
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_one_writer_at_a_time(place: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_storage, "_SILENT_SECONDS", 0.0)
    with child(HOLDER, place.local) as holder:
        said: list[Path] = []
        monkeypatch.setattr(local_storage._log, "warning", lambda _, path: said.append(path))
        with (
            refused(DeadlineError, path=place.local / LOCK_NAME, mentions=["0.1 seconds"]) as caught,
            place.lock(timeout_seconds=0.1),
        ):
            pytest.fail("two have it")
        assert str(place.local) in str(caught.value)

        def release(_: str, path: Path) -> None:
            said.append(path)
            assert holder.stdin is not None
            holder.stdin.close()

        monkeypatch.setattr(local_storage._log, "warning", release)
        with place.lock(timeout_seconds=DEADLINE_SECONDS):
            assert holder.wait(DEADLINE_SECONDS) == 0
        assert said == [place.local / LOCK_NAME] * 2
        holder.stdin = None


def test_the_lock_of_a_killed_process_is_free(place: LocalStorage) -> None:
    with child(HOLDER, place.local):
        pass
    with place.lock(timeout_seconds=DEADLINE_SECONDS):
        assert place.names() == []


def test_a_wait_is_logged_where_nobody_listens(
    place: LocalStorage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(local_storage, "_SILENT_SECONDS", 0.0)
    with place.lock(), pytest.raises(DeadlineError), LocalStorage(place.local).lock(timeout_seconds=0.1):
        pass
    assert "Waiting for another writer" in caplog.text


def test_the_lock_is_freed_when_the_block_fails(place: LocalStorage) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="stop"), place.lock(timeout_seconds=1):
            raise ValueError("stop")


# root may write anywhere: it becomes a user who may not
FORBIDDEN = """
import os, sys
from tfdist.storage.local_storage import LocalStorage
from tfdist.errors import StorageError
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
place = LocalStorage(sys.argv[1])
below = LocalStorage(sys.argv[1] + "/below")

def created(place):
    with place.create("new"):
        pass

def locked(place):
    with place.lock():
        pass

for act in (lambda: created(place), lambda: created(below), lambda: place.append("new", b"x"),
            lambda: place.append("old", b"x"), lambda: place.remove("old"), lambda: locked(place)):
    try:
        act()
    except StorageError as error:
        assert sys.argv[1] in str(error) and "change the rights" in str(error), error
    else:
        raise AssertionError("written?")
assert place.read("old") == b"old"
print("ready", flush=True)
"""


def test_a_folder_that_may_not_be_written_is_named() -> None:
    folder = Path(tempfile.mkdtemp())  # pytest's own folders are closed to other users
    try:
        put(LocalStorage(folder), "old", b"old")
        (folder / "old").chmod(0o444)
        folder.chmod(0o555)
        with child(FORBIDDEN, folder):
            pass
        assert os.listdir(folder) == ["old"]
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_path_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    place = LocalStorage(tmp_path / "file" / "below")
    for act in (lambda: put(place, "f", b"x"), lambda: place.append("f", b"x"), lambda: place.lock().__enter__()):
        with refused(StorageError) as caught:
            act()
        assert caught.value.errno in (errno.EEXIST, errno.ENOTDIR)
    for read in (place.names, lambda: place.size("f")):
        with pytest.raises(StorageError):
            read()  # type: ignore[operator]


def test_a_directory_of_the_name(place: LocalStorage) -> None:
    (place.local / "f").mkdir(parents=True)
    with refused(StorageError, path=place.local / "f") as caught:
        put(place, "f", b"x")
    assert caught.value.errno == errno.EISDIR
    assert hidden(place.local) == []
    assert place.names() == []
    with pytest.raises(StorageError):
        place.read("f")


@pytest.mark.parametrize("target", ["/etc/passwd", "../secret", "chain", "../größe data 2/f"])
def test_links_that_lead_out_are_refused(place: LocalStorage, target: str) -> None:
    put(place, "f", b"inside")
    put(LocalStorage(f"{place.local} 2"), "f", b"beside")
    (place.local.parent / "secret").write_text("secret")
    (place.local / "chain").symlink_to("../secret")
    (place.local / "link").symlink_to(target)
    for act in (
        place.size,
        place.read,
        lambda name: place.read_ranges([("f", 0, 1), (name, 0, 1)]),
        lambda name: place.append(name, b"x"),
    ):
        with refused(StorageError, path=place.local / "link", mentions=["--follow-symlinks"]):
            act("link")  # type: ignore[operator]
    put(place, "link", b"new")  # takes the place of the link, not of what it leads to
    assert place.read("link") == b"new"
    assert (place.local.parent / "secret").read_text() == "secret"


def test_links_that_stay_inside_are_followed(place: LocalStorage) -> None:
    put(place, "f", b"inside")
    (place.local / "link").symlink_to("f")
    through = place.local.parent / "through"
    through.symlink_to(place.local)
    for one in (place, LocalStorage(through)):
        assert one.names() == ["f", "link"]
        assert one.read("link") == b"inside"


def test_links_that_lead_nowhere(place: LocalStorage) -> None:
    put(place, "f", b"x")
    (place.local / "nowhere").symlink_to("none")
    (place.local / "loop").symlink_to("loop")
    assert place.names() == ["f"]
    with pytest.raises(MissingFileError):
        place.read("nowhere")
    with refused(StorageError, path=place.local / "loop") as caught:
        place.read("loop")
    assert caught.value.errno == errno.ELOOP


def test_a_pipe_does_not_block_a_reader(place: LocalStorage) -> None:
    put(place, "f", b"x")
    os.mkfifo(place.local / "pipe")
    (place.local / "socket").symlink_to("/dev/zero")
    assert place.names() in (["f"], ["f", "socket"])
    for name in ("pipe", "socket"):
        for act in (place.size, place.read, lambda name: place.append(name, b"x")):
            with refused(StorageError, path=place.local / name):
                act(name)  # type: ignore[operator]


def test_a_folder_that_disappears_while_it_is_written(place: LocalStorage) -> None:
    with refused(StorageError, path=place.local / "f"), place.create("f") as file:
        file.write(b"x")
        shutil.rmtree(place.local)


def test_errors_of_the_writers_own_are_not_the_disks(place: LocalStorage) -> None:
    with pytest.raises(FileNotFoundError, match="nothing") as caught, place.create("f"):
        open("nothing")  # noqa: SIM115
    assert not isinstance(caught.value, StorageError)
    assert os.listdir(place.local) == []


def test_new_files_have_the_usual_rights(place: LocalStorage) -> None:
    mask = os.umask(0o027)
    try:
        put(place, "f", b"x")
        place.append("g", b"x")
    finally:
        os.umask(mask)
    assert [(place.local / name).stat().st_mode & 0o777 for name in ("f", "g")] == [0o640, 0o640]


def test_many_writers_at_once(place: LocalStorage) -> None:
    with place.lock(), place.create("a") as a, place.create("b") as b, place.create("a") as again:
        a.write(b"first")
        b.write(b"b")
        again.write(b"second")
        assert len(hidden(place.local)) == 3
    assert place.read("a") == b"first"  # whoever ends last
    assert hidden(place.local) == []


def test_no_descriptor_is_left(place: LocalStorage) -> None:
    before = len(os.listdir("/proc/self/fd"))
    put(place, "f", b"x")
    with pytest.raises(ValueError, match="stop"), place.create("g"):
        raise ValueError("stop")
    with place.lock():
        place.append("f", b"y")
        place.read_ranges([("f", 0, 1), ("f", 1, 1)])
    with pytest.raises(StorageError):
        place.read("f", 5, 5)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("number", [*errno.errorcode, None])
def test_every_error_has_an_advice(tmp_path: Path, number: int | None) -> None:
    error = storage_error(OSError(number, "x") if number else OSError("odd"), tmp_path / "f", "written")
    assert error.errno == number
    assert str(tmp_path / "f") in str(error)
    assert str(error).endswith(advice(number))


def test_a_timeout_is_a_number(place: LocalStorage) -> None:
    with refused(ConfigError, name="timeout_seconds", received=-1), place.lock(timeout_seconds=-1):
        pass
