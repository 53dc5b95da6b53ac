"""Tables: CSV, Parquet and tables in memory, of which no digit and no value is lost without being asked."""

import datetime
import decimal
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from click.testing import CliRunner

import tfdist
from tests.refusals import refused
from tfdist.cli.main import main
from tfdist.data.format.schema import Feature, Schema, fits_float32, with_rounding
from tfdist.data.sources import Options, open_source
from tfdist.data.sources.tables import arrow_types
from tfdist.errors import ConfigError, ConfigTypeError, MissingDependencyError


def column(source: Any, name: str, start: int = 0, stop: int | None = None) -> list[Any]:
    found: list[Any] = []
    for block in source.blocks(start, stop):
        found += [value.tolist() if isinstance(value, np.ndarray) else value for value in block[name]]
    return found


def told(source: Any) -> dict[str, tuple[Any, ...]]:
    """Return the dtype of each feature, with its unit or its shape."""
    return {n: (f.dtype, f.unit) if f.unit else (f.dtype, *f.shape) for n, f in source.schema.items()}


def csv(tmp_path: Path, text: str, name: str = "a.csv", schema: Any = None, **options: Any) -> Any:
    (tmp_path / name).write_text(text)
    return open_source(tmp_path / name, schema=with_rounding(schema), options=Options(**options))


def parquet(tmp_path: Path, columns: dict[str, Any], schema: Any = None, **options: Any) -> Any:
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=2)
    return open_source(tmp_path / "a.parquet", schema=with_rounding(schema), options=Options(**options))


@pytest.mark.parametrize(
    ("values", "dtype", "read"),
    [
        (["18446744073709551615", "0"], "uint64", [(1 << 64) - 1, 0]),
        (["-9223372036854775808", "9223372036854775807"], "int64", [-(1 << 63), (1 << 63) - 1]),
        (["-1", "18446744073709551615"], "string", [b"-1", b"18446744073709551615"]),
        (["18446744073709551616"], "string", [b"18446744073709551616"]),
        (["1.5", "18446744073709551615"], "string", [b"1.5", b"18446744073709551615"]),
        (["1.5", "2305843009213693952"], "float32", [1.5, 2.0**61]),
        (["007", "12"], "string", [b"007", b"12"]),
        (["0x1f"], "string", [b"0x1f"]),
        (["0", "0.25", "-0.5e3"], "float32", [0, 0.25, -500]),
        (["0.1", "nan", "inf", "3.14159"], "float32", None),
        (["1700000000.125"], "float64", [1700000000.125]),
        (["16777217.0"], "float64", [16777217.0]),
        (["1e300", "1e-300"], "float64", [1e300, 1e-300]),
        (["0.12345678901234567"], "float64", [0.12345678901234567]),
    ],
)
def test_numbers_of_csv_keep_their_digits(
    values: list[str], dtype: str, read: list[Any] | None, tmp_path: Path
) -> None:
    source = csv(tmp_path, "x,y\n" + "".join(f"{value},a\n" for value in values))
    assert source.schema["x"].dtype == dtype
    assert read is None or column(source, "x") == read


def test_what_float32_keeps() -> None:
    texts = ["0.1", "123456", "1.00001e30", "9.99999e-20", "16777216", "33554432", "-3.40282e38", "4194304.5", "1e-45"]
    assert fits_float32(np.array([float(text) for text in texts])).all()
    assert not fits_float32(np.array([0.123456789, 16777217, 1e39, 1e-46, 123456.0000000001, 1 / 3, 3.14159275])).any()
    random = np.random.default_rng(1).normal(size=1000) * 10.0 ** np.linspace(-30, 30, 1000)
    assert not fits_float32(random).any()
    narrow = random.astype(np.float32)
    for digits in (9, 12, 17):
        assert fits_float32(np.array([float(f"{float(value):.{digits}g}") for value in narrow])).all()
    assert fits_float32(np.array([float(f"{value:.6g}") for value in random])).all()


def test_digits_behind_the_first_rows_are_not_lost_either(tmp_path: Path) -> None:
    text = "x,y\n" + "1.5,aaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n" * 150_000 + "1700000000.125,b\n"
    told = {"path": tmp_path / "a.csv", "mentions": ["Example 150000", "float32"]}
    with refused(ConfigError, name="x", received=1700000000.125, **told):
        list(csv(tmp_path, text).blocks(0, None))
    rounded = open_source(tmp_path / "a.csv", schema=with_rounding({"x": Feature("float32")}))
    assert column(rounded, "x", 150_000) == [1700000000.0]
    (tmp_path / "b.csv").write_text("x,y\n1.25,a\n0.123456789,b\n")
    (tmp_path / "a.csv").write_text("x,y\n1.25,a\n")
    with refused(ConfigError, name="x", received=0.123456789, path=tmp_path / "b.csv", mentions=["Example 1"]):
        list(open_source(tmp_path).blocks(0, None))


def test_dates_and_times_of_csv(tmp_path: Path) -> None:
    text = (
        "d,t,z,n,c,s\n"
        "2020-01-01,2020-01-01 00:00:01,2020-01-01T02:00:00+02:00,2020-01-01 00:00:00.5,10:30:00,x\n"
        "1969-12-31,1969-12-31 23:59:59,1970-01-01T00:00:00Z,1970-01-01 00:00:00.000000001,00:00:01,2020-01-01\n"
    )
    source = csv(tmp_path, text)
    assert told(source) == {
        "c": ("int64", "s since midnight"),
        "d": ("int64", "days since 1970-01-01"),
        "n": ("int64", "ns since 1970-01-01"),
        "s": ("string",),
        "t": ("int64", "s since 1970-01-01"),
        "z": ("int64", "s since 1970-01-01 UTC"),
    }
    assert column(source, "d") == [18262, -1]
    assert column(source, "t") == [1577836801, -1]
    assert column(source, "z") == [1577836800, 0]
    assert column(source, "n") == [1577836800_500_000_000, 1]
    assert column(source, "c") == [37800, 1]
    asked = {"t": Feature("string"), "d": Feature("int64", unit="days since 1970-01-01"), "n": Feature("string")}
    again = open_source(tmp_path / "a.csv", schema=asked)
    assert column(again, "t") == [b"2020-01-01 00:00:01", b"1969-12-31 23:59:59"]
    assert column(again, "d") == [18262, -1]
    finer = {"t": Feature("int64", unit="ms since 1970-01-01")}
    assert column(open_source(tmp_path / "a.csv", schema=finer), "t") == [1577836801000, -1000]


def test_delimiters(tmp_path: Path) -> None:
    assert column(csv(tmp_path, "x;y\n1;a\n", delimiter=";"), "x") == [1]
    assert column(csv(tmp_path, "x\ty\n1\ta\n", "b.TSV"), "y") == [b"a"]
    with refused(ConfigError, name="delimiter", received=";", path=tmp_path / "a.csv", mentions=["'x;y'"]):
        csv(tmp_path, "x;y\n1;a\n")
    with refused(ConfigError, name="delimiter", received=";", path=tmp_path / "a.csv", mentions=["'1;2,5'"]):
        csv(tmp_path, "x;y\n1;2,5\n")
    with refused(ConfigError, path=tmp_path / "a.csv") as caught:
        csv(tmp_path, "text\nWell, yes; no, 1,5\n")
    assert caught.value.name is None
    assert column(csv(tmp_path, "x;y\n1\n", delimiter=","), "x;y") == [1]
    with refused(ConfigError, path=tmp_path / "a.csv", mentions=["column 1"]):
        csv(tmp_path, ",x\n0,1\n")
    assert column(csv(tmp_path, ",x\n0,1\n", schema={"x": Feature("int64")}), "x") == [1]
    for wrong in (";;", '"', "\n", "ü", ""):
        with refused(ConfigError, name="delimiter", received=wrong):
            Options(delimiter=wrong)
    with refused(ConfigError, name="delimiter", received=";", mentions=["parquet"]):
        parquet(tmp_path, {"x": [1]}, delimiter=";")
    with refused(ConfigError, name="delimiter", received=";", mentions=["examples"]):
        open_source({"x": [1]}, options=Options(delimiter=";"))


def test_dates_times_and_decimals_of_parquet(tmp_path: Path) -> None:
    day = datetime.date(1969, 12, 31)
    columns = {
        "date": pa.array([day, day]),
        "date64": pa.array([day, day], pa.date64()),
        "ts": pa.array([-1, 1], pa.timestamp("us")),
        "utc": pa.array([0, 1], pa.timestamp("ns", "Europe/Berlin")),
        "time": pa.array([1, 2], pa.time32("ms")),
        "span": pa.array([1, 2], pa.duration("us")),
        "price": pa.array([decimal.Decimal("-12.34"), decimal.Decimal("0.01")]),
        "whole": pa.array([decimal.Decimal(5), decimal.Decimal(-7)], pa.decimal128(9, 0)),
        "long": pa.array([decimal.Decimal("12345678901234567890.12"), decimal.Decimal("-0.01")], pa.decimal128(30, 2)),
        "dates": pa.array([[day], []], pa.list_(pa.date32())),
        "prices": pa.array([[], []], pa.list_(pa.decimal128(5, 1))),
    }
    source = parquet(tmp_path, columns)
    assert told(source) == {
        "date": ("int64", "days since 1970-01-01"),
        "date64": ("int64", "days since 1970-01-01"),
        "dates": ("int64", "days since 1970-01-01"),
        "long": ("string",),
        "price": ("int64", "1e-2"),
        "prices": ("int64", "1e-1"),
        "span": ("int64", "us"),
        "time": ("int64", "ms since midnight"),
        "ts": ("int64", "us since 1970-01-01"),
        "utc": ("int64", "ns since 1970-01-01 UTC"),
        "whole": ("int64",),
    }
    read = {name: column(source, name) for name in columns}
    assert read == {
        "date": [-1, -1],
        "date64": [-1, -1],
        "ts": [-1, 1],
        "utc": [0, 1],
        "time": [1, 2],
        "span": [1, 2],
        "price": [-1234, 1],
        "whole": [5, -7],
        "long": [b"12345678901234567890.12", b"-0.01"],
        "dates": [[-1], []],
        "prices": [[], []],
    }
    assert column(source, "price", 1, 2) == [1]


@pytest.mark.parametrize(
    ("values", "feature", "read"),
    [
        (pa.array([1, 2], pa.timestamp("s")), Feature("int64", unit="ms since 1970-01-01"), [1000, 2000]),
        (pa.array([1000, 2000], pa.timestamp("ms")), Feature("int32", unit="s since 1970-01-01"), [1, 2]),
        (pa.array([86400, -86400], pa.timestamp("s")), Feature("int16", unit="days since 1970-01-01"), [1, -1]),
        (pa.array([1, 2], pa.timestamp("us")), Feature("string"), [b"1970-01-01 00:00:00.00000%d" % i for i in (1, 2)]),
        (pa.array([1, 2], pa.timestamp("us")), Feature("float64"), [1.0, 2.0]),
        (pa.array([decimal.Decimal("1.5")] * 2), Feature("float32"), [1.5, 1.5]),
        (pa.array([decimal.Decimal("1.5")] * 2), Feature("string"), [b"1.5", b"1.5"]),
        (pa.array([decimal.Decimal("1.5")] * 2), Feature("int64", unit="1e-3"), [1500, 1500]),
        (pa.array([decimal.Decimal("2.00")] * 2), Feature("int64", unit="1e0"), [2, 2]),
        (pa.array([decimal.Decimal("2.5")] * 2, pa.decimal256(40, 2)), Feature("int64", unit="1e-1"), [25, 25]),
        (pa.array([1, 2]), Feature("int64", unit="kilograms"), [1, 2]),
    ],
)
def test_a_schema_chooses_the_unit(values: Any, feature: Feature, read: list[Any], tmp_path: Path) -> None:
    source = parquet(tmp_path, {"x": values}, {"x": feature})
    assert column(source, "x") == read
    assert Schema.from_json(source.schema.to_json()) == source.schema


@pytest.mark.parametrize(
    ("values", "feature", "facts"),
    [
        ([1000, 1500], Feature("int64", unit="s since 1970-01-01"), ["Example 1", "number of s since"]),
        ([1, 1 << 60], Feature("int64", unit="us since 1970-01-01"), ["Example 1", "int64", "in us since"]),
        ([1, 2], Feature("int64", unit="ms since 1970-01-01 UTC"), ["Example 0", "never ms since 1970-01-01 UTC"]),
        ([1, 2], Feature("int64", unit="1e-2"), ["Example 0", "never 1e-2"]),
        ([1, 1 << 40], Feature("int32", unit="ms since 1970-01-01"), ["Example 1", "1099511627776", "int32"]),
        ([1, (1 << 53) + 1], Feature("float64"), ["Example 1", "9007199254740993", "float64"]),
    ],
)
def test_a_unit_that_does_not_fit(values: list[int], feature: Feature, facts: list[str], tmp_path: Path) -> None:
    with refused(ConfigError, name="x", mentions=facts):
        list(parquet(tmp_path, {"x": pa.array(values, pa.timestamp("ms"))}, {"x": feature}).blocks(0, None))
    lists = pa.array([[1000], [1000, 1500]], pa.list_(pa.timestamp("ms")))
    asked = {"x": Feature("int64", (None,), unit="s since 1970-01-01")}
    with refused(ConfigError, name="x", mentions=["Example 1", "number of s"]):
        list(parquet(tmp_path, {"x": lists}, asked).blocks(0, None))


def test_structs_are_columns_of_their_own(tmp_path: Path) -> None:
    rows = [{"a": 1, "b": {"c": "x", "d": [1, 2]}}, {"a": 2, "b": {"c": "y", "d": []}}, {"a": 3, "b": None}]
    kind = pa.struct({"a": pa.int64(), "b": pa.struct({"c": pa.string(), "d": pa.list_(pa.int8())})})
    columns = {"s": pa.array(rows, kind), "t": [1, 2, 3]}
    with refused(ConfigError, name="s.b.c", received="null", mentions=["Example 2", "--null-mask s.b.c"]):
        list(parquet(tmp_path, columns).blocks(0, None))
    source = parquet(tmp_path, columns, nulls={"s.b.c": "?", "s.b.d": []}, null_masks=["s.b.c"])
    assert list(source.schema) == ["s.a", "s.b.c", "s.b.c_is_null", "s.b.d", "t"]
    assert column(source, "s.b.c") == [b"x", b"y", b"?"]
    assert column(source, "s.b.c_is_null") == [False, False, True]
    assert column(source, "s.b.d", 1) == [[], []]
    some = open_source(tmp_path / "a.parquet", schema={"s.a": Feature("float32")})
    assert column(some, "s.a") == [1, 2, 3]
    with refused(ConfigError, name="s.a", mentions=["2 times"]):
        parquet(tmp_path, {"s": pa.array([{"a": 1}]), "s.a": [1]})


def test_nulls(tmp_path: Path) -> None:
    columns = {
        "x": pa.array([None, 1.5, None, None, 2.5], pa.float32()),
        "n": pa.array([1, None, 3, None, None], pa.uint8()),
        "t": pa.array(["a", None, None, "b", "c"]).dictionary_encode(),
        "l": pa.array([[1], None, [], [2, 3], None]),
        "f": pa.array([[1, 2], None, [3, 4], None, [5, 6]], pa.list_(pa.int16(), 2)),
        "d": pa.array([None, 1, 2, 3, None], pa.date32()),
        "all": pa.array([None] * 5, pa.int8()),
    }
    with refused(ConfigError, name="n", received="null", mentions=["Example 1", "nulls={'n': ...}", "--null n="]):
        column(parquet(tmp_path, {"n": columns["n"]}), "n")
    given = {"x": -1, "n": "255", "t": "none", "l": [9], "f": [0, 0], "d": -1, "all": 7}
    source = parquet(tmp_path, columns, nulls=given, null_masks=["n"])
    assert {name: column(source, name) for name in (*columns, "n_is_null")} == {
        "x": [-1, 1.5, -1, -1, 2.5],
        "n": [1, 255, 3, 255, 255],
        "t": [b"a", b"none", b"none", b"b", b"c"],
        "l": [[1], [9], [], [2, 3], [9]],
        "f": [[1, 2], [0, 0], [3, 4], [0, 0], [5, 6]],
        "d": [-1, 1, 2, 3, -1],
        "all": [7] * 5,
        "n_is_null": [False, True, False, True, True],
    }
    masked = open_source(tmp_path / "a.parquet", options=Options(null_masks=list(columns)))
    assert [column(masked, name) for name in ("x", "t", "l", "f")] == [
        [0, 1.5, 0, 0, 2.5],
        [b"a", b"", b"", b"b", b"c"],
        [[1], [], [], [2, 3], []],
        [[1, 2], [0, 0], [3, 4], [0, 0], [5, 6]],
    ]
    assert source.identity != masked.identity
    every = open_source(tmp_path / "a.parquet", schema={"x": Feature("float32")}, options=Options(nulls={"*": "nan"}))
    assert np.isnan(column(every, "x")).tolist() == [True, False, True, True, False]
    assert column(pickle.loads(pickle.dumps(source)), "n", 1, 4) == [255, 3, 255]  # noqa: S301


@pytest.mark.parametrize(
    ("options", "name", "received", "fact"),
    [
        ({"nulls": {"z": 1}}, "nulls", "z", "'x', 'y'"),
        ({"null_masks": ["z"]}, "null_masks", "z", "'x', 'y'"),
        ({"null_masks": ["*"]}, "null_masks", "*", "null_masks"),
        ({"nulls": {"x": 1.5}}, "x", 1.5, "nulls: Example 0"),
        ({"nulls": {"x": None}}, "x", "None", "nulls: Example 0"),
        ({"nulls": {"*": "nan"}}, "x", "null", "Example 1"),
    ],
)
def test_what_cannot_stand_for_null(
    options: dict[str, Any], name: str, received: object, fact: str, tmp_path: Path
) -> None:
    with refused(ConfigError, name=name, received=received, mentions=[fact]):
        list(parquet(tmp_path, {"x": [1, None], "y": ["a", "b"]}, **options).blocks(0, None))


def test_options_are_of_tables_alone(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    for examples in (tmp_path / "a.npz", {"x": [1]}, [{"x": 1}]):
        with refused(ConfigError, name="nulls"):
            open_source(examples, options=Options(nulls={"x": 1}))
    with refused(ConfigTypeError, name="nulls", received=5):
        Options(nulls=5)  # type: ignore[arg-type]
    with refused(ConfigTypeError, name="null_masks", received="x"):
        Options(null_masks="x")


def test_nulls_of_csv(tmp_path: Path) -> None:
    text = "x,y,d\n1,a,2020-01-01\n,,\nNA,c,2020-01-02\n"
    with refused(ConfigError, received="null", mentions=["Example 1"]) as caught:
        list(csv(tmp_path, text).blocks(0, None))
    assert caught.value.name in ("x", "d")
    source = csv(tmp_path, text, nulls={"x": -1, "d": 0}, null_masks=["x"])
    assert column(source, "x") == [1, -1, -1]
    assert column(source, "x_is_null") == [False, True, True]
    assert column(source, "y") == [b"a", b"", b"c"]
    assert column(source, "d", 1) == [0, 18263]


def hive(folder: Path, parts: dict[str, dict[str, Any]]) -> Path:
    for place, columns in parts.items():
        (folder / place).mkdir(parents=True)
        pyarrow.parquet.write_table(pa.table(columns), folder / place / "part-0.parquet")
    return folder


def test_hive_partitions_are_columns(tmp_path: Path) -> None:
    folder = hive(
        tmp_path / "sales",
        {
            "year=2023/country=d%20e": {"x": [1, 2]},
            "year=2024/country=fr": {"x": [3]},
            "year=2024/country=__HIVE_DEFAULT_PARTITION__": {"x": [4]},
        },
    )
    (folder / "_SUCCESS").write_text("")
    with refused(ConfigError, name="country", mentions=["--null country="]):
        open_source(folder)
    source = open_source(folder, options=Options(nulls={"country": "?"}, null_masks=["country"]))
    assert told(source) == {"country": ("string",), "country_is_null": ("bool",), "x": ("int64",), "year": ("int64",)}
    assert column(source, "x") == [1, 2, 4, 3]
    assert column(source, "year", 1) == [2023, 2024, 2024]
    assert column(source, "country") == [b"d e", b"d e", b"?", b"fr"]
    assert column(source, "country_is_null") == [False, False, True, False]
    assert column(pickle.loads(pickle.dumps(source)), "year", 1, 3) == [2023, 2024]  # noqa: S301
    some = open_source(folder, schema={"x": Feature("int8"), "year": Feature("float32")})
    assert (column(some, "year"), list(some.schema)) == ([2023, 2023, 2024, 2024], ["x", "year"])
    assert column(open_source(f"{folder}/year=2024/country=fr/*.parquet"), "x") == [3]
    assert column(open_source(f"{folder}/year=*/country=fr/*.parquet"), "year") == [2024]
    assert column(open_source(f"{folder}/year=202[3]"), "year") == [2023, 2023]


@pytest.mark.parametrize(
    ("parts", "name", "received", "fact"),
    [
        ({"a=1": {"x": [1]}, "b=1": {"x": [1]}}, None, "b=1", "a=1"),
        ({"a=1": {"x": [1]}, "more": {"x": [1]}}, "source", "more", "key=value"),
        ({"a=1": {"x": [1], "a": [1]}}, "a", None, "a=1/part-0.parquet"),
        ({"a=1": {"x": [1]}, "a=2": {"y": [1]}}, "x", None, "a=2/part-0.parquet"),
    ],
)
def test_partitions_that_do_not_fit(
    parts: dict[str, Any], name: str | None, received: str | None, fact: str, tmp_path: Path
) -> None:
    with refused(ConfigError, name=name, received=received, mentions=[fact]):
        open_source(hive(tmp_path / "sales", parts))


def test_partitions_of_another_split_have_the_types_of_train(tmp_path: Path) -> None:
    hive(tmp_path / "in" / "train", {"id=1": {"x": [1]}, "id=2": {"x": [2]}})
    hive(tmp_path / "in" / "test", {"id=two": {"x": [1]}})
    with refused(ConfigError, name="id", received="'two'", mentions=["int64"]):
        tfdist.data.write(tmp_path / "in", tmp_path / "out")


class Capsules:
    """A table of a library that nobody knows, by Arrow's protocol alone; iterating gives columns, as polars does."""

    def __init__(self, table: Any) -> None:
        self._table, self.columns = table, table.column_names

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)

    def __iter__(self) -> Any:
        return iter(self._table.columns)


class Interchange:
    """A table by the interchange protocol alone; iterating gives the names of its columns, as pandas does."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __dataframe__(self, *_: Any, **__: Any) -> Any:
        return self._table.__dataframe__()

    def __iter__(self) -> Any:
        return iter(range(2))


TABLE = pa.table({"0": [1, 2, 3], "1": ["a", "b", None]})


@pytest.mark.parametrize(
    "examples",
    [TABLE, TABLE.to_batches()[0], TABLE.to_reader, Capsules(TABLE), Interchange(TABLE)],
    ids=["table", "batch", "reader", "capsules", "interchange"],
)
def test_tables_in_memory(examples: Any) -> None:
    given = examples() if callable(examples) else examples
    source = open_source(given, options=Options(nulls={"1": ""}))
    assert told(source) == {"0": ("int64",), "1": ("string",)}
    assert source.count == 3
    assert column(source, "0") == [1, 2, 3]
    assert column(source, "1", 1, 3) == [b"b", b""]
    assert column(pickle.loads(pickle.dumps(source)), "0", 1) == [2, 3]  # noqa: S301


def test_a_table_is_written_and_read(tmp_path: Path) -> None:
    table = pa.table({"x": np.arange(2000), "label": np.arange(2000) % 3, "__index_level_0__": np.arange(2000)})
    manifest = tfdist.data.write(Capsules(table), tmp_path, num_shards=3, processes=1)
    assert list(manifest.schema) == ["label", "x"]
    assert [int(one["x"]) for one in tfdist.data.open(tmp_path)] == list(range(2000))
    with refused(ConfigError, name="examples", mentions=["0 rows", "2 columns"]):
        open_source(table.slice(0, 0))
    with refused(ConfigTypeError, name="examples", received="RecordBatch"):
        open_source(iter(table.to_batches()))
    of_pandas = SimpleNamespace(dtype=SimpleNamespace(na_value=None), isna=lambda: np.array([False, True, False]))
    for values in (pa.array([1, None, (1 << 53) + 1]), of_pandas):
        with refused(ConfigError, name="x", received=1, mentions=["1 nulls", "pyarrow.table"]):
            open_source({"x": values})


def test_the_command_says_what_it_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id;when;age\n18446744073709551615;2020-01-01;\n1;2020-01-02;30\n")
    words = ["--delimiter", ";", "--null", "age=-1", "--null-mask", "age"]
    done = CliRunner().invoke(main, ["data", "write", str(tmp_path / "a.csv"), str(tmp_path / "out"), *words])
    assert done.exit_code == 0, done.output
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()[2:]}
    assert rows["id"][0] == "uint64"
    assert " ".join(rows["when"]).endswith("days since 1970-01-01")
    assert rows["age_is_null"][0] == "bool"
    first = tfdist.data.open(tmp_path / "out")[0]
    assert (int(first["id"]), int(first["age"]), bool(first["age_is_null"])) == ((1 << 64) - 1, -1, True)
    wrong = CliRunner().invoke(main, ["data", "write", "a.csv", "out", "--null", "age"])
    assert wrong.exit_code == 2
    assert "is not COLUMN=VALUE" in wrong.stderr


@pytest.mark.parametrize(("numpy", "wanted"), [("1.26.4", "'pyarrow<26'"), ("2.4.6", "'tfdist[formats]'")])
def test_a_pyarrow_that_does_not_load_is_refused_with_what_would(
    numpy: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra would install the same one again beside the NumPy of TensorFlow 2.16 and 2.17."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr(np, "__version__", numpy)
    with refused(MissingDependencyError, name="pyarrow", mentions=[wanted]):
        arrow_types.arrow()
