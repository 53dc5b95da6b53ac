"""`make compat` without another TensorFlow: what it refuses, what it installs, and what follows from what was run."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compat import __main__ as command
from tests.compat import environment, processes
from tests.compat.choice import COLUMNS, TEST
from tests.compat.outcomes import Outcome, of_column, of_tests, row
from tests.refusals import absent
from tfdist.compat.version_pairs import MAIN, TESTED, Pair, Standing
from tfdist.training.checks import untested
from tfdist.variables import UNTESTED_VERSIONS
from tfdist.verify import column, feature

PAIR = Pair("2.18.1", MAIN.keras)
VERSIONS = {"tensorflow": "2.18.1", "keras": "3.15.1", "python": "3.11.7", "numpy": "1.26.4"}
PIPS_ERROR = "ERROR: No matching distribution found for tensorflow==2.18.9"


def test_what_is_chosen_exists() -> None:
    assert (processes.REPOSITORY / TEST).is_file()
    rows = {row.name: row for row in feature.select(())}
    for chosen in COLUMNS:
        (there,) = column.select([chosen.name])
        assert (there.strategy == "ring") is chosen.needs_horovod
        assert len(set(chosen.features)) == len(chosen.features) > 5
        for name in chosen.features:
            assert rows[name].applies(there), f"{name} is left out under {chosen.name}"


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ([], ["make compat TENSORFLOW="]),
        (["--tensorflow", ""], ["make compat TENSORFLOW="]),
        (["--tensorflow", "2.15.0"], ["TensorFlow 2.15.0", "out of range", "setup.py"]),
        (["--tensorflow", "2.18.1", "--keras", "3.3.0"], ["Keras 3.3.0", "out of range"]),
        (["--tensorflow", "../../2.18.1"], ["out of range"]),
    ],
)
def test_a_pair_that_cannot_be_run_is_refused_before_anything_is_made(
    arguments: list[str], facts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([*arguments, "--results", str(tmp_path / "results")]) == 2
    assert list(tmp_path.iterdir()) == []
    assert not absent(capsys.readouterr().err, *facts)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that were run in the place of pip; an environment is a folder, and pip knows all versions but one."""
    seen: list[list[str]] = []

    def run(argv: list[str], log: Path, **_: object) -> int:
        seen.append(list(argv))
        unknown = "tensorflow==2.18.9" in argv
        log.write_text(f"Looking\n{PIPS_ERROR}\n" if unknown else "")
        return int(unknown)

    def create(place: Path, **_: object) -> None:
        (place / "bin").mkdir(parents=True)
        (place / "bin" / "pip").touch()

    monkeypatch.setattr(environment, "run", run)
    monkeypatch.setattr(environment.venv, "create", create)
    return seen


def test_an_environment_is_installed_once(tmp_path: Path, commands: list[list[str]]) -> None:
    place = environment.ensure(PAIR, tmp_path / "log", folder=tmp_path / "éñv s")
    assert place == tmp_path / "éñv s" / "tf-2.18.1-keras-3.15.1"
    assert commands[0][-2:] == ["tensorflow==2.18.1", f"keras=={MAIN.keras}"]
    assert environment.ensure(PAIR, tmp_path / "log", folder=tmp_path / "éñv s") == place
    assert len(commands) == 1
    os.utime(place / ".installed", (0, 0))  # as if setup.py had changed since
    environment.ensure(PAIR, tmp_path / "log", folder=tmp_path / "éñv s")
    assert len(commands) == 2


def test_a_version_that_does_not_exist_is_an_error_of_pips_and_installs_nothing(
    tmp_path: Path, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(environment.BrokenError) as caught:
        environment.ensure(Pair("2.18.9", MAIN.keras), tmp_path / "log", folder=tmp_path)
    assert not absent(str(caught.value), "TensorFlow 2.18.9", f"Keras {MAIN.keras}", PIPS_ERROR)
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
    assert len(commands) == 1
    monkeypatch.setattr(environment.ensure, "__kwdefaults__", {"folder": tmp_path})
    assert command.main(["--tensorflow", "2.18.9", "--results", str(tmp_path / "results")]) == 2
    assert PIPS_ERROR in capsys.readouterr().err


def test_an_environment_has_what_its_tests_import() -> None:
    """The tests of a pair, the files of fixtures before them, and what they import from other tests."""
    setup = ast.parse((processes.REPOSITORY / "setup.py").read_text(encoding="utf-8"))
    lists = [one.value for one in ast.walk(setup) if isinstance(one, ast.keyword) and one.arg == "install_requires"]
    for one in ast.walk(setup):
        if isinstance(one, ast.Dict):
            pairs = zip(one.keys, one.values, strict=True)
            lists += [value for key, value in pairs if key and ast.unparse(key) == "'compat'"]
    assert len(lists) == 2
    installed = {name for one in lists for name in re.findall(r"f?'([a-z][\w-]*)", ast.unparse(one))}
    imported = dict(_imported(TEST, "tests/conftest.py", "tests/integration/conftest.py"))
    assert {name: files for name, files in imported.items() if name not in installed} == {}


def _imported(*files: str) -> Iterator[tuple[str, str]]:
    """Yield packages that files of tests import as they are loaded, those of other files of tests too, and who does."""
    left, seen = [*files], {*files}
    while left:
        for statement in ast.parse((processes.REPOSITORY / (file := left.pop())).read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.Import):
                modules = [alias.name for alias in statement.names]
            elif isinstance(statement, ast.ImportFrom) and statement.module:
                modules = [statement.module, *(f"{statement.module}.{alias.name}" for alias in statement.names)]
            else:
                continue
            for first, *rest in (module.split(".") for module in modules):
                if first == "tests":
                    paths = {"/".join([first, *rest]) + end for end in (".py", "/__init__.py")} - seen
                    left += (found := [path for path in sorted(paths) if (processes.REPOSITORY / path).is_file()])
                    seen.update(found)
                elif first != "tfdist" and first not in sys.stdlib_module_names:
                    yield first, file


def test_programs_of_an_environment_find_its_own_first() -> None:
    variables = environment.variables(Path("/env"))
    assert variables["PATH"].startswith("/env/bin:")
    assert not {"PYTHONPATH", "VIRTUAL_ENV"} & set(variables)
    assert untested.decision(Standing.UNTESTED, variables[UNTESTED_VERSIONS.name]) is untested.Decision.WARN


def test_a_process_that_runs_into_its_deadline_is_ended_with_its_children(tmp_path: Path) -> None:
    child = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    stays = f"{child}; print('begun', flush=True); time.sleep(600)"
    log = tmp_path / "log"
    assert processes.run([sys.executable, "-c", stays], log, seconds=1.5) == 124
    assert processes.run([sys.executable, "-c", "print('é'); raise SystemExit(3)"], log, seconds=60) == 3
    assert log.read_text() == "é\n"


def test_what_pytest_reports() -> None:
    text = (
        '<testsuites><testsuite><testcase name="a"/><testcase name="b"><skipped/></testcase>'
        '<testcase name="c"><failure message="&#10;AssertionError: 1 == 2&#10;more">trace</failure></testcase>'
        '<testcase name="d"><error message="">trace</error></testcase></testsuite></testsuites>'
    )
    found = of_tests(text, 1)
    assert (found.passed, found.total) == (1, 3)
    assert found.failures == ("c: AssertionError: 1 == 2", "d: no message")
    assert str(found) == "**1 of 3**"
    (without_report,) = of_tests("", 4).failures
    assert "code 4" in without_report
    assert of_tests('<testsuite><testcase name="a"/></testsuite>', 0) == Outcome(1, 1)
    assert of_tests('<testsuite><testcase name="a"/></testsuite>', -11).is_wrong
    assert of_tests("<testsuite/>", 0).is_wrong  # nothing was tested


def cell(name: str, status: str, text: str, detail: str = "") -> dict[str, str]:
    return {"feature": name, "status": status, "text": text, "detail": detail}


def test_what_the_matrix_reports() -> None:
    right = [cell("even", "green", "1e-07"), cell("jit", "refused", "refused"), cell("data_differs", "left out", "-")]
    assert of_column(json.dumps({"cells": right}), 0) == Outcome(2, 2)
    wrong = of_column(json.dumps({"cells": [*right, cell("odd", "error", "ERROR KeyError", "'x'\nhere")]}), 1)
    assert (wrong.passed, wrong.total, wrong.failures) == (2, 3, ("odd: ERROR KeyError, 'x'",))
    assert of_column(json.dumps({"cells": right}), 124).is_wrong
    assert of_column("", 2).is_wrong
    assert of_column(json.dumps({"cells": []}), 0).is_wrong


def test_the_row_of_the_table() -> None:
    outcomes = {"test_compat": Outcome(9, 9), "mirrored-2": Outcome(29, 30, ("odd: wrong",)), "ring-2": Outcome()}
    assert row(VERSIONS, outcomes).splitlines() == [
        "| TensorFlow | Keras | Python | NumPy | test_compat | mirrored-2 | ring-2 |",
        "|---|---|---|---|---|---|---|",
        "| 2.18.1 | 3.15.1 | 3.11.7 | 1.26.4 | 9 of 9 | **29 of 30** | not run |",
    ]


@pytest.mark.parametrize(("column_code", "code"), [(0, 0), (1, 1)])
def test_the_command_runs_its_parts_and_says_what_came_of_them(
    column_code: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One part is wrong: the others are run all the same; the ring is not, for it was not asked for."""
    ran: list[str] = []

    def run(argv: tuple[str, ...], log: Path, **_: object) -> int:
        ran.append(log.stem)
        if "pytest" in argv:
            report, text = argv[-1].removeprefix("--junitxml="), '<testsuite><testcase name="a"/></testsuite>'
        else:
            status = "green" if log.stem != "mirrored-2" or not column_code else "wrong"
            report, text = argv[-1], json.dumps({"cells": [cell("even", status, "WRONG 2.0e-02", "dense/kernel")]})
        Path(report).write_text(text)
        return column_code if log.stem == "mirrored-2" else 0

    monkeypatch.setattr(command, "run", run)
    monkeypatch.setattr(environment, "ensure", lambda *_: tmp_path / "env")
    monkeypatch.setattr(environment, "versions", lambda _: VERSIONS)
    assert command.main(["--tensorflow", "2.18.1", "--results", str(tmp_path / "results")]) == code
    assert ran == ["test_compat", "mirrored-2", "multi-worker-2x1", "parameter-server-2"]
    printed = capsys.readouterr().out
    cells = ["1 of 1", "**0 of 1**" if code else "1 of 1", "1 of 1", "1 of 1", "not run"]
    assert f"| 1.26.4 | {' | '.join(cells)} |" in printed
    assert ("  even: WRONG 2.0e-02, dense/kernel" in printed) is bool(code)


@pytest.mark.parametrize(
    ("options", "ran"),
    [
        (["--part", "ring-2"], ["horovod", "ring-2"]),
        (["--ring", "--part", "mirrored-2"], ["horovod", "mirrored-2"]),
        (["--ring"], ["horovod", "test_compat", "mirrored-2", "multi-worker-2x1", "parameter-server-2", "ring-2"]),
    ],
)
def test_horovod_is_built_where_the_ring_is_asked_for(
    options: list[str], ran: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(command, "run", lambda _, log, **__: seen.append(log.stem) or 0)
    monkeypatch.setattr(environment, "ensure", lambda *_: tmp_path / "env")
    monkeypatch.setattr(environment, "build_horovod", lambda _, log: seen.append(log.stem))
    monkeypatch.setattr(environment, "versions", lambda _: VERSIONS)
    assert command.main(["--tensorflow", "2.18.1", *options, "--results", str(tmp_path)]) == 1  # no part has reported
    assert seen == ran


def test_make_hands_its_variables_on() -> None:
    given = ["TENSORFLOW=2.18.1", "KERAS=3.15.0", "RING=1", "PARTS=test_compat ring-2"]
    done = subprocess.run(
        ["make", "-n", "compat", *given],
        cwd=processes.REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    line = " ".join(done.stdout.replace("\\\n", " ").split())
    wanted = '--tensorflow "2.18.1" --keras "3.15.0" --ring --part test_compat --part ring-2'
    assert f"-m tests.compat {wanted}" in line


def test_the_page_and_the_table_of_tested_pairs_agree() -> None:
    """A row in which nothing is wrong is a tested pair, and every tested pair has one."""
    page = (processes.REPOSITORY / "docs" / "compatibility.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d\S+) \| (\d\S+) \|(.*)\|$", page, re.MULTILINE)
    assert {Pair(tensorflow, keras) for tensorflow, keras, cells in rows if "**" not in cells} == set(TESTED)
