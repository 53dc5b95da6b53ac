"""Folders of pictures, here and in fsspec's store in memory, where other kinds of files may lie too."""

import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from fsspec.implementations.memory import MemoryFile

from tests.refusals import refused
from tfdist.data.format import example, record_framing
from tfdist.data.format.schema import Feature, Schema
from tfdist.data.sources import open_source
from tfdist.errors import ConfigError, MissingFileError, StorageError

PICTURES = {
    "JPEG": b"\xff\xd8\xff\xe0" + bytes(20),
    "PNG": b"\x89PNG\r\n\x1a\n" + bytes(20),
    "GIF": b"GIF89a" + bytes(20),
    "BMP": b"BM" + bytes(60),
    "WebP": b"RIFF\x10\0\0\0WEBPVP8 " + bytes(8),
}
FILES = {
    "hund/b.JPG": PICTURES["JPEG"],
    "hund/a[1].png": PICTURES["PNG"],
    "katze/ü.gif": PICTURES["GIF"],
    "katze/z.jpeg": PICTURES["BMP"],  # the bytes count
    "Äffin/1.webp": PICTURES["WebP"],
}
ORDER = ["hund/a[1].png", "hund/b.JPG", "katze/z.jpeg", "katze/ü.gif", "Äffin/1.webp"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in {**FILES, "hund/.hidden": b"", ".cache/x.jpg": b"", "README.md": b"text"}.items():
        path = tmp_path / "bilder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "bilder"


def rows(source: Any, start: int = 0, stop: int | None = None) -> list[tuple[bytes, int]]:
    found: list[tuple[bytes, int]] = []
    for block in source.blocks(start, stop):
        found += zip(block["image"], block["label"].tolist(), strict=True)
    return found


EXPECTED = list(zip([FILES[name] for name in ORDER], [0, 0, 1, 1, 2], strict=True))


def test_classes_and_names_are_sorted(folder: Path) -> None:
    source = open_source(folder, label="label")
    assert source.schema["label"].names == ("hund", "katze", "Äffin")
    assert source.schema["image"] == Feature("string", is_image=True)
    assert source.count == 5
    assert source.sizes is not None
    assert source.sizes.tolist() == [len(FILES[name]) for name in ORDER]
    assert rows(source) == EXPECTED
    for start in range(6):
        for stop in range(start, 6):
            assert rows(source, start, stop) == EXPECTED[start:stop]
    assert rows(pickle.loads(pickle.dumps(source)), 1, 4) == EXPECTED[1:4]  # noqa: S301


def test_a_schema_does_not_hide_that_these_are_pictures(folder: Path) -> None:
    schema = Schema({"image": Feature("string"), "label": Feature("int32")})
    found = open_source(folder, schema=schema).schema
    assert found == {
        "image": Feature("string", is_image=True),
        "label": Feature("int32", names=("hund", "katze", "Äffin")),
    }


def test_the_identity_follows_the_files(folder: Path) -> None:
    before = open_source(folder).identity
    assert open_source(folder).identity == before
    (folder / "hund" / "c.png").write_bytes(PICTURES["PNG"])
    assert open_source(folder).identity != before


@pytest.mark.parametrize(
    ("name", "content", "path", "wrong", "fact"),
    [
        ("hund/c.jpg", b"", "hund/c.jpg", None, "empty"),
        ("hund/c.jpg", b"<html>not found", "hund/c.jpg", None, "b'<html>not fo'"),
        ("hund/Thumbs.db", b"x", "hund/Thumbs.db", None, ".jpg"),
        ("hund/welpen/c.jpg", PICTURES["JPEG"], "hund", "welpen", "train"),
        ("c.jpg", PICTURES["JPEG"], "", "c.jpg", "hund"),
    ],
)
def test_what_does_not_belong_there(
    name: str, content: bytes, path: str, wrong: str | None, fact: str, folder: Path
) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(content)
    with refused(ConfigError, name=wrong, path=folder / path, mentions=[fact]):
        rows(open_source(folder))


def test_a_link_that_leads_nowhere(folder: Path) -> None:
    (folder / "hund" / "c.jpg").symlink_to("nothing.jpg")
    with refused(MissingFileError, path=folder / "hund" / "c.jpg"):
        open_source(folder)


def test_a_folder_of_parts_is_the_callers_matter(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    folder.rename(tmp_path / "all" / "train")
    with refused(ConfigError, name="source", path=tmp_path / "all", mentions=[str(tmp_path / "all" / "train")]):
        open_source(tmp_path / "all")


@pytest.fixture
def store() -> Iterator[Any]:
    found = fsspec.filesystem("memory")
    yield found
    found.store.clear()
    found.pseudo_dirs[:] = [""]


def test_pictures_in_a_remote_store(store: Any) -> None:
    for name, content in FILES.items():
        store.pipe(f"/bucket/bilder/{name}", content)
    source = open_source("memory://bucket/bilder")
    assert source.schema["label"].names == ("hund", "katze", "Äffin")
    assert rows(source) == EXPECTED
    assert rows(pickle.loads(pickle.dumps(source)), 2, 4) == EXPECTED[2:4]  # noqa: S301


def written(kind: str) -> bytes:
    buffer = io.BytesIO()
    if kind == "parquet":
        pyarrow.parquet.write_table(pa.table({"x": np.arange(5)}), buffer)
    elif kind == "csv":
        buffer.write(b"x\n0\n1\n2\n3\n4\n")
    elif kind == "npz":
        np.savez(buffer, x=np.arange(5))
    elif kind == "npy":
        np.save(buffer, np.arange(5))
    elif kind == "h5":
        with h5py.File(buffer, "w") as file:
            file["x"] = np.arange(5)
    else:
        feature = Feature("int64")
        for i in range(5):
            entry = example.entry("x", feature, example.content_of(feature, i))
            buffer.write(record_framing.frame(example.joined([entry])))
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz", "npy", "h5", "tfrecord"])
@pytest.mark.parametrize("doing", ["info", "read"])
def test_a_store_that_fails_is_told(kind: str, doing: str, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionResetError("the connection was reset")

    store.pipe(f"/bucket/x.{kind}", written(kind))
    monkeypatch.setattr(MemoryFile if doing == "read" else type(store), doing, fail)
    with refused(StorageError, mentions=[f"x.{kind}", "connection was reset", "source_options"]):
        list(open_source(f"memory://bucket/x.{kind}").blocks(0, None))


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz", "npy", "h5", "tfrecord"])
def test_files_in_a_remote_store(kind: str, store: Any) -> None:
    store.pipe(f"/bucket/data/x.{kind}", written(kind))
    for spelled in (f"memory://bucket/data/x.{kind}", "memory://bucket/data", f"memory://bucket/*/*.{kind}"):
        source = open_source(spelled)
        assert [x for block in source.blocks(1, 4) for x in block["x"].tolist()] == [1, 2, 3]
    with refused(ConfigError, name="source", received=f"memory://bucket/nothing.{kind}"):
        open_source(f"memory://bucket/nothing.{kind}")
