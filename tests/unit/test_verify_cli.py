"""The command's words: help, list, and requests that make no sense; nothing runs here."""

import sys
from collections.abc import Sequence
from typing import Any

import pytest
from click.testing import CliRunner

from tests.refusals import absent
from tfdist import verify
from tfdist.cli.main import main
from tfdist.verify import pairs
from tfdist.verify.column import COLUMNS, Column
from tfdist.verify.feature import features
from tfdist.verify.matrix_report import Cell, Report


def test_list_names_every_feature_and_column() -> None:
    done = CliRunner().invoke(main, ["verify", "--list"], env={"COLUMNS": "300"})
    assert done.exit_code == 0
    for entry in features().values():
        assert f" {entry.name} " in done.output
        assert entry.summary in done.output
    for column in COLUMNS:
        assert column.name in done.output


def test_list_obeys_the_selection() -> None:
    done = CliRunner().invoke(main, ["verify", "--list", "--feature", "clip*", "--strategy", "mirrored-3"])
    assert "clipnorm" in done.output
    assert "even " not in done.output
    assert "mirrored-2" not in done.output


def test_combinations_are_rows_of_their_own() -> None:
    done = CliRunner().invoke(main, ["verify", "--pairs", "--list", "--feature", "adam-*"], env={"COLUMNS": "300"})
    assert done.exit_code == 0, done.output
    for row in pairs.ROWS:
        assert (" adam-" in f" {'-'.join(row.values())}") is ("-".join(row.values()) in done.output)
    assert "adam, around clipnorm, model " in done.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--feature", "evne"], "'evne'"),
        (["--pairs", "--feature", "even"], "'even'"),
        (["--feature", "adam-*"], "'adam-*'"),
        (["--strategy", "horovod"], "'horovod'"),
        (["--jobs", "0"], "--jobs"),
        (["--timeout-seconds", "-3"], "--timeout-seconds"),
        (["--features"], "--feature"),
        (["--steps", "3"], "--steps"),
        (["-n", "2"], "-n"),
        (["train.py", "--pairs"], "--pairs"),
        (["train.py", "--feature", "even"], "--feature"),
        (["there-is-no-such.py"], "there-is-no-such.py"),
    ],
)
def test_a_request_that_makes_no_sense_ends_with_2(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(main, ["verify", *arguments])
    assert done.exit_code == 2
    assert says in done.output


def report(columns: Sequence[Column], *cells: Cell) -> Report:
    names = tuple(column.name for column in columns)
    return Report(features={"even": "", "dropout": ""}, columns=names, cells=cells, versions={}, seconds=0.0)


def test_without_horovod_the_columns_of_the_ring_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def run(rows: Any, columns: Sequence[Column], **_: Any) -> Report:
        ran.extend(column.name for column in columns)
        return report(columns)

    monkeypatch.setattr(verify, "run", run)
    monkeypatch.setitem(sys.modules, "horovod", None)
    done = CliRunner().invoke(main, ["verify"])
    assert done.exit_code == 0, done.output
    assert ran == [column.name for column in COLUMNS if column.strategy != "ring"]
    assert not absent(done.output, "left out: ring-2, ring-3, ring-2x2", "tfdist build horovod")
    named = CliRunner().invoke(main, ["verify", "--strategy", "ring"])
    assert named.exit_code == 1
    assert "tfdist build horovod" in named.output
    assert not [name for name in ran if name.startswith("ring")]


def test_what_ends_a_whole_column_is_explained_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [
        Cell(feature=name, column="mirrored-2", status="error", error="ImportError", detail="no such library")
        for name in ("even", "dropout")
    ]
    monkeypatch.setattr(verify, "run", lambda rows, columns, **_: report(columns, *cells))
    done = CliRunner().invoke(main, ["verify", "--strategy", "mirrored-2"])
    assert done.exit_code == 1
    assert done.output.count("no such library") == 1
    assert not absent(done.output, "even and 1 more", "mirrored-2: ERROR ImportError")
