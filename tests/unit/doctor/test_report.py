"""The run of the checks, the report, and the command."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tfdist import doctor
from tfdist.cli.main import main
from tfdist.doctor import Check, Finding, Level
from tfdist.doctor.finding import note, ok, problem, warning

FINDINGS = [
    ok("python", "3.11.7"),
    note("nccl", "not installed", "needed from two GPUs on", "python -m pip install 'tfdist[cuda]'"),
    problem("keras-backend", "'jax'", "tfdist distributes through TensorFlow", "export KERAS_BACKEND=tensorflow"),
]


def crash() -> list[Finding]:
    raise OSError("no such device")


def test_a_check_that_crashes_hides_no_other() -> None:
    findings = doctor.examine([Check("first", lambda: FINDINGS[:1]), Check("bad", crash), Check("last", list)])
    assert [(finding.check, finding.level) for finding in findings] == [("python", Level.OK), ("bad", Level.WARNING)]
    assert findings[1].seen == "OSError: no such device"


def test_the_worst_finding_decides() -> None:
    assert doctor.worst([]) is Level.OK
    assert doctor.worst(FINDINGS) is Level.PROBLEM
    assert doctor.worst([*FINDINGS[:2], warning("x", "y", "z")]) is Level.WARNING


def test_the_report_has_the_documented_fields() -> None:
    report = doctor.as_report(FINDINGS)
    assert list(report) == ["schema", "tfdist", "level", "findings"]
    assert (report["schema"], report["level"]) == ("tfdist.doctor/1", "problem")
    assert report["findings"][0] == {"check": "python", "level": "ok", "seen": "3.11.7", "why": "", "cure": ""}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    def with_findings(findings: list[Finding], *arguments: str) -> tuple[int, str]:
        checks = [Check("all", lambda: findings)]
        monkeypatch.setattr(doctor, "standard_checks", lambda *, timeout_seconds: checks)
        result = CliRunner().invoke(main, ["doctor", *arguments])
        return result.exit_code, result.output

    return with_findings


def test_the_command_prints_a_table(run: Callable[..., tuple[int, str]]) -> None:
    code, output = run(FINDINGS)
    assert code == 1
    lines = output.splitlines()
    assert lines[0] == "ok      python         3.11.7"
    assert lines[-1] == "1 problem, 0 warnings, 1 note, 1 ok"
    assert "$ export KERAS_BACKEND=tensorflow" in output
    assert not any(line != line.rstrip() for line in lines)


def test_the_command_succeeds_without_a_problem(run: Callable[..., tuple[int, str]]) -> None:
    assert run(FINDINGS[:2])[0] == 0


def test_the_command_prints_json(run: Callable[..., tuple[int, str]]) -> None:
    code, output = run(FINDINGS, "--json")
    assert code == 1
    assert json.loads(output) == doctor.as_report(FINDINGS)


def test_the_standard_checks_have_distinct_names_and_do_nothing_yet() -> None:
    names = [check.name for check in doctor.standard_checks(timeout_seconds=1, environ={})]
    assert len(set(names)) == len(names) >= 20


def test_every_check_is_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text()
    names = [check.name for check in doctor.standard_checks(timeout_seconds=1, environ={})]
    assert [name for name in names if f"`{name}`" not in text.split("## Checks")[1]] == []
    assert f'"schema": "{doctor.as_report([])["schema"]}"' in text
