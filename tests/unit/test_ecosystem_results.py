"""`make ecosystem` without its packages: what is run, what is kept, and the table that follows."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ecosystem import __main__ as command
from ecosystem.results import Result, Results, tables
from ecosystem.rows import ROWS_OF_THE_TABLE
from tests.refusals import absent
from tfdist.verify import column
from tfdist.verify.matrix_report import Cell, Report

VERSIONS = {"tensorflow": "2.21.0", "keras": "3.15.1"}
GREEN = Cell(feature="T5", column="mirrored-2", status="green", difference=2e-7)
REFUSED = Cell(feature="T5", column="pipeline-2", status="refused", detail="worker 1: no graph\n  x")


def test_the_newest_result_of_a_cell_is_kept_over_processes(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    wrong = Cell(feature="T5", column="mirrored-2", status="wrong", difference=0.5)
    for cell in (wrong, GREEN, REFUSED):
        Results(path).add(Result(cell, VERSIONS, "2026-11-29"))
    assert {result.cell for result in Results(path)} == {GREEN, REFUSED}
    assert [name.name for name in tmp_path.iterdir()] == ["results.json"]


@pytest.mark.parametrize(
    ("cell", "versions", "again", "expected"),
    [
        (GREEN, VERSIONS, False, False),
        (GREEN, VERSIONS, True, True),
        (GREEN, {**VERSIONS, "keras": "3.15.0"}, False, True),
        (Cell(feature="T5", column="mirrored-2", status="wrong", difference=0.5), VERSIONS, False, True),
        (REFUSED, VERSIONS, False, True),  # of another column
    ],
)
def test_what_is_right_with_these_versions_is_not_run_again(
    cell: Cell, versions: dict[str, str], again: bool, expected: bool, tmp_path: Path
) -> None:
    results = Results(tmp_path / "results.json")
    results.add(Result(cell, versions, "2026-11-29"))
    (one,) = column.select(["mirrored-2"])
    row = command.missing(ROWS_OF_THE_TABLE["T5"], (one,), results, VERSIONS, again=again)
    assert row.applies(one) is expected


def test_a_table_numbers_its_refusals_and_tells_of_versions_and_days(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    for cell, day in ((GREEN, "2026-11-28"), (REFUSED, "2026-11-29")):
        results.add(Result(cell, VERSIONS, day))
    text = tables(results, {"T5": "", "DLRM": ""}, [("mirrored-2", "ring-2"), ("pipeline-2",)])
    assert "| T5 | 2e-07 |  |\n" in text
    assert "| T5 | refused (1) |\n" in text
    assert "\n1. no graph\n" in text
    assert "DLRM" not in text
    assert not absent(text, "2 cells", "2026-11-28 to 2026-11-29", "tensorflow 2.21.0", "keras 3.15.1")


def test_the_reason_of_a_refusal_within_a_layer_is_not_that_a_layer_was_called(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    within = "worker 0: Exception encountered when calling Some.call().\n\n\x1b[1mno graph\x1b[0m\n\nArguments: x\n"
    results.add(Result(replace(REFUSED, detail=within), VERSIONS, "2026-11-29"))
    assert "\n1. no graph\n" in tables(results, {"T5": ""}, [("pipeline-2",)])


def test_refusals_that_differ_in_names_alone_have_one_number(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    for name in ("pipeline-2", "sharded-3"):
        cell = replace(REFUSED, column=name, detail=f"the layer '{name}' is whole. Cut it.")
        results.add(Result(cell, VERSIONS, "2026-11-29"))
    text = tables(results, {"T5": ""}, [("pipeline-2", "sharded-3")])
    assert text.count("refused (1)") == 2
    assert "refused (2)" not in text
    assert not absent(text, "1. the layer ... is whole")


def test_the_command_runs_what_is_missing_and_fails_on_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[list[str]] = []
    statuses = iter(("wrong", "green"))

    def run(rows: Any, columns: Any, *, jobs: int, deadline_seconds: float, on_cell: Any) -> Report:
        ran.append([f"{row.name} {one.name}" for row in rows for one in columns if row.applies(one)])
        on_cell(
            Cell(feature=rows[0].name, column=columns[0].name, status=next(statuses), difference=0.25, detail="w/0")
        )
        return Report(features={}, columns=(), cells=())

    monkeypatch.setattr(command.verify, "run", run)
    monkeypatch.setattr(command.importlib.metadata, "version", lambda name: "1.0")
    path = tmp_path / "results.json"
    options = ["--results", str(path), "--model", "T5", "--strategy", "mirrored-2"]
    assert command.main(options) == 1
    assert not absent(capsys.readouterr().out, "WRONG 2.5e-01", "w/0")
    assert command.main(options) == 0
    assert command.main(options) == 0
    assert ran == [["T5 mirrored-2"]] * 2
    assert json.loads(path.read_text())[0]["cell"]["status"] == "green"


@pytest.mark.parametrize("options", [["--model", "T6"], ["--strategy", "mirored-2"]])
def test_a_name_that_is_unknown_is_refused_with_the_nearest(
    options: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert command.main([*options, "--results", str(tmp_path / "results.json")]) == 2
    assert not absent(capsys.readouterr().err, options[1], "T5" if "T6" in options else "mirrored-2")


def test_the_page_has_columns_that_exist() -> None:
    names = [name for group in command.GROUPS for name in group]
    assert [one.name for name in names for one in column.select([name])] == names
