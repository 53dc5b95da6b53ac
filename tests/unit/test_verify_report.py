"""The report: texts of cells, summary, JSON and Markdown."""

import json
import math
from dataclasses import replace

import pytest

from tests.refusals import absent
from tfdist.verify.matrix_report import Cell, Report, Status

GREEN = Cell(feature="even", column="mirrored-2", status="green", difference=3.4e-8, seconds=1.0)
WRONG = Cell(feature="partial", column="mirrored-2", status="wrong", difference=0.0171, detail="loss: 1, one device 2")
PLAIN = replace(WRONG, baseline=True)


def report(*cells: Cell) -> Report:
    return Report(
        features={"even": "Even.", "partial": "Partial."},
        columns=("mirrored-2", "multi-worker-2x1"),
        cells=cells,
        versions={"TensorFlow": "2.21.0"},
        seconds=12.34,
    )


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (GREEN, "3e-08"),
        (replace(GREEN, difference=0.0), "0"),
        (replace(GREEN, difference=2.3e-4), "2.3e-04"),
        (WRONG, "WRONG 1.7e-02"),
        (replace(WRONG, difference=math.inf), "WRONG differs"),
        (replace(WRONG, status="error", error="RuntimeError"), "ERROR RuntimeError"),
        (replace(WRONG, status="hang"), "HANG"),
        (replace(WRONG, status="crash"), "CRASH"),
        (replace(WRONG, status="refused"), "refused"),
        (replace(WRONG, status="left out"), "-"),
    ],
)
def test_texts_of_cells(cell: Cell, text: str) -> None:
    assert cell.text == text


@pytest.mark.parametrize(
    ("status", "green"),
    [
        ("green", True),
        ("refused", True),
        ("left out", True),
        ("wrong", False),
        ("error", False),
        ("hang", False),
        ("crash", False),
    ],
)
def test_what_makes_a_report_green(status: Status, green: bool) -> None:
    assert report(GREEN, replace(WRONG, status=status)).is_green is green


def test_the_baseline_does_not_decide() -> None:
    assert report(GREEN, PLAIN).is_green
    assert not report(GREEN, PLAIN, WRONG).is_green


def test_the_summary_counts_both_kinds() -> None:
    left_out = replace(GREEN, feature="x", status="left out")
    plain, ours, left = report(GREEN, WRONG, left_out, PLAIN).summary().splitlines()
    assert not absent(plain, "plain Keras", "0 of 1 cells", "1 wrong")
    assert not absent(ours, "tfdist: ", "1 of 2 cells", "1 wrong")
    assert not absent(left, "not run: 4 cells")


def test_json_holds_every_cell_and_no_infinity() -> None:
    read = json.loads(report(GREEN, replace(WRONG, difference=math.inf)).to_json())
    assert read["is_green"] is False
    assert [cell["text"] for cell in read["cells"]] == ["3e-08", "WRONG differs"]
    assert [cell["difference"] for cell in read["cells"]] == [3.4e-8, None]
    assert read["versions"] == {"TensorFlow": "2.21.0"}


def test_markdown_has_a_row_per_feature_and_plain_before_tfdist() -> None:
    lines = report(GREEN, WRONG, PLAIN).to_markdown().splitlines()
    assert lines[0] == "| feature | mirrored-2 (plain) | mirrored-2 |"
    assert lines[2:4] == ["| even |  | 3e-08 |", "| partial | WRONG 1.7e-02 | WRONG 1.7e-02 |"]
    assert lines[-1] == "TensorFlow 2.21.0"


def test_columns_that_did_not_run_have_no_lane() -> None:
    assert report(GREEN).lanes() == (("mirrored-2", False),)
