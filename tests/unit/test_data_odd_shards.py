"""Shards of others that are not what the first of their group is: void, compressed, not fetched, or of another kind."""

import gzip
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

import tfdist
from tests.refusals import absent, refused
from tests.unit.test_data_index_files import record
from tfdist.data.format.example import delimited, lists_examples
from tfdist.data.format.record_framing import frame
from tfdist.errors import ConfigError, CorruptDataError, TfdistError

PLAIN = frame(record(label=[0])) + frame(record(label=[1]))
PACKED = gzip.compress(frame(record(label=[2])) + frame(record(label=[3])))
ZLIB = zlib.compress(frame(record(label=[4])))
# what TensorFlow 2.21 leaves of a writer that got no record
VOID = bytes.fromhex("1f8b0800000000000003030000000000000000" + "00")
VOID_ZLIB = bytes.fromhex("789c030000000001")
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 12345\n"
ANNEXED = b"/annex/objects/SHA256E-s12345--" + b"4d" * 32 + b".tfrecord\n"

# what three shards hold -> the labels of all
SHARDS: dict[str, tuple[list[bytes], list[int]]] = {
    "void first": ([VOID, PACKED, PACKED], [2, 3, 2, 3]),
    "void last": ([PACKED, ZLIB, VOID], [2, 3, 4]),
    "void of ZLIB between": ([ZLIB, VOID_ZLIB, ZLIB], [4, 4]),
    "void and plain": ([VOID, PLAIN, VOID_ZLIB], [0, 1]),
    "void behind plain": ([PLAIN, VOID, b""], [0, 1]),
    "plain, then compressed": ([PLAIN, PACKED, ZLIB], [0, 1, 2, 3, 4]),
    "compressed, then plain": ([ZLIB, PLAIN, PACKED], [4, 0, 1, 2, 3]),
    "joined by ZLIB": ([VOID_ZLIB + ZLIB, ZLIB + ZLIB + VOID_ZLIB, ZLIB], [4, 4, 4, 4]),
    "joined": ([VOID + PACKED, PACKED + VOID, PACKED + PACKED], [2, 3] * 4),
}
NAMES = ["a-{}.tfrecord", "part-{}"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFDIST_CACHE_DIR", str(tmp_path / "cache"))


def put(folder: Path, name: str, shards: list[bytes]) -> Path:
    folder.mkdir()
    for number, content in enumerate(shards):
        (folder / name.format(number)).write_bytes(content)
    return folder


def labels(directory: Any) -> list[int]:
    return [int(example["label"]) for example in tfdist.data.open(directory)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("shards", "expected"), SHARDS.values(), ids=SHARDS)
def test_shards_are_read_each_as_it_is_kept(
    shards: list[bytes], expected: list[int], name: str, tmp_path: Path
) -> None:
    folder = put(tmp_path / "in", name, shards)
    assert labels(folder) == expected
    assert tfdist.data.verify(folder).is_sound
    assert labels(f"{folder}/*") == expected
    assert tfdist.data.index(folder).examples == len(expected)
    assert labels(folder) == expected
    folder = put(tmp_path / "again", name, shards)
    assert tfdist.data.write(folder, tmp_path / "out").examples == len(expected)
    assert labels(tmp_path / "out") == expected


def test_shards_of_a_store(tmp_path: Path) -> None:
    store = f"memory://{uuid.uuid4()}"
    for number, content in enumerate([VOID, VOID, PLAIN, PACKED, VOID_ZLIB]):
        with fsspec.open(f"{store}/a-{number}.tfrecord", "wb") as file:
            file.write(content)
    assert labels(store) == [0, 1, 2, 3]
    assert tfdist.data.write(store, tmp_path / "out").examples == 4


WAYS: dict[str, Callable[[Path, Path], Any]] = {
    "open": lambda folder, _: tfdist.data.open(folder),
    "index": lambda folder, _: tfdist.data.index(folder),
    "write": lambda folder, out: tfdist.data.write(folder, out),
    "wildcard": lambda folder, _: tfdist.data.open(f"{folder}/*"),
    "one file": lambda folder, out: tfdist.data.write(sorted(folder.glob("*-*")), out),
}
ELWC = frame(delimited(1, record(relevance=[1.0])) * 2 + delimited(2, record(query=[b"q"])))
# what shards hold -> the error, with the shard that it names
ODD: dict[str, tuple[list[bytes], type[TfdistError] | tuple[type[TfdistError], ...], str, list[str]]] = {
    "a pointer first": ([POINTER, PLAIN], ConfigError, "-0", ["git lfs pull"]),
    "a pointer later": ([PLAIN, POINTER], ConfigError, "-1", ["git lfs pull"]),
    "a pointer behind compressed ones": ([PACKED, POINTER], ConfigError, "-1", ["git lfs pull"]),
    "a file of git-annex": ([PLAIN, ANNEXED], ConfigError, "-1", ["git annex get"]),
    "another file": ([PLAIN, b"no record, but a text of some length"], (ConfigError, CorruptDataError), "-1", []),
    "lists of examples": ([ELWC], ConfigError, "-0", ["record 0", "ExampleListWithContext", "each list"]),
    "a list without context": ([frame(delimited(1, record(x=[1])))], ConfigError, "-0", ["ExampleListWithContext"]),
    "nothing but void": ([VOID, VOID], ConfigError, "", []),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("shards", "error", "shard", "facts"), ODD.values(), ids=ODD)
def test_a_shard_that_is_none_is_named(
    shards: list[bytes], error: Any, shard: str, facts: list[str], name: str, tmp_path: Path
) -> None:
    folder = put(tmp_path / "in", name, shards)
    for way, run in WAYS.items():
        with pytest.raises(error) as caught:
            run(folder, tmp_path / "out")
        assert not absent(str(caught.value), shard, *facts)
        assert not (tmp_path / "out" / "manifest.json").exists(), way


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.h5", "a.npz", "a.npy", "cat/1.jpg", "a.bin"])
def test_a_pointer_is_told_whatever_it_stands_for(name: str, tmp_path: Path) -> None:
    path = tmp_path / "in" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(POINTER)
    for source in (tmp_path / "in", *([] if name.endswith("jpg") else [path])):
        with refused(ConfigError, path=path, mentions=["git lfs pull"]):
            tfdist.data.write(source, tmp_path / "out")


def test_examples_and_sequences_are_no_lists_of_examples() -> None:
    sequence = delimited(2, delimited(1, delimited(1, b"x") + delimited(2, b"")))
    for payload in (record(x=[1]), record(), b"", sequence, record(x=[1]) + sequence, b"\xff", delimited(1, b"\xff")):
        assert not lists_examples(payload)
    assert lists_examples(delimited(2, record(x=[1])))
