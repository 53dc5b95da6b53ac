"""Dtypes that become wider along a source: the widest that is seen in time, else an error, and never a lost digit."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.refusals import refused
from tfdist import data
from tfdist.data.format.schema import Feature, Schema
from tfdist.data.sources import open_source
from tfdist.errors import ConfigError

Parts = list[np.ndarray]

# dtypes of two parts, a value of the second that the first cannot hold, and the dtype that holds both
KINDS: dict[str, tuple[str, str, float, str]] = {
    "float64 after float32": ("float32", "float64", 16777217.0, "float64"),
    "float32 after float16": ("float16", "float32", 2049.0, "float32"),
    "int64 after int32": ("int32", "int64", 3_000_000_000, "int64"),
    "int8 after uint8": ("uint8", "int8", -1, "int16"),
}


def listed(parts: Parts, _: Path) -> Any:
    return [{"x": value} for part in parts for value in part]


def generator(parts: Parts, folder: Path) -> Any:
    return iter(listed(parts, folder))


def function(parts: Parts, folder: Path) -> Any:
    return lambda: generator(parts, folder)


def objects(parts: Parts, _: Path) -> Any:
    column = np.empty(sum(map(len, parts)), object)
    column[:] = [value for part in parts for value in part]
    return {"x": column}


def parquet(parts: Parts, folder: Path) -> Any:
    for number, part in enumerate(parts):
        pa.parquet.write_table(pa.table({"x": part.reshape(-1)}), folder / f"{number}.parquet")
    return folder


def partitions(parts: Parts, folder: Path) -> Any:
    for number, part in enumerate(parts):
        (folder / f"part={number}").mkdir()
        pa.parquet.write_table(pa.table({"x": part.reshape(-1)}), folder / f"part={number}" / "a.parquet")
    return folder


def hdf5(parts: Parts, folder: Path) -> Any:
    for number, part in enumerate(parts):
        with h5py.File(folder / f"{number}.h5", "w") as file:
            file["x"] = part
    return folder


def npz(parts: Parts, folder: Path) -> Any:
    for number, part in enumerate(parts):
        np.savez(folder / f"{number}.npz", x=part)
    return folder


def directories(parts: Parts, folder: Path) -> Any:
    for number, part in enumerate(parts):
        data.write({"x": part}, folder / str(number))
    return [folder / str(number) / "*.tfrecord" for number in range(len(parts))]


def values_of(source: Any) -> list[Any]:
    found: list[Any] = []
    for block in source.blocks(0, None):
        found += np.concatenate([np.ravel(value) for value in block["x"]]).tolist()
    return found


MAKES = [listed, generator, function, objects, parquet, partitions, hdf5, npz, directories]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", MAKES)
def test_the_dtype_holds_what_all_parts_have(make: Callable[[Parts, Path], Any], kind: str, tmp_path: Path) -> None:
    first, second, value, both = KINDS[kind]
    parts = [np.zeros((2, 1), first), np.array([[1], [value]], second), np.ones((1, 1), first)]
    source = open_source(make(parts, tmp_path))
    assert source.schema["x"].dtype == both
    assert values_of(source) == [0, 0, 1, value, 1]


def test_lists_of_any_length_that_are_kept_as_bytes_have_the_dtype_of_their_own_directory(tmp_path: Path) -> None:
    for number, dtype in enumerate(("float64", "float16", "float32")):
        lists = np.empty(2, object)
        lists[:] = [np.ones(1, dtype), np.arange(4, dtype=dtype)]
        data.write({"x": lists}, tmp_path / str(number))
    source = open_source([tmp_path / str(number) / "*.tfrecord" for number in range(3)])
    assert source.schema["x"] == Feature("float64", (None,), "raw")
    assert values_of(source) == [1, 0, 1, 2, 3] * 3


def numbers(first: Any, last: Any) -> Iterator[dict[str, Any]]:
    yield from ({"x": first} for _ in range(300))
    yield {"x": last}


def ray(folder: Path) -> Any:
    tables = [pa.table({"x": np.ones(3, "float32")}), pa.table({"x": np.array([16777217.0])})]
    options = SimpleNamespace(preserve_order=True)
    dataset = type("Dataset", (), {"__module__": "ray.data", "iter_batches": lambda self, **_: iter(tables)})()
    dataset.context = SimpleNamespace(execution_options=options, max_errored_blocks=0)
    dataset.materialize = None
    return dataset


def a_split(folder: Path) -> Any:
    for name, part in (("train", np.ones(3, "float32")), ("test", np.array([1, 16777217.0]))):
        pa.parquet.write_table(pa.table({"x": part}), folder / f"{name}.parquet")
    return folder


# what is met when the dtype stands already, and what the error says of it: where, the column, what came and what it is
LATE: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "a list": (lambda _: list(numbers(np.float32(1), np.float64(0.1))), ["Example 300:", "0.1 (float64)"]),
    "a generator": (lambda _: numbers(np.float16(1), np.float32(0.1)), ["Example 300:", "(float32)", "float16"]),
    "arrays": (lambda _: numbers(np.ones(2, "float32"), np.array([1, 1e-50])), ["Example 300:", "of float64, shape"]),
    "floats of Python": (lambda _: numbers(0.1, 16777217.0), ["Example 300:", "16777217.0 (float)"]),
    "lists of Python": (lambda _: numbers([0.1], [1 / 3]), ["Example 300:", "[0.33", "(list)"]),
    "Ray": (ray, ["Example 3 of", "ray.data.Dataset", "16777217.0 (float64)"]),
    "a split": (a_split, ["Example 1 of", "test.parquet", "16777217.0 (float64)", "float32", "Pass a schema"]),
}


@pytest.mark.parametrize(("make", "facts"), LATE.values(), ids=LATE)
def test_digits_that_come_too_late_are_an_error(make: Callable[[Path], Any], facts: list[str], tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    with refused(ConfigError, name="x", mentions=facts):
        data.write(make(tmp_path / "from"), tmp_path / "to")


def test_a_schema_asks_for_rounding(tmp_path: Path) -> None:
    source = parquet([np.zeros(1, "float32"), np.array([16777217.0])], tmp_path)
    data.write(source, tmp_path / "to", schema=Schema({"x": Feature("float32")}))
    assert [float(example["x"]) for example in data.open(tmp_path / "to")] == [0.0, 16777216.0]
    with refused(ConfigError, name="x", mentions=["1e+300"]):
        data.write({"x": [1e300]}, tmp_path / "other", schema={"x": Feature("float32")})


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([0.5, 0.1, float("nan"), float("inf")], "float32"),
        ([0.5, 16777217.0], "float64"),
        ([[0.5], [1 / 3]], "float64"),
    ],
)
def test_floats_of_python_keep_their_digits(values: list[Any], dtype: str) -> None:
    rows = [{"x": value} for value in values]
    for examples in ({"x": values}, rows, iter(rows)):
        source = open_source(examples)
        assert source.schema["x"].dtype == dtype
        np.testing.assert_array_equal(np.array(values_of(source), dtype), np.ravel(values).astype(dtype))


@pytest.mark.parametrize("values", [[1, 2**64 - 1], [2**53 + 1, 0.5], [[1, 2**64 - 1], [3, 4]]])
@pytest.mark.parametrize("make", [list, iter])
def test_integers_that_numpy_would_round_among_others_are_refused(values: list[Any], make: Any) -> None:
    given = {"x": values} if make is list else iter([{"x": value} for value in values])
    with refused(ConfigError, name="x"):
        list(open_source(given).blocks(0, None))
    source = open_source({"x": [1, 2**64 - 1]}, schema={"x": Feature("uint64")})
    assert next(source.blocks(0, None))["x"].tolist() == [1, 2**64 - 1]


def test_an_error_of_a_generator_comes_where_it_is_raised() -> None:
    def failing() -> Iterator[dict[str, Any]]:
        yield {"x": 1}
        yield {"x": 2}
        raise OSError("the disk went away")

    blocks = open_source(failing()).blocks(0, 2)
    assert next(blocks)["x"].tolist() == [1, 2]
    with pytest.raises(OSError, match="went away"):
        list(open_source(failing()).blocks(0, None))
