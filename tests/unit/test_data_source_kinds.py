"""The particulars of each kind of source: dtypes and layouts, refusals, and messages that help."""

import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.refusals import refused
from tfdist import data
from tfdist.data.format import example, record_framing
from tfdist.data.format.schema import Feature, Schema
from tfdist.data.sources import open_source, source_files
from tfdist.data.sources.paths import kind_of
from tfdist.data.sources.tables.arrow_table import UntoldError
from tfdist.errors import (
    ConfigError,
    ConfigTypeError,
    CorruptDataError,
    MissingDependencyError,
    UnsupportedError,
)


def column(source: Any, name: str, start: int = 0, stop: int | None = None) -> list[Any]:
    found: list[Any] = []
    for block in source.blocks(start, stop):
        values = block[name]
        found += [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
    return found


def test_arrays_of_every_layout() -> None:
    x = np.arange(48, dtype="int32").reshape(6, 4, 2)
    for given in (
        x,
        x.astype(">i4"),
        np.asfortranarray(x),
        np.repeat(x, 2, axis=0)[::2],
        x[::-1][::-1],
        np.ma.array(x),
    ):
        source = open_source({"x": given})
        assert source.schema["x"] == Feature("int32", (4, 2))
        assert source.sizes is None
        assert column(source, "x", 1, 5) == x[1:5].tolist()


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "uint64", "float16", "float32", "float64"])
def test_arrays_keep_their_dtype(dtype: str) -> None:
    source = open_source((np.ones((3, 2), dtype), [1, 2, 3], [0.5, 1.0, 1.0]))
    assert {name: feature.dtype for name, feature in source.schema.items()} == {
        "input": dtype,
        "label": "int64",
        "weight": "float32",
    }
    (block,) = source.blocks(0, None)
    assert block["input"].dtype == dtype


def test_nan_is_a_value() -> None:
    (block,) = open_source({"x": np.array([np.nan, 1.0])}).blocks(0, None)
    assert np.isnan(block["x"]).tolist() == [True, False]


def test_text_in_arrays() -> None:
    texts = ["ä\0", "", "é" * 3]
    for given in (texts, np.array(texts, object), [text.encode() for text in texts]):
        source = open_source({"x": given})
        assert column(source, "x") == [text.encode() for text in texts]
        assert source.sizes is not None
        assert source.sizes[1] < source.sizes[2]
    assert column(open_source({"x": np.array(["a", "bc"])}), "x") == [b"a", b"bc"]
    assert column(open_source({"x": np.array([["a", "b"], ["c", "d"]])}), "x") == [[b"a", b"b"], [b"c", b"d"]]
    assert column(open_source({"x": [["a"], ["b", "c"]]}), "x") == [[b"a"], [b"b", b"c"]]


def test_lists_of_several_lengths_in_arrays() -> None:
    source = open_source({"x": [[1, 2], [3], []]})
    assert source.schema["x"] == Feature("int64", (None,))
    assert column(source, "x") == [[1, 2], [3], []]


@pytest.mark.parametrize(
    ("examples", "kind", "name", "fact"),
    [
        ({"a": np.zeros(3), "b": np.zeros(4)}, ConfigError, "b", "'a' has 3 examples"),
        ({"a": np.zeros((0, 3))}, ConfigError, "examples", "'a'"),
        ({}, ConfigError, "examples", "at least one"),
        ([], ConfigError, "examples", "empty"),
        (iter([]), ConfigError, "examples", "ended before"),
        ({"a": np.array(["2020-01-01"], "datetime64[D]")}, ConfigError, "a", "dtype datetime64[D]"),
        ({"a": np.zeros(3, complex)}, ConfigError, "a", "dtype complex128"),
        ({"a": np.array([object()])}, ConfigError, "a", "dtype object"),
        ({"a": 3}, ConfigError, "a", "examples first"),
        ({"a": np.float32(3)}, ConfigError, "a", "value per example"),
        ({"a": np.ma.array([1, 2], mask=[True, False])}, ConfigError, "a", "1 masked"),
        ((np.zeros(3), np.zeros(3), np.zeros(3), np.zeros(3)), ConfigError, "examples", "4 parts"),
        (5, ConfigTypeError, "examples", "5 (int)"),
        (["a", 5], ConfigTypeError, "examples", "first example is 'a'"),
        (lambda: 5, ConfigTypeError, "examples", "returned 5"),
        ([{"a": 1j}], ConfigError, "a", "1j"),
        ("missing/*.csv", ConfigError, "source", "matches"),
        ("missing.csv", ConfigError, "source", "no such file"),
    ],
)
def test_what_cannot_be_examples(examples: Any, kind: type[ConfigError], name: str, fact: str) -> None:
    with refused(kind, name=name, mentions=[fact]):
        open_source(examples)


def test_a_stream_is_checked_example_by_example() -> None:
    source = open_source({"x": i if i != 2500 else 2.5, "y": "a"} for i in range(3000))
    blocks = source.blocks(0, None)
    assert len(next(blocks)["x"]) == 1024
    next(blocks)
    with refused(ConfigError, name="x", received=2.5, mentions=["Example 2500", "int64"]):
        next(blocks)
    with refused(ConfigError, name="y", mentions=["Example 1"]):
        list(open_source([{"x": 1, "y": 2}, {"x": 1}]).blocks(0, None))


def test_blocks_of_large_examples_are_small() -> None:
    def stream() -> Iterator[Any]:
        for i in range(9):
            yield {"image": bytes(1 << 20), "n": i}

    for given in (stream, lambda: ({"x": np.zeros(1 << 18, np.float32)} for _ in range(9))):
        assert [len(next(iter(block.values()))) for block in open_source(given).blocks(0, None)] == [4, 4, 1]


def test_an_iterator_is_read_once_and_a_function_again() -> None:
    once = open_source({"x": i} for i in range(3))
    assert column(once, "x") == [0, 1, 2]
    with refused(UnsupportedError, name="examples"):
        list(once.blocks(0, None))
    calls: list[int] = []

    def again() -> Any:
        calls.append(1)
        return ({"x": i} for i in range(3))

    source = open_source(again)
    assert column(source, "x") == column(source, "x") == [0, 1, 2]
    assert len(calls) == 2


def test_tuples_in_a_stream() -> None:
    source = open_source(({"a": i, "b": "t"}, i % 2) for i in range(3))
    assert list(source.schema) == ["a", "b", "label"]
    assert column(source, "label") == [0, 1, 0]


def test_columns_of_arrow(tmp_path: Path) -> None:
    table = pa.table(
        {
            "text": pa.array(["a\0", "", "ü"]).dictionary_encode(),
            "bytes": pa.array([b"\0", b"", b"x"], pa.large_binary()),
            "flag": [True, False, True],
            "half": pa.array(np.array([1, 2, 3], np.float16)),
            "byte": pa.array([1, 2, 255], pa.uint8()),
            "list": pa.array([[1, 2], [], [3]], pa.list_(pa.int16())),
            "texts": pa.array([["a"], [], ["b", "c"]]),
            "matrix": pa.array([[[1, 2]], [[3, 4]], [[5, 6]]], pa.list_(pa.list_(pa.float32(), 2), 1)),
            "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(6, dtype=np.int32).reshape(3, 2)),
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    source = open_source(tmp_path / "a.parquet")
    assert {name: (f.dtype, f.shape) for name, f in source.schema.items()} == {
        "text": ("string", ()),
        "bytes": ("string", ()),
        "flag": ("bool", ()),
        "half": ("float16", ()),
        "byte": ("uint8", ()),
        "list": ("int16", (None,)),
        "texts": ("string", (None,)),
        "matrix": ("float32", (1, 2)),
        "tensor": ("int32", (2,)),
    }
    assert column(source, "text") == [b"a\0", b"", "ü".encode()]
    assert column(source, "bytes") == [b"\0", b"", b"x"]
    assert column(source, "flag") == [True, False, True]
    assert column(source, "half") == [1, 2, 3]
    assert column(source, "list") == [[1, 2], [], [3]]
    assert column(source, "list", 1, 3) == [[], [3]]
    assert column(source, "texts") == [[b"a"], [], [b"b", b"c"]]
    assert column(source, "matrix") == [[[1, 2]], [[3, 4]], [[5, 6]]]
    assert column(source, "tensor", 1, 3) == [[2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("values", "kind", "facts"),
    [
        (pa.array([1, 2, None, 4]), ConfigError, ["Example 2", "--null x"]),
        (pa.array(["a", "b", None, "a"]).dictionary_encode(), ConfigError, ["Example 2", "--null x"]),
        (pa.array([[1], [], [1, None], [2]]), ConfigError, ["Example 2", "list with a null"]),
        (pa.array([[1], [1], [None], [2]], pa.list_(pa.int32(), 1)), ConfigError, ["Example 2", "list with a null"]),
        (pa.array([[{"a": 1}]] * 4), ConfigError, ["struct<a: int64>"]),
        (pa.array([[("a", 1)]] * 4, pa.map_(pa.string(), pa.int64())), ConfigError, ["map<string, int64"]),
        (pa.nulls(4), UntoldError, ["in any row"]),
        (pa.array([[[1]], [[2]], [[3, 4]], [[5]]]), ConfigError, ["Example 2", "list of 2", "(1, 1)"]),
        (pa.array([[[1], [2]], [[1]], [], [[2]]]), ConfigError, ["Example 1", "list of 1", "have 2"]),
        (pa.array([[[1]], [[None]], [[2]], [[3]]]), ConfigError, ["Example 1", "list with a null", "--null 'x[]"]),
        (pa.array([[[1]], [None], [[2]], [[3]]]), ConfigError, ["Example 1", "has a null", "(1, 1)"]),
        (pa.array([[[1]], None, [[2]], [[3]]]), ConfigError, ["Example 1", "--null x"]),
    ],
)
def test_what_arrow_has_and_an_example_has_not(
    values: Any, kind: type[ConfigError], facts: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pa.table({"x": values}), path, row_group_size=2)
    with refused(kind, name="x", mentions=[str(path), *facts]):
        list(open_source(path).blocks(0, None))


def test_parquet_reads_only_the_row_groups_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pa.table({"x": np.arange(100)}), path, row_group_size=10, compression="none")
    source = open_source(path)
    metadata = pyarrow.parquet.read_metadata(path)
    content = bytearray(path.read_bytes())
    for group in (0, 1, 2, 5, 6, 7, 8, 9):  # a page that is read would be no page
        chunk = metadata.row_group(group).column(0)
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        content[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(content)
    assert column(source, "x", 32, 48) == list(range(32, 48))


@pytest.mark.parametrize(
    ("text", "kind", "name", "facts"),
    [
        ("x,y\n" + "1,2\n" * 3 + "1,\n", ConfigError, "y", ["Example 3", "null"]),
        ("x,y\n1,2\n1\n", ConfigError, None, ["Example 1", "2 columns, got 1"]),
        ("x,x\n1,2\n", ConfigError, "x", ["2 times"]),
        ("x,y\n", ConfigError, None, ["no rows"]),
        ("", ConfigError, None, ["empty"]),
        ("x,y\n1,\n", UntoldError, "y", ["MiB"]),
    ],
)
def test_what_csv_has_and_an_example_has_not(
    text: str, kind: type[ConfigError], name: str | None, facts: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with refused(kind, name=name, mentions=[str(path), *facts]):
        list(open_source(path).blocks(0, None))


def test_csv_names_the_row_that_does_not_fit_its_first_block(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,y\n" + "1,aaaaaaaaaaaaaa\n" * 400_000 + "1.5,b\n")
    with refused(ConfigError, path=path, mentions=["Example 400000", "column 'x'", "'1.5'", "float32"]):
        list(open_source(path).blocks(0, None))
    floats = open_source(path, schema={"x": Feature("float32")})
    assert column(floats, "x", 399_999) == [1.0, 1.5]


def test_types_of_csv(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("f\tt\td\tb\tn\n1.5\t\t2020-01-01\ttrue\t-3\nnan\tä b\t2021-01-01\tfalse\t4\n")
    source = open_source(tmp_path / "a.tsv")
    found = {name: feature.dtype for name, feature in source.schema.items()}
    assert found == {"b": "bool", "d": "int64", "f": "float32", "n": "int64", "t": "string"}
    assert column(source, "t") == [b"", "ä b".encode()]
    assert column(source, "d") == [18262, 18628]
    assert source.schema["d"].unit == "days since 1970-01-01"
    assert column(open_source(tmp_path / "a.tsv", schema={"d": Feature("string")}), "d") == [
        b"2020-01-01",
        b"2021-01-01",
    ]
    assert np.isnan(column(source, "f")[1])


def test_hdf5(tmp_path: Path) -> None:
    path = tmp_path / "ä.h5"
    with h5py.File(path, "w") as file:
        group = file.create_group("train/inner")
        group["image"] = np.arange(24, dtype="u1").reshape(3, 4, 2)
        group["big"] = np.arange(3, dtype=">f8")
        group["fixed"] = np.array([b"a", b"bc", b""])
        group["flag"] = np.array([True, False, True])
        lists = group.create_dataset("lists", (3,), h5py.vlen_dtype(np.int32))
        for i, values in enumerate(([1, 2], [], [3])):
            lists[i] = values
        file["x"], file["y"], file["other/z"] = np.zeros(3), np.zeros(4), np.zeros(0)
        file["scalar/s"], file["time/t"] = 3, np.zeros(3, "V8")
    source = open_source(f"{path}:/train/inner")
    dtypes = {name: (feature.dtype, feature.shape) for name, feature in source.schema.items()}
    assert dtypes == {
        "big": ("float64", ()),
        "fixed": ("string", ()),
        "flag": ("bool", ()),
        "image": ("uint8", (4, 2)),
        "lists": ("int32", (None,)),
    }
    assert column(source, "lists", 1) == [[], [3]]
    assert column(source, "big") == [0, 1, 2]
    assert column(source, "fixed") == [b"a", b"bc", b""]
    for group, name, fact in (
        ("", "y", "'x' has 3"),
        (":/", "y", "'x' has 3"),
        (":/train", None, "inner/"),
        (":/train/nothing", "/train/nothing", "has no group"),
        (":/x", "/x", "is a dataset"),
        (":/other", "z", "no examples"),
        (":/scalar", "s", "no axis"),
        (":/time", "t", "bool"),
    ):
        with refused(ConfigError, name=name, mentions=[str(path), fact]):
            open_source(f"{path}{group}")


def test_numpy_files_run_nothing(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return print, ("run",)

    np.save(tmp_path / "a.npy", np.array([Evil()]), allow_pickle=True)
    np.savez(tmp_path / "a.npz", a=np.array([Evil()]))
    for name in ("a.npy", "a.npz"):
        with refused(ConfigError, path=tmp_path / name, mentions=["pickle"]):
            open_source(tmp_path / name)


def test_a_npy_file_is_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1000, 1000)))
    source = open_source(tmp_path / "x.npy")
    assert len(pickle.dumps(source)) < 10_000
    assert source.schema["x"] == Feature("float64", (1000,))
    assert len(next(iter(source.blocks(0, None)))["x"]) == (4 << 20) // 8000


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.h5", "a.parquet", "a.tfrecord", "a.tfrecord.gz"])
def test_files_that_are_not_what_they_are_called(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"this is something else, of forty bytes..")
    with refused(CorruptDataError, path=tmp_path / name):
        open_source(tmp_path / name)


def record(**values: Any) -> bytes:
    features = {
        name: Feature(
            "string" if isinstance(v[0], bytes) else "float32" if isinstance(v[0], float) else "int64", (None,)
        )
        for name, v in values.items()
    }
    parts = [example.entry(n, features[n], example.content_of(features[n], v)) for n, v in sorted(values.items())]
    return record_framing.frame(example.joined(parts))


def test_the_schema_of_tfrecords_follows_from_the_first(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecords"
    path.write_bytes(record(a=[1], b=[1.5, 2.5], c=[b"x"], d=[1]) + record(a=[2], b=[3.5, 4.5], c=[b"y\0"], d=[1, 2]))
    source = open_source(path)
    assert {name: (feature.dtype, feature.shape) for name, feature in source.schema.items()} == {
        "a": ("int64", ()),
        "b": ("float32", (2,)),
        "c": ("string", ()),
        "d": ("int64", (None,)),
    }
    assert column(source, "c") == [b"x", b"y\0"]
    assert column(source, "d", 1) == [[1, 2]]


def test_tfrecords_that_do_not_fit(tmp_path: Path) -> None:
    path, good = tmp_path / "a.tfrecord", record(a=[1])
    path.write_bytes(good * 300 + record(a=[1, 2]))
    with refused(ConfigError, path=path, mentions=["Example 300", "'a' has 2 values", "(None,)"]):
        list(open_source(path).blocks(0, None))
    path.write_bytes(good * 300 + record(a=[1], z=[2]))
    with refused(ConfigError, name="z", path=path, mentions=["Example 300"]):
        list(open_source(path).blocks(0, None))
    flipped = bytearray(good * 300)
    flipped[-6] ^= 1
    path.write_bytes(flipped)
    with refused(CorruptDataError, path=path, mentions=["record 299", f"byte {299 * len(good)}", "checksum"]):
        list(open_source(path).blocks(0, None))
    path.write_bytes((good * 300)[:-3])
    with refused(CorruptDataError, path=path, mentions=["299 records"]):
        open_source(path)
    path.write_bytes(b"")
    with refused(ConfigError, path=path):
        open_source(path)


def test_a_missing_package_is_named_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, package in (("a.csv", "pyarrow"), ("a.parquet", "pyarrow"), ("a.h5", "h5py")):
        (tmp_path / name).write_bytes(b"x")
        monkeypatch.setitem(sys.modules, package, None)
        with refused(MissingDependencyError, name=package, mentions=["pip install 'tfdist[formats]'"]):
            open_source(tmp_path / name)


def test_mixtures_and_unknown_files(tmp_path: Path) -> None:
    for name in ("a.csv", "b.parquet", "c.txt", ".hidden.npz"):
        (tmp_path / name).write_bytes(b"x\n1\n")
    with refused(ConfigError, name="source", path=tmp_path, mentions=["(csv, parquet)"]):
        open_source(tmp_path)
    with refused(ConfigError, name="source", received="csv and parquet"):
        open_source([tmp_path / "a.csv", tmp_path / "b.parquet"])
    with refused(ConfigError, name="source", path=tmp_path / "c.txt", mentions=["CSV", "Parquet"]):
        open_source(tmp_path / "c.txt")
    (tmp_path / "empty").mkdir()
    with refused(ConfigError, name="source", path=tmp_path / "empty", received="nothing"):
        open_source(tmp_path / "empty")
    (tmp_path / "b.parquet").unlink()
    assert column(open_source(tmp_path), "x") == [1]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.CSV", "csv"),
        ("a.tsv.gz", "csv"),
        ("train.tfrecord-00001-of-00010", "tfrecords"),
        ("a.tfrec", "tfrecords"),
        ("a.h5:/x", "hdf5"),
        ("a.csv.txt", ""),
        ("csv", ""),
    ],
)
def test_kinds_by_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_files_with_other_columns_and_without_rows(tmp_path: Path) -> None:
    for name, columns in {"a": {"x": [1]}, "b": {"x": [2], "y": [3]}, "c": {"x": pa.array([], pa.int64())}}.items():
        pyarrow.parquet.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    with refused(ConfigError, name="y", path=tmp_path / "b.parquet", mentions=[str(tmp_path / "a.parquet")]):
        open_source(tmp_path)
    assert column(open_source(tmp_path, schema={"x": Feature("int8")}), "x") == [1, 2]
    assert column(open_source([tmp_path / "c.parquet", tmp_path / "a.parquet"]), "x") == [1]
    with refused(ConfigError, name="source", received=str(tmp_path / "c.parquet")):
        open_source(tmp_path / "c.parquet")


def test_empty_shards_of_others_are_left_out(tmp_path: Path) -> None:
    for i, content in enumerate((b"", record(a=[1]), b"", record(a=[2]))):
        (tmp_path / f"a.tfrecord-{i:05d}-of-00004").write_bytes(content)
    assert column(open_source(tmp_path), "a") == [1, 2]


def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / "a\udcff.csv"
    path.write_text("x\n1\n")
    json.dumps(open_source(path).identity, ensure_ascii=False).encode()


def test_a_schema_must_be_one() -> None:
    with refused(ConfigTypeError, name="a", received="int64"):
        open_source([{"a": 1}], schema={"a": "int64"})
    assert open_source([{"a": 1}], schema=Schema({"a": Feature("float32")})).schema["a"].dtype == "float32"


def test_file_urls_are_paths(tmp_path: Path) -> None:
    assert source_files.spelled(f"file://{tmp_path}") == str(tmp_path)
    lines = tmp_path / "a b.jsonl"
    lines.write_text('{"x": 1}\n')
    assert source_files.spelled(lines.as_uri()) == str(lines)
    assert len(data.open(lines.as_uri())) == 1
    assert data.select(lines.as_uri(), numbers=[0])[:0] == []
