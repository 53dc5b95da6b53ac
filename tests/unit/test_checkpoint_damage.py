"""Damage and strangers' files: every flip of a byte is found, and nothing outside of the directory is read."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest

from tests.refusals import refused
from tfdist.checkpoint import Store
from tfdist.checkpoint.checkpoint_manifest import canonical
from tfdist.errors import StorageError, TfdistError

MASKS = (0x01, 0x20, 0x80, 0xFF)
MOST_BYTES = 8 << 20


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two small checkpoints, of steps 1 and 2."""
    made = Store(tmp_path / "backup", durable=False)
    for step in (1, 2):
        made.save(step, {"a": np.full((3, 4), step, "f4"), "b": np.arange(5, dtype="i1")}, {"epoch": step, "x": [0.5]})
    return made


def folder_of(store: Store, step: int = 2) -> Path:
    return Path(store.url, f"step-{step:012d}")


def newest_step(store: Store) -> int | None:
    found = store.newest()
    return None if found is None else found.step


@pytest.mark.parametrize("file", ["manifest.json", "arrays.safetensors"])
def test_every_flip_of_a_byte_is_found(store: Store, file: str, caplog: pytest.LogCaptureFixture) -> None:
    path = folder_of(store) / file
    whole = path.read_bytes()
    with path.open("r+b", buffering=0) as opened:
        for place in range(len(whole)):
            for mask in MASKS:
                opened.seek(place)
                opened.write(bytes([whole[place] ^ mask]))
                assert newest_step(store) == 1, (place, mask)
            opened.seek(place)
            opened.write(whole[place : place + 1])
    assert len(caplog.records) == len(whole) * len(MASKS)
    assert newest_step(store) == 2


@pytest.mark.parametrize("file", ["manifest.json", "arrays.safetensors"])
def test_every_cut_is_found(store: Store, file: str) -> None:
    path = folder_of(store) / file
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert newest_step(store) == 1, length
    for more in (b"\0", b" ", b"\n", whole):
        path.write_bytes(whole + more)
        assert newest_step(store) == 1
    path.write_bytes(whole)
    assert newest_step(store) == 2


def test_files_of_another_step_are_found(store: Store) -> None:
    old, new = folder_of(store, 1), folder_of(store, 2)
    for file in ("manifest.json", "arrays.safetensors"):
        whole = (new / file).read_bytes()
        shutil.copy(old / file, new / file)
        assert newest_step(store) == 1
        (new / file).write_bytes(whole)
    assert newest_step(store) == 2
    shutil.copytree(old, folder_of(store, 3))  # by another name
    assert newest_step(store) == 2
    (new / "manifest.json").unlink()
    os.symlink(old / "manifest.json", new / "manifest.json")
    assert newest_step(store) == 1


def test_what_only_looks_like_a_checkpoint(store: Store, tmp_path: Path) -> None:
    root = Path(store.url)
    for name in ("step-3", "step-0000000000003", "Step-000000000003", ".step-000000000003", "step-000000000003.tmp"):
        shutil.copytree(folder_of(store), root / name)
    (root / "step-000000000004").write_bytes(b"a file")
    os.symlink(folder_of(store), root / "step-000000000005")
    (root / "step-000000000006").mkdir()
    assert newest_step(store) == 2
    store.discard()
    assert len(list(root.iterdir())) == 7  # all but the empty folder, which a killed process may have left


def test_links_and_pipes_are_not_read(store: Store, tmp_path: Path) -> None:
    for file in ("manifest.json", "arrays.safetensors"):
        path, outside = folder_of(store) / file, tmp_path / file
        path.rename(outside)
        path.symlink_to(outside)
        assert newest_step(store) == 1
        path.unlink()
        os.mkfifo(path)
        assert newest_step(store) == 1
        path.unlink()
        path.mkdir()
        assert newest_step(store) == 1
        path.rmdir()
        outside.rename(path)
    assert newest_step(store) == 2


def test_a_loop_of_links(store: Store) -> None:
    path = folder_of(store) / "arrays.safetensors"
    path.unlink()
    path.symlink_to(path)
    assert newest_step(store) == 1


def sign(folder: Path, change: Any) -> None:
    """Write the manifest that somebody would who knows the format, whatever it says."""
    content = {**json.loads((folder / "manifest.json").read_bytes()), **change}
    del content["digest"]
    digest = hashlib.sha256(canonical(content)).hexdigest()
    (folder / "manifest.json").write_bytes(canonical({**content, "digest": digest}))


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "..", "a/b", "a\\b", ".hidden", "\0", ""])
def test_names_that_lead_elsewhere(store: Store, name: str, tmp_path: Path) -> None:
    folder = folder_of(store)
    file = json.loads((folder / "manifest.json").read_bytes())["files"][0]
    shutil.copy(folder / "arrays.safetensors", folder.parent / "secret.safetensors")
    sign(folder, {"files": [{**file, "name": name}]})
    assert newest_step(store) == 1


@pytest.mark.parametrize("size", [0, 7, 1 << 40, 1 << 62])
def test_sizes_that_are_not_so(store: Store, size: int) -> None:
    folder = folder_of(store)
    file = json.loads((folder / "manifest.json").read_bytes())["files"][0]
    sign(folder, {"files": [{**file, "bytes": size}]})
    tracemalloc.start()
    try:
        assert newest_step(store) == 1
        with (folder / "arrays.safetensors").open("r+b") as opened:
            opened.truncate(min(size, 64 << 20))  # a hole, which costs a stranger nothing
        assert newest_step(store) == 1
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


def test_a_manifest_that_is_a_hole(store: Store) -> None:
    os.truncate(folder_of(store) / "manifest.json", 1 << 40)
    tracemalloc.start()
    try:
        assert newest_step(store) == 1
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


def test_bytes_that_compute_are_data(store: Store, tmp_path: Path) -> None:
    """A pickle that would make a file when it is loaded, wherever bytes are read; its checksums fit."""
    import pickle

    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return (open, (str(tmp_path / "executed"), "w"))

    payload, folder = pickle.dumps(Attack()), folder_of(store)
    (folder / "arrays.safetensors").write_bytes(payload)
    about = {"name": "arrays.safetensors", "bytes": len(payload), "crc32c": google_crc32c.value(payload)}
    sign(folder, {"files": [about]})
    assert newest_step(store) == 1
    (folder / "manifest.json").write_bytes(payload)
    assert newest_step(store) == 1
    assert not (tmp_path / "executed").exists()


def test_any_manifest_that_is_signed(store: Store) -> None:
    """A checkpoint with any value in any field is read or left out, and nothing else happens."""
    folder = folder_of(store)
    whole = (folder / "manifest.json").read_bytes()
    file = json.loads(whole)["files"][0]
    values = [None, True, -1, 0, 3, 2.0, 10**30, "", "x", "\ud800", [], [[]], [{}], {}, {"a": {}}, [file, file]]
    for field in json.loads(whole):
        for value in values:
            if field != "digest":
                sign(folder, {field: value})
                assert newest_step(store) in ((1, 2) if field in ("state", "files") else (1,)), (field, value)
                store.peek()
                (folder / "manifest.json").write_bytes(whole)


def test_a_directory_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = Store(tmp_path / "file")
    for act in (store.newest, store.peek, lambda: store.save(1, {}, {})):
        with refused(StorageError) as caught:
            act()
        assert caught.value.errno in (errno.ENOTDIR, errno.EEXIST)
    with contextlib.suppress(TfdistError):
        store.discard()
    assert (tmp_path / "file").exists()


def test_a_file_where_a_step_should_be(store: Store) -> None:
    (Path(store.url) / "step-000000000007").write_bytes(b"a file")
    with refused(StorageError, path=Path(store.url) / "step-000000000007"):
        store.save(7, {}, {})
    assert newest_step(store) == 2
    assert sorted(os.listdir(store.url))[0] == "step-000000000001"
