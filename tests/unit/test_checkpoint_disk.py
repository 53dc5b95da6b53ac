"""Checkpoints on a disk that is full or forbidden, of processes that are killed, and of several at once."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tfdist.checkpoint import Store
from tfdist.checkpoint.checkpoint_manifest import FOLDERS, step_name
from tfdist.storage import local_folders
from tfdist.storage.files import FolderKind

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 280


def run(code: str, *arguments: object, before: tuple[str, ...] = ()) -> str:
    """Run ``code`` in a process, which must end well, and return its output."""
    command = [*before, sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def steps(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


# A real file system in memory where this user may mount one, for itself alone; else a limit on the size of files.
FULL = """
import errno, os, resource, subprocess, sys
from pathlib import Path
import numpy as np
from tfdist.checkpoint import Store, Writer
from tfdist.errors import StorageError

folder, kind = Path(sys.argv[1]), sys.argv[2]
mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "none", str(folder)]
mounted = kind == "disk" and subprocess.run(mount, stderr=subprocess.DEVNULL).returncode == 0
store = Store(folder / "backup")
store.save(1, {"x": np.ones(1000)}, {})
if not mounted:
    resource.setrlimit(resource.RLIMIT_FSIZE, (300 << 10, resource.RLIM_INFINITY))
number = errno.ENOSPC if mounted else errno.EFBIG
for step in (1, 2):
    try:
        store.save(step, {"x": np.zeros(100_000)}, {})
    except StorageError as error:
        assert error.errno == number, error
        assert "step-" in str(error) and "free there" in str(error), error
        assert ("Free some space" if mounted else "ulimit") in str(error), error
    else:
        raise AssertionError("saved?")
    assert os.listdir(folder / "backup") == ["step-000000000001"]
    assert store.newest().arrays["x"].sum() == 1000
said = []
writer = Writer(store, warn=said.append)
for step in (3, 4):
    writer.submit(step, {"x": np.zeros(100_000)}, {})
    writer.wait()
assert (writer.failures, writer.written, writer.last_error.errno, len(said)) == (2, None, number, 1), said
assert "training continues" in said[0] and "free there" in said[0], said
writer.submit(5, {"x": np.full(100, 5.0)}, {})
writer.close()
assert writer.written == 5 and writer.last_error is None and store.newest().step == 5
print("ready")
"""


@pytest.mark.parametrize("kind", ["disk", "limit"])
def test_a_full_disk_is_named_and_changes_nothing(tmp_path: Path, kind: str) -> None:
    alone = ("unshare", "--map-root-user", "--mount")
    possible = shutil.which("unshare") and subprocess.run([*alone, "true"], stderr=subprocess.DEVNULL).returncode == 0
    assert run(FULL, tmp_path, kind, before=alone if possible and kind == "disk" else ()) == "ready\n"


# root may write anywhere: it becomes a user who may not
FORBIDDEN = """
import os, sys
import numpy as np
from tfdist.checkpoint import Store
from tfdist.errors import StorageError
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
for place in (sys.argv[1], sys.argv[1] + "/below"):
    try:
        Store(place).save(2, {"x": np.zeros(3)}, {})
    except StorageError as error:
        assert sys.argv[1] in str(error) and "change the rights" in str(error), error
    else:
        raise AssertionError("saved?")
store = Store(sys.argv[1])
assert store.newest().step == store.peek()[0] == 1
store.discard()  # as far as it may
print(store.newest().step)
"""


def test_a_folder_that_may_not_be_written() -> None:
    folder = Path(tempfile.mkdtemp())  # pytest's own folders are closed to other users
    try:
        Store(folder).save(1, {"x": np.zeros(3)}, {})
        (folder / "step-000000000001").chmod(0o555)
        folder.chmod(0o555)
        assert run(FORBIDDEN, folder) == "1\n"
        assert steps(folder) == ["step-000000000001"]
    finally:
        folder.chmod(0o755)
        (folder / "step-000000000001").chmod(0o755)
        shutil.rmtree(folder)


# A process without threads forks another for each kill. The profiler is called before each C function. Functions of
# Python's own objects are skipped: they cannot change a disk, so a kill before the next function leaves the same files.
KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from tfdist.checkpoint import Joint, Part, Store

root, keep, again, durable = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "again", sys.argv[4] == "durable"
has_parts = sys.argv[3] == "parts"
state = lambda value: ({"a": np.full(300, value), "b": np.full((2, 2), value, "i2")}, {"value": value})
part = lambda index, value: Part(index=index, arrays={f"{index}": np.full(20, value)})
own = lambda value: {"parts": [part(0, value), part(1, value)]} if has_parts else {}

pure = {isinstance, len, getattr, hasattr, id, next, sorted, any, sum, os.fspath, sys.intern}
kinds = str, bytes, list, tuple, dict, set, type

def changes_nothing(function):
    return function in pure or isinstance(getattr(function, "__self__", None), kinds)

def save_until(folder, last):
    left = last
    def before(frame, event, argument):
        nonlocal left
        if event == "c_call" and not changes_nothing(argument):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
    store = Store(folder, keep=keep, durable=durable)
    joint = Joint(run="0123abcd", number=7, count=2)
    sys.setprofile(before)
    if has_parts:  # one process after the other
        store.save_part(3, part(1, 3), joint)
        store.save(3, *state(3), parts=[part(0, 3)], joint=joint)
    else:
        store.save(2 if again else 3, *state(3))
    sys.setprofile(None)
    os._exit(0)

kills, seen, last, ended = 0, set(), 0, False
while not ended:
    folder = root / str(last)
    store = Store(folder, keep=keep, durable=False)
    for step in (1, 2):
        store.save(step, *state(step), **own(step))
    pid = os.fork()
    if not pid:
        save_until(folder, last)
    ended = os.waitpid(pid, 0)[1] == 0
    kills += not ended
    found = store.newest()
    assert found is not None, last
    value = found.state["value"]
    assert value in (2, 3) and found.step == (2 if again else value), (last, found)
    assert all((array == value).all() for array in found.arrays.values()), last
    assert len(found.parts) == 2 * has_parts, last
    assert all((found.parts[index][f"{index}"] == value).all() for index in found.parts), last
    seen.add(value)
    store.save(9, *state(9))
    expected = ["step-000000000009", f"step-{found.step:012d}"][:keep]
    assert sorted(os.listdir(folder)) == sorted(expected), (last, os.listdir(folder))
    store.discard()
    assert not folder.exists(), os.listdir(folder)
    last += 2 if has_parts else 1  # a save with parts has three times the calls
assert seen == {2, 3}
print(kills)
"""


@pytest.mark.parametrize(
    ("keep", "step", "durable"), [(1, "again", "durable"), (2, "parts", "durable"), (1, "next", "undurable")]
)
def test_a_kill_before_any_call_of_a_save_spoils_nothing(tmp_path: Path, keep: int, step: str, durable: str) -> None:
    assert int(run(KILLED, tmp_path, keep, step, durable)) > 50
    assert steps(tmp_path) == []


def test_file_systems_that_cannot_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(one: Path, other: Path) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(local_folders, "_exchange", refuse)
    store = Store(tmp_path)
    for value in (1, 2):
        store.save(5, {"x": np.full(3, value)}, {})
        found = store.newest()
        assert found is not None
        assert found.arrays["x"].tolist() == [value] * 3
    assert steps(tmp_path) == ["step-000000000005"]


def test_what_a_living_process_writes_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, seen = Store(tmp_path), Store(tmp_path), list[list[str]]()
    rename = local_folders.rename

    def interrupted(temporary: Path, final: Path, kind: FolderKind) -> None:
        monkeypatch.setattr(local_folders, "rename", rename)
        other.save(2, {"x": np.zeros(3)}, {})
        seen.append(steps(tmp_path))
        rename(temporary, final, kind)

    monkeypatch.setattr(local_folders, "rename", interrupted)
    one.save(1, {"x": np.ones(3)}, {})
    assert len(seen[0]) == 2
    assert seen[0][0].startswith(".step-000000000001.")
    assert one.peek() is not None


def test_what_takes_the_name_of_a_folder_that_is_removed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path, durable=False)
    store.save(1, {"x": np.zeros(3)}, {})
    listed = os.listdir

    def then_replaced(folder: object) -> list[str]:
        monkeypatch.setattr(local_folders.os, "listdir", listed)
        names = listed(folder)  # type: ignore[call-overload]
        Store(tmp_path, durable=False).save(1, {"x": np.ones(3)}, {})
        return list(names)

    monkeypatch.setattr(local_folders.os, "listdir", then_replaced)
    local_folders.remove_folder(tmp_path / step_name(1), FOLDERS)
    found = store.newest()
    assert found is not None
    assert found.arrays["x"].tolist() == [1, 1, 1]


# Each says when it is there, and begins when both are.
WRITER = """
import sys
import numpy as np
from tfdist.checkpoint import Store
store, name = Store(sys.argv[1], durable=False), int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for step in range(200):
    store.save(step % 7, {"x": np.full(2000, step), "y": np.full(3, step, "i2")}, {"writer": name, "value": step})
    found = store.newest()
    if found is not None:  # the other one may be replacing it
        assert all((array == found.state["value"]).all() for array in found.arrays.values())
"""


def test_two_writers_in_one_directory(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "b"), str(number)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        for writer in writers:
            _, said = writer.communicate(timeout=DEADLINE_SECONDS)
            assert writer.returncode == 0, said
            assert "damaged" not in said
        store = Store(tmp_path / "b")
        assert store.newest() is not None
        store.save(1, {}, {})
        assert all(name.startswith("step-") for name in steps(tmp_path / "b"))
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate(timeout=DEADLINE_SECONDS)
