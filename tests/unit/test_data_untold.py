"""Facts that the type of a column leaves open: the shape of nested lists, and the type of a column without values."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.refusals import refused
from tests.unit.test_data_source_kinds import column
from tfdist.data.format.schema import Feature
from tfdist.data.sources import Options, open_source
from tfdist.data.sources.tables.arrow_table import UntoldError
from tfdist.errors import ConfigError

MATRIX = [[[1, 2], [3, 4], [5, 6]], [[7, 8], [9, 10], [11, 12]], [[0, 0], [0, 0], [0, 1]]]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.list_(pa.int16())),
        pa.large_list(pa.list_(pa.int16(), 2)),
        pa.list_(pa.large_list(pa.int16()), 3),
    ],
)
def test_lists_in_lists_of_one_length_are_arrays(kind: Any, tmp_path: Path) -> None:
    values = pa.array(MATRIX, kind)
    table = pa.table({"x": values, "y": pa.StructArray.from_arrays([values], ["z"])})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    pyarrow.parquet.write_table(table.slice(1), tmp_path / "b.parquet")
    for examples, expected in ((tmp_path, MATRIX + MATRIX[1:]), (table, MATRIX)):
        source = open_source(examples)
        assert dict(source.schema) == {"x": Feature("int16", (3, 2)), "y.z": Feature("int16", (3, 2))}
        for name in source.schema:
            assert column(source, name) == expected
            assert column(source, name, 1, 3) == expected[1:3]
    asked = open_source(table, schema={"x": Feature("float32", (3, 2))})
    assert column(asked, "x") == MATRIX


def test_a_column_without_values_is_told_by_other_files(tmp_path: Path) -> None:
    given = {"x": [1.5, None], "y": [["a"], ["b"]]}
    pyarrow.parquet.write_table(pa.table({"x": pa.nulls(2), "y": given["y"]}), tmp_path / "0.parquet")
    pyarrow.parquet.write_table(
        pa.table(given, pa.schema({"x": "float32", "y": pa.list_(pa.string())})), tmp_path / "1.parquet"
    )
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "0.csv").write_text("x,y\n,1\n,2\n")
    (tmp_path / "csv" / "1.csv").write_text("x,y\n1.5,1\n,2\n")
    for source in (tmp_path / "*.parquet", tmp_path / "csv"):
        found = open_source(source, options=Options(nulls={"x": -1}))
        assert found.schema["x"] == Feature("float32")
        assert column(found, "x") == [-1, -1, 1.5, -1]
        with refused(ConfigError, name="x", received="null", mentions=["Example 0", "nulls="]):
            list(open_source(source).blocks(0, None))


def test_a_column_without_values_in_any_file_needs_a_schema(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pa.table({"x": pa.nulls(2), "y": [1, 2]}), tmp_path / "0.parquet")
    (tmp_path / "0.csv").write_text("x,y\n,1\n,2\n")
    options = Options(nulls={"x": -1})
    for source in (tmp_path / "0.parquet", tmp_path / "0.csv", pa.table({"x": pa.nulls(2), "y": [1, 2]})):
        with refused(UntoldError, name="x", mentions=["tfdist.data.Feature", "nulls={'x'"]):
            open_source(source, options=options)
        said = open_source(source, schema={"x": Feature("float32"), "y": Feature("int64")}, options=options)
        assert column(said, "x") == [-1, -1]
        assert list(open_source(source, schema={"y": Feature("int64")}).schema) == ["y"]


def test_lists_are_of_the_type_of_the_first_that_is_not_empty() -> None:
    lists = {"x": [[], [1, 2]], "text": [[], ["a"]], "none": [[], []]}
    schema = open_source(lists).schema
    assert {name: (one.dtype, one.shape) for name, one in schema.items()} == {
        "x": ("int64", (None,)),
        "text": ("string", (None,)),
        "none": ("float32", (0,)),
    }


@pytest.mark.parametrize("examples", [{"x": [[[1, 2], [3]]]}, [{"x": [[1, 2], [3]]}], [{"x": [["a"], ["b", "c"]]}]])
def test_lists_of_several_lengths_in_a_list_are_no_array(examples: Any) -> None:
    with refused(ConfigError, name="x"):
        open_source(examples)
