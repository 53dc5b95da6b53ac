"""The matrix through real processes: what is right, what goes wrong in every way, and nothing left behind."""

import importlib
import json
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from tests.integration.agents import says
from tests.integration.forks import Fork, Forks
from tests.integration.light import python_path
from tests.integration.matrix import CELL_SECONDS
from tfdist.verify import Column, feature, run
from tfdist.verify.matrix_report import Cell, Report

CASES = Path(__file__).parent / "cases"
PATIENT = ["--timeout-seconds", str(CELL_SECONDS)]
TWO = Column(name="two", strategy="mirrored", replicas_per_worker=2)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which the matrix keeps its outcomes; it is empty again after every run."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setenv("PYTHONPATH", python_path(CASES))
    monkeypatch.syspath_prepend(str(CASES))
    return directory


def cases(*names: str) -> list[feature.Feature]:
    importlib.import_module("matrix_cases")
    return [feature.registered(name) for name in names]


def cells(report: Report, *, baseline: bool) -> dict[str, Cell]:
    return {cell.feature: cell for cell in report.cells if cell.baseline is baseline}


def test_every_way_to_go_wrong_is_told_apart_and_the_rest_goes_on(temporary: Path, forking: Forks) -> None:
    names = ["other", "raising", "dying", "hanging", "no_reference", "layout", "several_workers", "same"]
    seen: list[Cell] = []
    with forking.for_pools():
        report = run(cases(*names), [TWO], on_cell=seen.append)
    found = cells(report, baseline=False)
    assert [cell.feature for cell in seen] == names
    assert {name: cell.status for name, cell in found.items()} == {
        "other": "wrong",
        "raising": "error",
        "dying": "crash",
        "hanging": "hang",
        "no_reference": "error",
        "layout": "green",
        "several_workers": "left out",
        "same": "green",
    }
    assert found["other"].difference == 0.5
    assert found["other"].detail == "number: 1.5, one device has 1.0"
    assert found["raising"].text == "ERROR LookupError"
    assert "SIGKILL" in found["dying"].detail
    assert "matrix_cases.py" in found["hanging"].detail
    assert found["no_reference"].error == "LookupError on one device"
    assert not report.is_green
    assert report.versions.keys() == {"TensorFlow", "Keras", "tfdist", "Python"}
    assert list(temporary.iterdir()) == []


@pytest.mark.readme("tfdist verify")
def test_the_command_shows_what_is_repaired(temporary: Path, forking: Forks) -> None:
    features = [word for name in ("even", "partial_batch", "dropout") for word in ("--feature", name)]
    request = ["--baseline", "--strategy", "mirrored-2", *features, "--json", "-", *PATIENT]
    with forking.start("tfdist", "verify", *request, TMPDIR=str(temporary)) as process:
        out, err = (text.decode() for text in process.communicate())
    assert process.returncode == 0, out + err
    read = json.loads(out)
    status = {(cell["feature"], cell["baseline"]): cell["status"] for cell in read["cells"]}
    assert status == {
        ("even", True): "green",
        ("partial_batch", True): "wrong",
        ("dropout", True): "wrong",
        ("even", False): "green",
        ("partial_batch", False): "green",
        ("dropout", False): "green",
    }
    assert "mirrored-2 plain partial_batch: WRONG" in err
    assert list(temporary.iterdir()) == []


def test_plain_tensorflow_fails_at_once_on_several_workers(forking: Forks) -> None:
    column = Column(name="2x1", strategy="multi-worker", workers=2)
    with forking.for_pools():
        report = run(feature.select(["even", "clipnorm"]), [column], baseline=True)
    assert report.is_green
    for cell in cells(report, baseline=True).values():
        assert (cell.status, cell.error) == ("error", "ValueError")


OWN_CASES = """
import sys
import tempfile
from tests.integration import forked
sys.path.insert(0, {cases!r})
import matrix_cases
from tfdist.verify import feature
tempfile.tempdir = None  # what the process that forks has found out
feature.features = lambda: {{name: feature.registered(name) for name in {names!r}}}
forked.run_tfdist(sys.argv[1:])
"""


Start = Callable[..., AbstractContextManager[Fork]]


@pytest.fixture
def start(forking: Forks, tmp_path: Path, temporary: Path) -> Start:
    """Starts the command with cases of these tests as its features."""

    def started(names: Sequence[str], *arguments: str, **environment: str) -> AbstractContextManager[Fork]:
        script = tmp_path / "verify.py"
        script.write_text(OWN_CASES.format(cases=str(CASES), names=list(names)))
        environment |= {"TMPDIR": str(temporary), "PYTHONPATH": python_path(CASES)}
        return forking.start(str(script), "verify", "--strategy", "mirrored-2", *PATIENT, *arguments, **environment)

    return started


def test_a_cell_that_is_not_green_ends_with_1_and_is_explained(start: Start) -> None:
    with start(["same", "other"]) as process:
        output = process.communicate()[0].decode()
    assert process.returncode == 1, process.written
    assert "WRONG 5.0e-01" in output
    assert "number: 1.5, one device has 1.0" in output
    assert says(output, "1 of 2 cells green", "1 wrong")


def test_markdown_and_files(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    with start(["same"], "--markdown", "--json", str(path)) as process:
        output = process.communicate()[0].decode()
    assert process.returncode == 0, process.written
    assert output.splitlines()[:3] == ["| feature | mirrored-2 |", "|---|---|", "| same | 0 |"]
    assert json.loads(path.read_text())["is_green"] is True


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_nothing_but_a_report_of_what_has_run(
    number: signal.Signals, code: int, temporary: Path, tmp_path: Path, start: Start
) -> None:
    begun, path = tmp_path / "begun", tmp_path / "report.json"
    with start(["same", "never_ending"], "--json", str(path), MATRIX_BEGUN=str(begun)) as process:
        deadline = time.monotonic() + 200
        while not (begun.exists() and begun.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        workers = psutil.Process(process.pid).children(recursive=True)
        assert int(begun.read_text()) in [worker.pid for worker in workers]
        assert list(temporary.iterdir())
        process.send_signal(number)
        process.wait()
    assert process.returncode == code, process.written
    report = json.loads(path.read_text())
    assert [(cell["feature"], cell["status"]) for cell in report["cells"]] == [("same", "green")]
    assert report["cells_left"] == 1
    assert not psutil.wait_procs(workers, timeout=200)[1]
    assert list(temporary.iterdir()) == []
