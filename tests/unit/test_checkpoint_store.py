"""A store of checkpoints: what is saved comes back, what is damaged is left out, what is old goes."""

import errno
import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import ml_dtypes
import numpy as np
import pytest

from tests.refusals import refused
from tests.s3_service import s3_service
from tfdist.checkpoint import Checkpoint, Joint, Part, Store
from tfdist.checkpoint import checkpoint_store as stores
from tfdist.errors import ConfigError, ConfigTypeError, CorruptDataError, StorageError
from tfdist.monitor import faults
from tfdist.storage.remote_storage import FsspecStorage

BUCKET = "backups"
FOLDERS = ["plain", "größe mit Leerzeichen 数据", "a/b c/d+e%20f"]
Make = Callable[..., Store]


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    with s3_service(BUCKET) as options:
        yield options


@pytest.fixture(params=["local", "undurable", "memory", "s3"])
def make(request: pytest.FixtureRequest, tmp_path: Path, s3: dict[str, Any]) -> Iterator[Make]:
    """Makes stores of new directories; the same for the same folder."""
    root = uuid.uuid4().hex

    def made(folder: str = "plain", *, keep: int = 2) -> Store:
        if request.param == "s3":
            return Store(f"s3://{BUCKET}/{root}/{folder}", keep=keep, storage_options=s3)
        if request.param == "memory":
            return Store(f"memory://{root}/{folder}", keep=keep)
        return Store(tmp_path / folder, keep=keep, durable=request.param == "local")

    yield made
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]


def arrays_of(step: int) -> dict[str, Any]:
    return {"kernel": np.full((20, 30), step, np.float32), "half": np.full(5, step, ml_dtypes.bfloat16), "n": step}


def save(store: Store, step: int) -> None:
    store.save(step, arrays_of(step), {"epoch": step, "name": "größe"})


def is_full(error: OSError) -> bool:
    return error.errno == errno.ENOSPC


def steps(store: Store) -> list[int]:
    return sorted(int(name.split("-")[1]) for name in store._names())


def assert_is(found: Checkpoint | None, step: int) -> None:
    assert found is not None
    assert (found.step, found.state) == (step, {"epoch": step, "name": "größe"})
    assert found.arrays.keys() == {"kernel", "half", "n"}
    for name, array in arrays_of(step).items():
        assert found.arrays[name].dtype == np.asarray(array).dtype
        np.testing.assert_array_equal(found.arrays[name], array)


def damage(store: Store, step: int, file: str = "") -> None:
    """Change a byte in the middle of a file; default: where the arrays are."""
    name = f"step-{step:012d}"
    for known in ("manifest.json",) if file else tuple(names_of(store, name)):
        if known != "manifest.json" or file:
            data = bytearray(store._storage.folder(name).array(known, 1 << 30).tobytes())
            data[len(data) // 2] ^= 1
            write_file(store, name, known, bytes(data))


def names_of(store: Store, name: str) -> list[str]:
    return [file.name for file in store._manifest(name).files]


def write_file(store: Store, name: str, file: str, data: bytes) -> None:
    if store._storage.local is None:
        with store._storage.folder(name).create(file) as remote:
            remote.write(data)
    else:
        Path(store.url, name, file).write_bytes(data)


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_is_saved_comes_back(make: Make, folder: str) -> None:
    store = make(folder)
    assert store.newest() is None
    assert store.peek() is None
    save(store, 7)
    assert_is(store.newest(), 7)
    found = make(folder).newest()
    assert_is(found, 7)
    assert found is not None
    assert make(folder).peek() == (7, found.digest)


def test_nothing_can_be_written_to_what_is_read(make: Make) -> None:
    save(make(), 1)
    found = make().newest()
    assert found is not None
    with pytest.raises(ValueError, match="read-only"):
        found.arrays["kernel"][0] = 1


def test_only_the_newest_are_kept(make: Make) -> None:
    store = make(keep=3)
    for step in (0, 5, 10, 20, 1000):
        save(store, step)
        assert_is(store.newest(), step)
    assert steps(store) == [10, 20, 1000]
    one = make(keep=1)
    save(one, 1001)
    assert steps(one) == [1001]


def test_the_last_save_counts(make: Make) -> None:
    """Somebody begins anew in a directory with another training's checkpoints: those are not taken for its own."""
    store = make()
    for step in (100, 200, 3):
        save(store, step)
        assert_is(store.newest(), step)
    assert steps(store) == [3]


def test_a_step_is_saved_again(make: Make) -> None:
    store = make()
    save(store, 1)
    for number in range(3):
        store.save(2, {"x": np.full(4, number)}, {"number": number})
        found = store.newest()
        assert found is not None
        assert (found.step, found.state, found.arrays["x"].tolist()) == (2, {"number": number}, [number] * 4)
        assert len(names_of(store, "step-000000000002")) == 1
    assert steps(store) == [1, 2]


def test_arrays_outlive_their_checkpoint(make: Make) -> None:
    store = make()
    save(store, 1)
    found = store.newest()
    store.discard()
    assert store.newest() is None
    assert_is(found, 1)


def test_no_arrays_and_no_state(make: Make) -> None:
    store = make()
    store.save(0, {}, {})
    found = store.newest()
    assert found is not None
    assert (found.step, dict(found.arrays), found.state) == (0, {}, {})


@pytest.mark.parametrize("file", ["", "manifest.json"])
def test_one_that_is_damaged_is_left_out(make: Make, file: str, caplog: pytest.LogCaptureFixture) -> None:
    store = make(keep=3)
    for step in (1, 2, 3):
        save(store, step)
    damage(store, 3, file)
    assert_is(store.newest(), 2)
    [message] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "step-000000000003" in message
    assert ("manifest.json" if file else ".safetensors") in message
    assert "step-000000000002 is used" in message
    assert store.peek() is not None
    assert store.peek()[0] == (2 if file else 3)  # type: ignore[index]


def test_where_all_are_damaged_there_is_none(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    store = make()
    for step in (1, 2):
        save(store, step)
        damage(store, step)
    assert store.newest() is None
    assert [("step-" in one, "begins anew" in one) for one in caplog.messages] == [(True, True)] * 2


def test_one_that_was_found_damaged_makes_room(make: Make) -> None:
    store = make(keep=2)
    for step in (1, 2):
        save(store, step)
    damage(store, 2)
    assert_is(store.newest(), 1)
    save(store, 3)
    assert steps(store) == [1, 3]
    damage(store, 3)
    assert_is(store.newest(), 1)
    save(store, 3)
    assert_is(store.newest(), 3)
    assert steps(store) == [1, 3]


def test_no_manifest_no_checkpoint(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    store = make()
    save(store, 1)
    save(store, 2)
    name = "step-000000000002"
    if store._storage.local is None:
        store._storage.folder(name).remove("manifest.json")
    else:
        Path(store.url, name, "manifest.json").unlink()
    assert_is(store.newest(), 1)
    assert store.peek() is not None
    assert not caplog.records
    save(store, 3)
    assert steps(store) == [1, 3]


def test_arrays_that_are_missing_are_damage(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    store = make()
    save(store, 1)
    save(store, 2)
    [file] = names_of(store, "step-000000000002")
    if store._storage.local is None:
        store._storage.folder("step-000000000002").remove(file)
    else:
        Path(store.url, "step-000000000002", file).unlink()
    assert_is(store.newest(), 1)
    assert file in caplog.text


def test_a_save_that_fails_leaves_the_others(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make(keep=1)
    save(store, 1)
    for point in faults.SAVING:
        fault = faults.Fault(kind="disk-full", at=point, step=2, memory=not store.durable)
        monkeypatch.setattr(faults, "_script", faults.Script((fault,), worker=0, restart=0))
        with pytest.raises(OSError, check=is_full):
            save(store, 2)
        assert steps(store) == [1]
        assert_is(store.newest(), 1)
        fault = faults.Fault(kind="disk-full", at=point, step=1, memory=not store.durable)
        monkeypatch.setattr(faults, "_script", faults.Script((fault,), worker=0, restart=0))
        with pytest.raises(OSError, check=is_full):  # also the one with the same number
            store.save(1, {"x": np.zeros(3)}, {})
        assert_is(store.newest(), 1)
    save(store, 2)
    assert_is(store.newest(), 2)
    assert steps(store) == [2]


def test_what_cannot_be_saved_is_refused_before_anything_is_written(make: Make) -> None:
    store = make()
    for step, arrays, state in (
        (-1, {}, {}),
        (10**12, {}, {}),
        (True, {}, {}),
        (1, {"x": np.array(["a"])}, {}),
        (1, {}, {"x": np.float32(1)}),
    ):
        with pytest.raises(ConfigError):
            store.save(step, arrays, state)
    assert steps(store) == []


def test_other_files_stay(make: Make) -> None:
    store = make()
    save(store, 1)
    write_file(store, ".", "notes.txt", b"mine") if store._storage.local is not None else None
    if store._storage.local is None:
        with store._storage.create("notes.txt") as file:
            file.write(b"mine")
    write_file(store, "step-000000000001", "notes.txt", b"mine")
    save(store, 2)
    save(store, 3)
    store.discard()
    assert store.newest() is None
    if store._storage.local is None:
        assert store._storage.names() == ["notes.txt"]
        assert store._storage.folder("step-000000000001").names() == ["notes.txt"]
    else:
        assert sorted(os.listdir(store.url)) == ["notes.txt", "step-000000000001"]


def test_discarding_nothing(make: Make) -> None:
    make("none").discard()
    store = make()
    save(store, 1)
    store.discard()
    store.discard()
    assert store.peek() is None


@pytest.mark.parametrize(
    ("keep", "kind"), [(0, ConfigError), (-1, ConfigError), (True, ConfigTypeError), (1.5, ConfigTypeError)]
)
def test_keep_is_a_number(keep: Any, kind: type[ConfigError]) -> None:
    with refused(kind, name="keep", received=keep):
        Store("/nowhere", keep=keep)


def test_a_store_that_does_not_answer_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beginning anew because of a network that is down would lose the training."""
    store = Store(f"memory://{uuid.uuid4().hex}/x")
    save(store, 1)

    def refuse(*_: object) -> bytes:
        raise StorageError("the network is down")

    monkeypatch.setattr(FsspecStorage, "array", refuse)
    for look in (store.newest, store.peek):
        with pytest.raises(StorageError, match="the network is down"):
            look()
    store.discard()


def test_one_that_is_removed_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process saves and removes: what is handed out is the newer one."""
    store, other = Store(tmp_path, keep=1), Store(tmp_path, keep=1)
    save(other, 1)
    load, calls = store._load, list[str]()

    def overtaken(name: str, parts: Any = None) -> Checkpoint:
        calls.append(name)
        if len(calls) == 1:
            save(other, 2)
        return load(name, parts)

    monkeypatch.setattr(store, "_load", overtaken)
    assert_is(store.newest(), 2)


def test_one_that_is_replaced_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, other = Store(tmp_path), Store(tmp_path)
    other.save(1, {"x": np.zeros(3)}, {})
    manifest, calls = store._manifest, list[str]()

    def overtaken(name: str) -> Any:
        found = manifest(name)
        calls.append(name)
        if len(calls) == 1:
            save(other, 1)
        return found

    monkeypatch.setattr(store, "_manifest", overtaken)
    assert_is(store.newest(), 1)
    assert not caplog.records


def test_two_files_of_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    load = store._load
    save(store, 1)
    manifest = store._manifest("step-000000000001")
    twice = type(manifest)(step=1, state={}, files=manifest.files * 2)
    monkeypatch.setattr(store, "_manifest", lambda name: twice)
    with refused(CorruptDataError, path="arrays.safetensors", name="half"):
        load("step-000000000001")
    assert stores.step_name(1) == "step-000000000001"


def joint(number: int, *, count: int = 3, timeout: float = 30.0, run: str = "0123abcd") -> Joint:
    return Joint(run=run, number=number, count=count, timeout_seconds=timeout)


def part_of(index: int, step: int) -> Part:
    return Part(index=index, arrays={f"replica/{index}/sum": np.full((4, 3), 10 * step + index, "f4")})


def save_together(make: Make, step: int, number: int, *, count: int = 3, keep: int = 2) -> None:
    """Save as so many processes do: some come before the one that makes the checkpoint, one comes after it."""
    for index in range(1, count - 1):
        make(keep=keep).save_part(step, part_of(index, step), joint(number, count=count))
    last = threading.Thread(
        target=lambda: make(keep=keep).save_part(step, part_of(count - 1, step), joint(number, count=count))
    )
    begun = threading.Timer(0.01, last.start)
    begun.start()
    arrays, state = arrays_of(step), {"epoch": step, "name": "größe"}
    make(keep=keep).save(step, arrays, state, parts=[part_of(0, step)], joint=joint(number, count=count))
    begun.join()
    last.join()


def assert_parts(found: Checkpoint | None, step: int, wanted: Iterable[int], *, count: int = 3) -> None:
    assert_is(found, step)
    assert found is not None
    assert found.count == count
    assert sorted(found.parts) == sorted(wanted)
    for index, arrays in found.parts.items():
        assert {name: array.tolist() for name, array in arrays.items()} == {
            f"replica/{index}/sum": [[10 * step + index] * 3] * 4
        }


def test_parts_of_several_processes_come_back(make: Make) -> None:
    for number, step in enumerate((5, 7, 7, 9)):
        save_together(make, step, number)
    store = make()
    assert steps(store) == [7, 9]
    assert_parts(store.newest(), 9, range(3))
    assert_parts(store.newest(lambda manifest: [1]), 9, [1])
    assert len(names_of(store, "step-000000000009")) == 4
    folder = store._storage.folder if store._storage.local is None else None
    for step in (7, 9):  # no receipt is left, and nothing of the save that was replaced
        name = f"step-{step:012d}"
        left = folder(name).names() if folder else os.listdir(Path(store.url, name))
        assert sorted(left) == sorted(["manifest.json", *names_of(store, name)])
    save(store, 10)
    found = store.newest()
    assert_is(found, 10)
    assert found is not None
    assert (found.count, dict(found.parts)) == (0, {})
    store.discard()
    assert steps(store) == []


def test_parts_of_one_process_come_back(make: Make) -> None:
    make().save(3, arrays_of(3), {"epoch": 3, "name": "größe"}, parts=[part_of(1, 3), part_of(0, 3)])
    assert_parts(make().newest(), 3, range(2), count=2)
    with refused(ConfigError, name="parts", received=[0, 0]):
        make().save(4, {}, {}, parts=[part_of(0, 4), part_of(0, 4)])
    with refused(ConfigError, name="parts", received=[1]):
        make().save(4, {}, {}, parts=[part_of(1, 4)])


@pytest.mark.parametrize("how", ["damaged", "missing", "of another save", "of another worker"])
def test_a_part_that_is_wrong_is_named_and_an_older_checkpoint_is_used(
    make: Make, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    for number, step in enumerate((1, 2)):
        save_together(make, step, number)
    store, name = make(), "step-000000000002"
    [file] = [file for file in names_of(store, name) if file.startswith("worker-00001")]
    others = [("step-000000000001", "worker-00001"), (name, "worker-00002")]
    if how == "missing":
        if store._storage.local is None:
            store._storage.folder(name).remove(file)
        else:
            Path(store.url, name, file).unlink()
    elif how == "damaged":
        data = bytearray(store._storage.folder(name).array(file, 1 << 30).tobytes())
        data[-1] ^= 1
        write_file(store, name, file, bytes(data))
    else:
        step, begin = others[how == "of another worker"]
        [other] = [one for one in names_of(store, step) if one.startswith(begin)]
        write_file(store, name, file, store._storage.folder(step).array(other, 1 << 30).tobytes())
    assert_parts(make().newest(lambda manifest: [0, 2]), 2, [0, 2])  # who needs none of it does not look at it
    assert not caplog.records
    assert_parts(store.newest(), 1, range(3))
    [message] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "step-000000000002" in message
    assert file in message
    assert "step-000000000001 is used" in message
    save_together(make, 3, 9)
    assert_parts(make().newest(), 3, range(3))


def test_parts_that_do_not_come_leave_the_others(make: Make) -> None:
    save_together(make, 1, 0)
    store = make()
    store.save_part(2, part_of(1, 2), joint(1))
    for wrong in (joint(1, run="ffffffff"), joint(7), joint(1, count=4)):  # another run, another save, another number
        store.save_part(2, part_of(2, 2), wrong)
    store.save_part(3, part_of(2, 2), joint(1))
    with refused(StorageError, path=f"{store.url}/step-000000000002", workers=[2], mentions=["0.3 seconds"]):
        store.save(2, arrays_of(2), {}, parts=[part_of(0, 2)], joint=joint(1, timeout=0.3))
    assert_parts(make().newest(), 1, range(3))
    save_together(make, 2, 8)
    assert_parts(make().newest(), 2, range(3))
    make().discard()
    assert make().peek() is None


def test_a_part_that_fails_is_said_to_whoever_waits_for_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    save_together(make, 1, 0)
    store = make()
    for number, point in enumerate(("save-middle", "save-commit"), start=1):
        fault = faults.Fault(kind="disk-full", at=point, step=2, memory=not store.durable)
        monkeypatch.setattr(faults, "_script", faults.Script((fault,), worker=0, restart=0))
        with pytest.raises(OSError, check=is_full):
            store.save_part(2, part_of(1, 2), joint(number, count=2))
        monkeypatch.setattr(faults, "_script", faults.Script((), worker=0, restart=0))
        with refused(StorageError, workers=[1]):
            store.save(2, arrays_of(2), {}, parts=[part_of(0, 2)], joint=joint(number, count=2))
        assert_parts(make().newest(), 1, range(3))
    save_together(make, 2, 5)
    assert_parts(make().newest(), 2, range(3))
