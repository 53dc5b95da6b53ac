"""The guard of releases, without processes of its own: its figures, its verdict, and what is refused."""

import json
import subprocess
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from tfdist.bench import guard_bench
from tfdist.bench.guard_bench import BEFORE, NOW, GuardBench, GuardReport, Table
from tfdist.cli.main import main
from tfdist.errors import ConfigError, TfdistError

MACHINE = dict.fromkeys(
    ("processor", "cores", "tensorflow", "horovod", "python", "time", "load average", "load average at the end"), "x"
)
ROWS = ("fit", "reading")


def wheel(folder: Path, *files: str) -> str:
    path = folder / "tfdist-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in files:
            archive.writestr(file, "")
    return str(path)


def measured(side: Path, part: str, scale: int, folder: Path) -> dict[str, float]:
    """Return the seconds of a side: reading takes twice as long now, a step half as long."""
    assert (side / "tfdist" / "__init__.py").is_file()
    is_before = side.parent == folder
    return {"reading": 1.0 if is_before else 2.0} if part == "alone" else {"fit": 2.0 if is_before else 1.0}


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_bench, "_measured", measured)


@pytest.mark.parametrize(("least", "code"), [(0.9, 1), (0.5, 0)])
def test_a_row_that_is_slower_than_the_least_ends_with_1(
    patched: None, tmp_path: Path, least: float, code: int
) -> None:
    file = tmp_path / "report.json"
    options = ["--wheel", wheel(tmp_path, "tfdist/__init__.py"), "--rounds", "2", "--least", str(least)]
    done = CliRunner().invoke(main, ["bench", "guard", *options, "--json", str(file)])
    assert done.exit_code == code, done.output
    said = json.loads(file.read_text())
    assert {row: said["ratios"][row]["median"] for row in ROWS} == {"fit": 2.0, "reading": 0.5}
    assert said["slower"] == (["reading"] if code else [])
    assert said["seconds"]["fit"] == {BEFORE: [2.0, 2.0], NOW: [1.0, 1.0]}  # what warms up does not count


def test_the_table_names_what_is_slower() -> None:
    seconds = {"fit": {BEFORE: [1.0] * 3, NOW: [1.0] * 3}, "reading": {BEFORE: [0.8] * 3, NOW: [1.0] * 3}}
    table, _ = GuardReport(setup=GuardBench(ref="v0"), seconds=seconds, machine=MACHINE).shown()
    assert isinstance(table, Table)
    assert [list(row) for row in table.rows] == [
        ["fit", "1e+03", "1e+03", "1.00 [1.00-1.00]", ""],
        ["reading", "800", "1e+03", "0.80 [0.80-0.80]", "slower"],
    ]


@pytest.mark.parametrize("options", [{}, {"wheel": "a", "ref": "b"}, {"ref": "b", "rounds": 0}])
def test_options_are_checked(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        GuardBench(**options)


def test_what_has_no_tfdist_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no wheel")
    setups = [GuardBench(wheel=one) for one in (str(text), str(tmp_path / "none"), wheel(tmp_path, "keras/x.py"))]
    for number, setup in enumerate([*setups, GuardBench(ref="no-such-ref")]):
        with pytest.raises(ConfigError) as caught:
            guard_bench._unpack(setup, tmp_path / str(number))
        assert caught.value.received == (setup.wheel or setup.ref)


def test_another_tfdist_than_that_of_the_side_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def run(command: list[str], **_: object) -> "subprocess.CompletedProcess[bytes]":
        for one in said:
            Path(command[-3]).write_text(json.dumps({"tfdist": one, "seconds": {"fit": 1.0}}))
        return subprocess.CompletedProcess(command, 3, stdout=b"the reason")

    monkeypatch.setattr(guard_bench.subprocess, "run", run)
    with pytest.raises(TfdistError, match="the reason"):
        guard_bench._measured(tmp_path, "alone", 1, tmp_path)
    said.append(str(tmp_path))
    assert guard_bench._measured(tmp_path, "alone", 1, tmp_path) == {"fit": 1.0}
    said.append("/elsewhere")
    with pytest.raises(TfdistError, match="/elsewhere"):
        guard_bench._measured(tmp_path, "workers", 1, tmp_path)
