"""Nulls in lists and matrices of tables: replaced where asked, otherwise refused with the row and the way on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from click.testing import CliRunner

from tests.refusals import refused
from tfdist import data
from tfdist.cli.main import main
from tfdist.data.sources import Options, open_source
from tfdist.errors import ConfigError, CorruptDataError

F32 = pa.float32()
#: types of matrices of 2 x 2
MATRICES = {
    "fixed in fixed": pa.list_(pa.list_(F32, 2), 2),
    "list in fixed": pa.list_(pa.list_(F32), 2),
    "fixed in list": pa.list_(pa.list_(F32, 2)),
    "list in list": pa.list_(pa.list_(F32)),
    "large lists": pa.large_list(pa.large_list(F32)),
}


def in_parquet(table: pa.Table, folder: Path) -> Any:
    pyarrow.parquet.write_table(table, folder / "a.parquet", row_group_size=2)
    return folder / "a.parquet"


def in_arrow(table: pa.Table, folder: Path) -> Any:
    with pa.OSFile(str(folder / "a.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table, max_chunksize=2)
    return folder / "a.arrow"


def in_memory(table: pa.Table, folder: Path) -> Any:
    return table


PLACES: dict[str, Callable[[pa.Table, Path], Any]] = {"parquet": in_parquet, "arrow": in_arrow, "memory": in_memory}


def column(source: Any, name: str, start: int = 0, stop: int | None = None) -> list[Any]:
    blocks = source.blocks(start, stop)
    return [value.tolist() if isinstance(value, np.ndarray) else value for block in blocks for value in block[name]]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", MATRICES)
def test_matrices(place: str, kind: str, tmp_path: Path) -> None:
    whole: list[Any] = [[[n, n + 0.5], [-n, 7]] for n in range(1, 6)]
    write = PLACES[place]
    source = open_source(write(pa.table({"x": pa.array(whole, MATRICES[kind])}), tmp_path))
    assert source.schema["x"].shape == (2, 2)
    assert column(source, "x") == whole
    assert column(source, "x", 1, 4) == whole[1:4]

    holed = [whole[0], None, [[1, None], [None, 4]], whole[3], whole[4]]
    asked = write(pa.table({"x": pa.array(holed, MATRICES[kind])}), tmp_path)
    with refused(ConfigError, name="x", received="null", mentions=["Example 1", "--null x"]):
        column(open_source(asked), "x")
    zeros = Options({"x": [[0, 0], [0, 0]]})
    with refused(ConfigError, name="x", received="a list with a null", mentions=["Example 2", "--null 'x[]"]):
        column(open_source(asked, options=zeros), "x")
    filled = open_source(asked, options=Options({"x": [[0, 0], [0, 0]], "x[]": "-1"}, ["x"]))
    assert column(filled, "x") == [whole[0], [[0, 0], [0, 0]], [[1, -1], [-1, 4]], whole[3], whole[4]]
    assert column(filled, "x_is_null") == [False, True, False, False, False]
    assert filled.identity != open_source(asked, options=Options({"x": [[0, 0], [0, 0]], "x[]": "-2"})).identity

    rowless = [whole[0], whole[1], [None, [1, 2]]]
    asked = write(pa.table({"x": pa.array(rowless, MATRICES[kind])}), tmp_path)
    with refused(ConfigError, name="x", mentions=["Example 2", "(2, 2)"]):
        column(open_source(asked, options=Options({"x[]": 0})), "x")


@pytest.mark.parametrize("place", PLACES)
def test_lists(place: str, tmp_path: Path) -> None:
    columns = {
        "n": (pa.array([[1, None], [], None, [None], [5]], pa.list_(pa.int16())), "7", [[1, 7], [], [7], [7], [5]]),
        "f": (pa.array([[1, None], [2, 3], None], pa.list_(F32, 2)), "nan", None),
        "t": (pa.array([["a", None], [None], ["b"]]), "?", [[b"a", b"?"], [b"?"], [b"b"]]),
        "d": (pa.array([[0, None], [3]], pa.list_(pa.date32())), "-1", [[0, -1], [3]]),
        "c": (pa.array([["a", None]], pa.list_(pa.dictionary(pa.int8(), pa.string()))), "?", [[b"a", b"?"]]),
    }
    for name, (values, fill, expected) in columns.items():
        asked = PLACES[place](pa.table({name: values}), tmp_path)
        rows = {"n": [7], "f": [0, 0]}.get(name, [])
        with refused(ConfigError, name=name, mentions=["Example 0", f"--null '{name}[]"]):
            column(open_source(asked, options=Options({name: rows})), name)
        found = column(open_source(asked, options=Options({name: rows, f"{name}[]": fill})), name)
        if expected is None:
            assert [found[0][0], *found[1:]] == [1, [2, 3], [0, 0]]
            assert np.isnan(found[0][1])
        else:
            assert found == expected


@pytest.mark.parametrize(
    ("nulls", "name", "facts"),
    [
        ({"n[]": 0}, "nulls", ["'l', 'n'"]),
        ({"z[]": 0}, "nulls", ["'l'"]),
        ({"l[]": 0.5}, "l", ["nulls: Example 0"]),
        ({"l[]": [0]}, "l", ["nulls: Example 0"]),
    ],
)
def test_what_cannot_stand_for_nulls_in_lists(nulls: dict[str, Any], name: str, facts: list[str]) -> None:
    with refused(ConfigError, name=name, mentions=facts):
        open_source(pa.table({"n": [1, 2], "l": [[1], [2, None]]}), options=Options(nulls))


def test_rows_with_nulls_of_arrow_files_are_named_skipped_or_written(tmp_path: Path) -> None:
    rows = [[number] for number in range(9)] + [[9, None], None]
    path = in_arrow(pa.table({"id": range(11), "l": pa.array(rows, pa.list_(pa.int64()))}), tmp_path)
    examples = data.open(path)
    assert examples[8]["l"].tolist() == [8]
    with refused(CorruptDataError, mentions=("example 9", "tfdist data write")):
        list(examples.each([3, 9, 4]))
    with refused(CorruptDataError, mentions=("example 10",)):
        list(examples.each([3, 10, 4]))
    wrong = CliRunner().invoke(main, ["data", "write", str(path), str(tmp_path / "out"), "--null", "l=[]"])
    assert wrong.exit_code == 2
    assert "--null 'l[]=...'" in " ".join(wrong.stderr.split())
    options = ["--null", "l=[]", "--null", "l[]=-1", "--null-mask", "l"]
    done = CliRunner().invoke(main, ["data", "write", str(path), str(tmp_path / "out"), *options])
    assert done.exit_code == 0, done.output
    written = data.open(tmp_path / "out")
    assert [row["l"].tolist() for row in written] == [*rows[:9], [9, -1], []]
    assert written.numbers("l_is_null").tolist() == [False] * 10 + [True]


def test_a_saved_dataset_is_written_in_the_order_of_its_state(tmp_path: Path) -> None:
    for name, first in (("b", 0), ("a", 3)):
        folder = tmp_path / name
        folder.mkdir()
        in_arrow(pa.table({"id": range(first, first + 3)}), folder).rename(tmp_path / f"{name}.arrow")
        folder.rmdir()
    state = tmp_path / "state.json"
    state.write_text('{"_data_files": [{"filename": "b.arrow"}, {"filename": "a.arrow"}]}')
    assert column(open_source(tmp_path), "id") == list(range(6))
    state.write_text('{"_data_files": [{"filename": "b.arrow"}], "_indices_data_files": [{"filename": "a.arrow"}]}')
    with refused(ConfigError, path=str(tmp_path), mentions=("flatten_indices",)):
        open_source(tmp_path)


def test_views_of_texts_are_read_where_they_lie(tmp_path: Path) -> None:
    view, long = pa.string_view(), "ü" * 30  # a view stores up to 12 bytes inline
    table = pa.table(
        {
            "text": pa.array(["a", long, "b"], view),
            "texts": pa.array([["c"], [], [long, "d"]], pa.list_(view)),
            "inner": pa.array([{"text": one} for one in ("e", "f", long)], pa.struct([("text", view)])),
            "bytes": pa.array([b"g", b"", b"\0"], pa.binary_view()),
        }
    )
    examples = list(data.open(in_arrow(table, tmp_path)))
    found = [[row["text"], list(row["texts"]), row["inner.text"], row["bytes"]] for row in examples]
    assert found == [
        [b"a", [b"c"], b"e", b"g"],
        [long.encode(), [], b"f", b""],
        [b"b", [long.encode(), b"d"], long.encode(), b"\0"],
    ]
