"""One battery over all kinds of sources: the same examples give the same blocks, however they are cut."""

import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from tests.refusals import refused
from tfdist.data.format import example, record_framing
from tfdist.data.format.schema import Feature, Schema
from tfdist.data.sources import Source, open_source
from tfdist.data.sources.protocol import part_of
from tfdist.errors import ConfigError

COUNT = 101
SCHEMA = Schema(
    {"id": Feature("int64"), "größe": Feature("float32"), "name": Feature("string")}  # what every kind of file can hold
)
Columns = dict[str, Any]


def columns(count: int) -> Columns:
    rng = np.random.default_rng(count)
    return {
        "id": rng.integers(-(2**40), 2**40, count),
        "größe": rng.normal(size=count).astype(np.float32),
        "name": [f"Zeile {i}, „ü“ \n {'x' * (i % 7)}" for i in range(count)],
    }


def rows(data: Columns) -> list[dict[str, Any]]:
    return [dict(zip(data, values, strict=True)) for values in zip(*data.values(), strict=True)]


def arrays(data: Columns, folder: Path) -> Any:
    return {**data, "name": np.array(data["name"], object)}


def structured(data: Columns, folder: Path) -> Any:
    kinds = [("id", ">i8"), ("größe", "<f4"), ("name", object)]
    return np.array(list(zip(*data.values(), strict=True)), dtype=kinds)


def generator(data: Columns, folder: Path) -> Any:
    return (row for row in rows(data))


def function(data: Columns, folder: Path) -> Any:
    return lambda: iter(rows(data))


def listed(data: Columns, folder: Path) -> Any:
    return rows(data)


def csv(data: Columns, folder: Path) -> Any:
    pyarrow.csv.write_csv(pa.table(data), folder / "dätei.csv")
    return folder / "dätei.csv"


def csv_parts(data: Columns, folder: Path) -> Any:
    table, half = pa.table(data), len(data["id"]) // 2
    for number, part in enumerate((table.slice(half), table.slice(0, half))):
        if part.num_rows:
            pyarrow.csv.write_csv(part, folder / f"{'ba'[number]}.csv")
    return folder


def parquet(data: Columns, folder: Path) -> Any:
    table = pa.table({**data, "name": pa.array(data["name"]).dictionary_encode()})
    pyarrow.parquet.write_table(table, folder / "a.parquet", row_group_size=7)
    return f"{folder}/a.parquet"


def parquet_parts(data: Columns, folder: Path) -> Any:
    for number, first in enumerate(range(0, len(data["id"]), 29)):
        part = pa.table(data).slice(first, 29)
        pyarrow.parquet.write_table(part, folder / f"part-{number:05d}.parquet", row_group_size=11)
    return f"{folder}/part-*.parquet"


def hdf5(data: Columns, folder: Path) -> Any:
    with h5py.File(folder / "a.h5", "w") as file:
        for name, values in data.items():
            file[f"train/{name}"] = values
    return f"{folder}/a.h5:/train"


def npz(data: Columns, folder: Path) -> Any:
    np.savez_compressed(folder / "a.npz", **data)
    return folder / "a.npz"


def npy(data: Columns, folder: Path) -> Any:
    for name, values in data.items():
        np.save(folder / f"{name}.npy", values)
    return folder


def tfrecords(data: Columns, folder: Path) -> Any:
    with open(folder / "a.tfrecord-00000-of-00001", "wb") as file:
        for row in rows(data):
            parts = [example.entry(n, f, example.content_of(f, row[n])) for n, f in SCHEMA.items()]
            file.write(record_framing.frame(example.joined(parts)))
    return folder


def compressed_tfrecords(data: Columns, folder: Path) -> Any:
    path = tfrecords(data, folder) / "a.tfrecord-00000-of-00001"
    packed = zlib.compressobj(wbits=31)
    (folder / "a.tfrecord.gz").write_bytes(packed.compress(path.read_bytes()) + packed.flush())
    path.unlink()
    return folder


Make = Callable[[Columns, Path], Any]
SEEKABLE: list[Make] = [arrays, structured, listed, parquet, parquet_parts, hdf5, npz, npy, tfrecords]
STREAMS: list[Make] = [generator, function, csv, csv_parts, compressed_tfrecords]


def concatenated(source: Source, start: int, stop: int | None) -> Columns:
    found: dict[str, list[Any]] = {name: [] for name in source.schema}
    for block in source.blocks(start, stop):
        assert list(block) == list(source.schema)
        assert len({len(column) for column in block.values()}) == 1
        assert all(len(column) for column in block.values())
        for name, column in block.items():
            if isinstance(column, np.ndarray):
                assert column.dtype == np.dtype(source.schema[name].dtype)
                assert column.flags.c_contiguous
            found[name] += column.tolist() if isinstance(column, np.ndarray) else column
    return found


def expected(data: Columns, start: int, stop: int | None) -> Columns:
    texts = [value.encode() for value in data["name"]]
    return {
        "größe": data["größe"].tolist()[start:stop],
        "id": data["id"].tolist()[start:stop],
        "name": texts[start:stop],
    }


@pytest.mark.parametrize("make", SEEKABLE + STREAMS)
@pytest.mark.parametrize("count", [1, 2, COUNT])
def test_every_kind_gives_the_same_examples(make: Make, count: int, tmp_path: Path) -> None:
    data = columns(count)
    source = open_source(make(data, tmp_path), label="id")
    assert source.schema.to_json() == SCHEMA.to_json()
    assert source.seekable is (make in SEEKABLE)
    assert source.count in ((count,) if source.seekable else (None, count))
    if source.sizes is not None:
        assert source.sizes.dtype == np.int64
        assert source.sizes.shape == (count,)
        assert (source.sizes > 0).all()
    assert concatenated(source, 0, None) == expected(data, 0, None)


@pytest.mark.parametrize("make", SEEKABLE + STREAMS)
@pytest.mark.parametrize(
    ("start", "stop"), [(0, 0), (0, 1), (0, 53), (6, 8), (13, 59), (100, 101), (97, None), (50, 500), (101, None)]
)
def test_any_cut(make: Make, start: int, stop: int | None, tmp_path: Path) -> None:
    data = columns(COUNT)
    source = open_source(make(data, tmp_path))
    assert concatenated(source, start, stop) == expected(data, start, stop)


@pytest.mark.parametrize("make", SEEKABLE)
def test_seekable_sources_are_pickled_and_read_again_and_at_once(make: Make, tmp_path: Path) -> None:
    data = columns(COUNT)
    source = open_source(make(data, tmp_path))
    other = pickle.loads(pickle.dumps(source))  # noqa: S301
    assert other.identity == source.identity
    first, second = source.blocks(3, 70), other.blocks(60, None)
    left = [next(first)["id"].tolist()[0], next(second)["id"].tolist()[0]]
    assert left == [data["id"][3], data["id"][60]]
    first.close()  # type: ignore[attr-defined]
    second.close()  # type: ignore[attr-defined]
    assert concatenated(other, 0, None) == concatenated(source, 0, None) == expected(data, 0, None)


@pytest.mark.parametrize("make", SEEKABLE)
def test_a_part_has_the_numbers_of_the_whole_and_little_of_its_bytes(make: Make, tmp_path: Path) -> None:
    data = columns(3000)
    source = open_source(make(data, tmp_path))
    whole = len(pickle.dumps(source))
    parts = [pickle.dumps(part_of(source, start, start + 100)) for start in range(0, 3000, 100)]
    if whole > sum(map(len, data["name"])):  # the examples themselves, and not where they are
        assert sum(map(len, parts)) < 3 * whole
    part = pickle.loads(parts[17])  # noqa: S301
    assert concatenated(part, 1700, 1800) == expected(data, 1700, 1800)
    assert concatenated(part, 1753, 1759) == expected(data, 1753, 1759)
    assert concatenated(part_of(part, 1720, 1730), 1721, 1722) == expected(data, 1721, 1722)


@pytest.mark.parametrize("make", [make for make in SEEKABLE + STREAMS if make not in (generator, function, listed)])
def test_the_identity_tells_other_examples(make: Make, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    one, other = make(columns(5), tmp_path / "a"), make(columns(7), tmp_path / "b")
    assert open_source(one).identity == open_source(one).identity != open_source(other).identity


@pytest.mark.parametrize("make", [parquet, parquet_parts, hdf5, csv])
def test_a_schema_chooses_columns_and_dtypes(make: Make, tmp_path: Path) -> None:
    data = columns(10)
    data["id"] %= 100
    source = open_source(make(data, tmp_path), schema={"id": Feature("uint8")})
    (block,) = source.blocks(0, None)
    assert block.keys() == {"id"}
    assert block["id"].dtype == np.uint8
    assert block["id"].tolist() == data["id"].tolist()


@pytest.mark.parametrize("make", SEEKABLE + STREAMS)
def test_a_value_that_does_not_fit_is_named_by_its_example(make: Make, tmp_path: Path) -> None:
    data = columns(60)
    data["id"] %= 100
    data["id"][47] = 256
    features = {**SCHEMA, "id": Feature("uint8")}
    encodings = {"id": Feature("uint8", encoding="int64")} if "tfrecords" in make.__name__ else {}
    index = {csv_parts: 17, parquet_parts: 47 - 29}.get(make, 47)  # in the file that it is in
    source = open_source(make(data, tmp_path), schema={**features, **encodings})
    for part, bounds in ((part_of(source, 40, 50), (40, 50)), (source, (0, None)))[make not in SEEKABLE :]:
        with refused(ConfigError, name="id", mentions=[f"Example {index}", "256"]):
            concatenated(part, *bounds)


@pytest.mark.parametrize("make", SEEKABLE + STREAMS)
def test_a_label_that_is_not_there(make: Make, tmp_path: Path) -> None:
    with refused(ConfigError, name="label", received="klasse", mentions=["'größe', "]):
        open_source(make(columns(3), tmp_path), label="klasse")
