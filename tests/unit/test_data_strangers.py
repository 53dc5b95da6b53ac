"""Files of strangers: whatever they hold, reading them returns what was verified, or raises an error of tfdist.

Nothing outside of their directory is read, no more memory is asked for than they have bytes (times a constant), and no
test here takes longer than its deadline.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tfdist
from tests.corruption import EXAMPLES, LAYOUTS, damaged_copies, examples_of, write
from tests.refusals import refused
from tfdist.data.examples.fetch import Fetcher, source_of
from tfdist.data.format import example, record_framing
from tfdist.data.format.data_manifest import IndexFile, Manifest, Shard
from tfdist.data.format.schema import Feature, Schema
from tfdist.data.format.shard_index import Index, arrays_of
from tfdist.data.sources import open_source
from tfdist.errors import CorruptDataError, StorageError, TfdistError
from tfdist.storage.directory import storage

MOST_BYTES = 64 << 20
_QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


def fetch(folder: Path, *, skip: bool = False) -> list[Any]:
    """All examples through the reader that needs no TensorFlow."""
    examples = tfdist.data.open(folder)
    columns, weight = Fetcher(examples, source_of(examples), verify="always", skip=skip)(np.arange(len(examples)))
    return [columns, weight]


def everything(folder: Path) -> list[str]:
    """Read a directory in every way; return the names of the ways that went well."""
    ways: dict[str, Callable[[], Any]] = {
        "open": lambda: tfdist.data.open(folder),
        "each": lambda: list(tfdist.data.open(folder)),
        "fetch": lambda: fetch(folder),
        "skip": lambda: fetch(folder, skip=True),
        "info": lambda: tfdist.data.info(folder),
        "verify": lambda: tfdist.data.verify(folder).require_sound(),
        "labels": lambda: tfdist.data.open(folder).integers("label"),
    }
    well = []
    for name, way in ways.items():
        try:
            way()
        except TfdistError:
            continue
        well.append(name)
    return well


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("file", ["manifest.json", "data-00000.index", "data-00000.tfrecord"])
def test_damaged_files_give_what_was_written_or_an_error(tmp_path: Path, layout: str, file: str) -> None:
    write(tmp_path, layout, num_shards=1)
    path = tmp_path / file
    if not path.exists():
        assert layout == "fixed"
        return
    original, expected = path.read_bytes(), examples_of(layout)
    for copy in damaged_copies(original, np.random.default_rng(11), 60):
        path.write_bytes(copy)
        well = everything(tmp_path)
        if "verify" in well:
            assert copy == original or file == "manifest.json"  # the JSON may say the same in other words
        if "each" in well:
            found = list(tfdist.data.open(tmp_path))
            assert len(found) == EXAMPLES
            assert all(np.array_equal(a[name], b[name]) for a, b in zip(expected, found, strict=True) for name in a)


@_QUICK
@given(data=st.binary(max_size=400))
def test_any_bytes_as_a_manifest(data: bytes) -> None:
    with pytest.raises(TfdistError):
        Manifest.from_bytes(data)


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["\ud800", "../a", "/etc/passwd", "int64", "float32", "O", "V1000000000", "(2,)f4", "fixed", "data"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, inner in items for found in _paths(inner, (*path, key)))]


_MANIFEST = Manifest(
    schema=Schema({"x": Feature("float32", (3,)), "label": Feature("int64", names=("a", "b"))}),
    layout="fixed",
    shards=(Shard(file="data-00000.tfrecord", examples=2, bytes=112, crc32c=1, smallest=40, largest=40),),
    label="label",
)


def signed(found: Any) -> bytes:
    """The JSON of a manifest with the digest that whoever wrote it would have put into it, as far as it has one."""
    try:
        shards = tuple(
            Shard(**{**shard, "index": None if shard["index"] is None else IndexFile(**shard["index"])})
            for shard in found["shards"]
        )
        schema = Schema.from_json(found["schema"])
        manifest = Manifest(
            schema=schema, layout=found["layout"], shards=shards, label=found["label"], revision=found["revision"]
        )
        found["digest"] = manifest.digest
    except (TfdistError, TypeError, KeyError, AttributeError, ValueError):
        return json.dumps(found).encode()  # then it has none
    return json.dumps(found).encode()


@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_value_anywhere_in_a_manifest(data: st.DataObject) -> None:
    found = json.loads(_MANIFEST.to_bytes())
    path = data.draw(st.sampled_from(_paths(found)[1:]))
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = data.draw(_json)
    try:
        read = Manifest.from_bytes(signed(found))
    except TfdistError:
        return
    assert read.examples * record_framing.OVERHEAD_BYTES <= read.total_bytes
    assert all(os.path.basename(shard.file) == shard.file for shard in read.shards)


@_QUICK
@given(data=st.binary(max_size=200))
def test_any_bytes_as_an_example(data: bytes) -> None:
    schema = Schema(
        {"a": Feature("int64"), "b": Feature("string"), "c": Feature("uint8", (2,)), "d": Feature("float32")}
    )
    try:
        found = example.parse(data)
        example.extents(data)
        for name, feature in schema.items():
            example.value(name, feature, found)
    except CorruptDataError:
        pass


@settings(max_examples=300, deadline=None, derandomize=True)
@given(data=st.data())
def test_examples_that_are_nearly_right(data: st.DataObject) -> None:
    features = {
        "a": Feature("int64"),
        "b": Feature("string"),
        "c": Feature("uint8", (2,)),
        "d": Feature("float32", (2,)),
    }
    values = {"a": 5, "b": b"text", "c": np.zeros(2, np.uint8), "d": np.zeros(2, np.float32)}
    whole = bytearray(
        example.joined([example.entry(n, f, example.content_of(f, values[n])) for n, f in features.items()])
    )
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = example.parse(bytes(whole))
        spans = example.extents(bytes(whole))
        for name, feature in features.items():
            value = example.value(name, feature, found)
            assert feature.dtype == "string" or np.shape(value) == feature.shape
    except CorruptDataError:
        return
    assert all(0 <= begin <= begin + size <= len(whole) for begin, size in spans.values())


_INDEXED = Schema({"image": Feature("string"), "label": Feature("int64")})


def _sealed(data: bytes, examples: int = 3, size: int = 300) -> tuple[bytes, Shard]:
    """An index and the shard that vouches for it."""
    about = IndexFile(file="a.index", bytes=len(data), crc32c=google_crc32c.value(data))
    return data, Shard(
        file="a.tfrecord", examples=examples, bytes=size, crc32c=0, smallest=1, largest=size - 16, index=about
    )


@_QUICK
@given(data=st.binary(max_size=300) | st.binary(max_size=100).map(lambda rest: struct.pack("<Q", len(rest)) + rest))
def test_any_bytes_as_an_index(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        Index.from_bytes(*_sealed(data), _INDEXED, "extent")


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    offsets=st.lists(
        st.sampled_from([0, 16, 60, 100, 299, 300, 301, -1, 2**63 - 1, -(2**63), 2**62]), min_size=4, max_size=4
    )
)
def test_any_offsets_in_an_index(offsets: list[int]) -> None:
    arrays = {key: np.zeros(shape, dtype) for key, (dtype, shape) in arrays_of(3, _INDEXED, "extent").items()}
    arrays["offset"] = np.array(offsets, np.int64)
    try:
        found = Index.from_bytes(*_sealed(safetensors.numpy.save(arrays)), _INDEXED, "extent")
    except CorruptDataError:
        return
    assert offsets[0] >= 0
    assert offsets[-1] <= 300
    assert all(b - a >= 16 for a, b in itertools.pairwise(offsets))
    assert found.offsets.tolist() == offsets


@pytest.mark.parametrize(
    "header",
    [
        {"offset": {"dtype": "I64", "shape": [2**60], "data_offsets": [0, 2**63]}},
        {"offset": {"dtype": "I64", "shape": [2**40, 2**40], "data_offsets": [0, 8]}},
        {"offset": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}},
        {"offset": {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}},
        {"offset": {"dtype": "NONE", "shape": [1], "data_offsets": [0, 8]}},
        {"offset": {"dtype": "I64", "shape": [-1], "data_offsets": [0, 8]}},
        {"__metadata__": {"a": "b" * 1000}, "offset": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}},
    ],
)
def test_an_index_with_an_odd_header(header: dict[str, Any]) -> None:
    text = json.dumps(header).encode()
    data = struct.pack("<Q", len(text)) + text + bytes(8)
    with pytest.raises(CorruptDataError):
        Index.from_bytes(*_sealed(data), _INDEXED, "extent")


def _peak(call: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(TfdistError):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _store(folder: Path, found: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_bytes(signed(found))


@pytest.mark.parametrize(
    "shard",
    [
        {"examples": 2**60, "bytes": 2**62, "smallest": 0, "largest": 0},
        {"examples": 2**60, "bytes": 112, "smallest": 40, "largest": 40},
        {"examples": 1, "bytes": 2**62, "smallest": 2**62 - 16, "largest": 2**62 - 16},
        {"examples": 0, "bytes": 0, "smallest": 0, "largest": 0},
        {"examples": 2, "bytes": 112, "smallest": 40, "largest": 40},
    ],
)
@pytest.mark.parametrize("shape", [[3], [1 << 40], [1 << 20, 1 << 20], [(1 << 60) // 4 - 16]])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_manifest_that_claims_too_much(tmp_path: Path, layout: str, shape: list[int], shard: dict[str, int]) -> None:
    found = json.loads(_MANIFEST.to_bytes())
    found["layout"] = layout
    found["schema"]["x"]["shape"] = shape
    if layout == "extent":
        found["schema"]["text"] = {"dtype": "string", "shape": [], "encoding": "bytes"}
    index = {"file": "data-00000.index", "bytes": 2**61, "crc32c": 0}
    found["shards"][0] |= {**shard, "index": None if layout == "fixed" else index}
    _store(tmp_path, found)
    (tmp_path / "data-00000.tfrecord").write_bytes(bytes(112))
    (tmp_path / "data-00000.index").write_bytes(bytes(200))
    assert _peak(lambda: (list(tfdist.data.open(tmp_path)) and fetch(tmp_path)) or _refuse()) < MOST_BYTES
    assert _peak(lambda: tfdist.data.verify(tmp_path).require_sound() and _refuse()) < MOST_BYTES


def _refuse() -> None:
    """Nothing was claimed in vain: there is no example."""
    raise TfdistError


@pytest.mark.parametrize("length", [2**63, 2**63 - 1, 2**64 - 1, 2**40, 2**31])
def test_a_record_that_claims_too_much(tmp_path: Path, length: int) -> None:
    for layout in LAYOUTS:
        folder = tmp_path / layout
        write(folder, layout, num_shards=1)
        path = folder / "data-00000.tfrecord"
        packed = struct.pack("<Q", length)
        header = packed + struct.pack("<I", record_framing.masked_crc(packed))
        path.write_bytes(header + path.read_bytes()[12:])
        assert _peak(lambda folder=folder: list(tfdist.data.open(folder))) < MOST_BYTES
        assert _peak(lambda folder=folder: fetch(folder)) < MOST_BYTES
        assert _peak(lambda folder=folder: tfdist.data.verify(folder).require_sound()) < MOST_BYTES
        weight = fetch(folder, skip=True)[1]
        assert weight.tolist() == [0.0] + [1.0] * (EXAMPLES - 1)
        (folder / "manifest.json").unlink()
        with pytest.raises(TfdistError):
            tfdist.data.index(folder)
        assert _peak(lambda path=path: list(open_source(str(path)).blocks(0, None))) < MOST_BYTES


@pytest.mark.parametrize("key", ["shard", "index"])
@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "..", "a/b", "a\\b", ".hidden", "\0", "", "manifest.json"]
)
def test_names_that_lead_elsewhere(tmp_path: Path, key: str, name: str) -> None:
    folder = tmp_path / "data"
    write(folder, "extent", num_shards=1)
    found = json.loads((folder / "manifest.json").read_bytes())
    place = found["shards"][0] if key == "shard" else found["shards"][0]["index"]
    (folder / place["file"]).rename(tmp_path / "secret")
    place["file"] = name
    _store(folder, found)
    assert everything(folder) == []
    assert [bad.file for bad in tfdist.data.verify(folder).places] == ["manifest.json"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_links_that_lead_elsewhere(tmp_path: Path, layout: str) -> None:
    folder = tmp_path / "data"
    write(folder, layout, num_shards=1)
    for path in sorted(folder.iterdir()):
        if path.name == ".lock":
            continue
        path.rename(tmp_path / path.name)
        path.symlink_to(tmp_path / path.name)
        for read in (lambda: list(tfdist.data.open(folder)), lambda: tfdist.data.verify(folder)):
            with refused(StorageError, path=path, mentions=["--follow-symlinks"]):
                read()
        path.unlink()
        (tmp_path / path.name).rename(path)
    assert tfdist.data.verify(folder).is_sound


def test_links_that_lead_elsewhere_are_followed_where_it_is_asked_for(tmp_path: Path) -> None:
    """The files lie as in a cache of DVC or of a hub: names in one folder, contents in another."""
    folder, blobs = tmp_path / "data", tmp_path / "blobs"
    write(folder, "extent", num_shards=2)
    blobs.mkdir()
    for number, path in enumerate(sorted(folder.iterdir())):
        if path.name != ".lock":
            path.rename(blobs / str(number))
            path.symlink_to(Path("..", "blobs", str(number)))
    for call in (tfdist.data.open, tfdist.data.verify, tfdist.data.info):
        with refused(StorageError, path=folder / "manifest.json", mentions=["follow_symlinks=True"]):
            call(folder)
    assert len(list(tfdist.data.open(folder, follow_symlinks=True))) == EXAMPLES
    assert tfdist.data.verify(folder, follow_symlinks=True).is_sound
    assert tfdist.data.info(folder, follow_symlinks=True).examples == EXAMPLES
    before = {path.name: path.read_bytes() for path in blobs.iterdir()}
    with refused(StorageError, path=folder / "manifest.json", mentions=["--follow-symlinks"]):
        tfdist.data.index(folder, exists="overwrite")
    assert tfdist.data.index(folder, exists="overwrite", follow_symlinks=True).examples == EXAMPLES
    assert {path.name: path.read_bytes() for path in blobs.iterdir()} == before  # nothing is written through a link
    (folder / "writing.jsonl").symlink_to(blobs / "1")
    with refused(StorageError, path=folder / "writing.jsonl", mentions=["--follow-symlinks"]):
        storage(folder, follow_symlinks=True).append("writing.jsonl", b"{}")
    os.mkfifo(tmp_path / "pipe")
    (folder / "data-00000.tfrecord").unlink()
    (folder / "data-00000.tfrecord").symlink_to(tmp_path / "pipe")
    with refused(StorageError, path=tmp_path / "pipe"):
        tfdist.data.open(folder, follow_symlinks=True)


def test_a_pipe_does_not_block(tmp_path: Path) -> None:
    write(tmp_path, "fixed", num_shards=1)
    (tmp_path / "data-00000.tfrecord").unlink()
    os.mkfifo(tmp_path / "data-00000.tfrecord")
    assert everything(tmp_path) == []


def test_a_sparse_file_is_not_read_into_memory(tmp_path: Path) -> None:
    write(tmp_path, "generic", num_shards=1)
    for name in ("data-00000.index", "manifest.json"):
        with (tmp_path / name).open("r+b") as file:
            file.truncate(1 << 40)
        assert _peak(lambda: list(tfdist.data.open(tmp_path)) and _refuse()) < MOST_BYTES
        assert _peak(lambda: tfdist.data.verify(tmp_path).require_sound()) < MOST_BYTES


def test_an_index_may_point_at_anything_and_reads_nothing_else(tmp_path: Path) -> None:
    """Its checksum fits, because whoever wrote it wrote the manifest, too."""
    write(tmp_path, "extent", num_shards=1)
    manifest = tfdist.data.open(tmp_path).manifest
    (shard,) = manifest.shards
    assert shard.index is not None
    arrays = safetensors.numpy.load((tmp_path / shard.index.file).read_bytes())
    generator = np.random.default_rng(1)
    for _ in range(30):
        changed = {name: np.array(values) for name, values in arrays.items()}
        for name in generator.choice(list(changed), 2):
            edges = [0, 1, 20, 2**31, 2**32 - 1] if changed[name].dtype == np.uint32 else [0, 40, 2**62, -1, -(2**63)]
            changed[name][int(generator.integers(0, EXAMPLES))] = int(generator.choice(edges))
        data = safetensors.numpy.save(changed)
        about = IndexFile(file=shard.index.file, bytes=len(data), crc32c=google_crc32c.value(data))
        (tmp_path / shard.index.file).write_bytes(data)
        lying = dataclasses.replace(manifest, shards=(dataclasses.replace(shard, index=about),))
        (tmp_path / "manifest.json").write_bytes(lying.to_bytes())
        everything(tmp_path)
        differs = any(changed[name].tobytes() != arrays[name].tobytes() for name in arrays)
        assert tfdist.data.verify(tmp_path).is_sound is not differs


def test_bytes_that_compute_are_data(tmp_path: Path) -> None:
    """A pickle that would make a file when it is loaded, in every place where bytes are read."""
    import pickle

    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return (open, (str(tmp_path / "executed"), "w"))

    payload = pickle.dumps(Attack())
    for file in ("manifest.json", "data-00000.index", "data-00000.tfrecord", "writing.jsonl"):
        folder = tmp_path / file
        write(folder, "extent", num_shards=1)
        (folder / file).write_bytes(payload)
        everything(folder)
        for call in (tfdist.data.repair, tfdist.data.index):
            with contextlib.suppress(TfdistError):
                call(folder)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", ["\ud800", "a\udfff", " ", ""])
def test_names_of_features_that_are_no_text(name: str) -> None:
    found = json.loads(_MANIFEST.to_bytes())
    found["schema"][name] = {"dtype": "float32", "shape": []}
    with refused(CorruptDataError, name="a feature's name", received=name, path="manifest.json"):
        Manifest.from_bytes(signed(found))


@pytest.mark.parametrize("dtype", ["(", "f4,(", "V1000000000", "(2,)f4", "O", "m8[", "f4" * 1000])
def test_dtypes_that_numpy_would_think_about(dtype: str) -> None:
    found = json.loads(_MANIFEST.to_bytes())
    found["schema"]["x"]["dtype"] = dtype
    with refused(CorruptDataError, path="manifest.json") as caught:
        Manifest.from_bytes(signed(found))
    assert (caught.value.name or "").endswith("dtype")


def test_an_index_that_is_larger_than_its_examples_need(tmp_path: Path) -> None:
    """The manifest vouches for its size, which costs a stranger nothing: the file is a hole."""
    write(tmp_path, "generic", num_shards=1)
    manifest = tfdist.data.open(tmp_path).manifest
    (shard,) = manifest.shards
    assert shard.index is not None
    claimed = dataclasses.replace(shard, index=dataclasses.replace(shard.index, bytes=1 << 40))
    (tmp_path / "manifest.json").write_bytes(dataclasses.replace(manifest, shards=(claimed,)).to_bytes())
    with (tmp_path / shard.index.file).open("r+b") as file:
        file.truncate(1 << 40)
    assert len(list(tfdist.data.open(tmp_path))) == EXAMPLES  # indexed anew, from the shard
    assert _peak(lambda: tfdist.data.verify(tmp_path).require_sound()) < MOST_BYTES
