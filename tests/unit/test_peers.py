"""`make peers` without the peers: what is expected of other people's tests, and what follows from their outcomes."""

import fnmatch
import json
import re
from pathlib import Path

import pytest

from tests.peers import __main__ as command
from tests.peers.checkouts import MissingError, root
from tests.peers.outcomes import Listed, Outcome, first_line, judge, matches, read_list, read_log, stale, table
from tests.peers.run import BrokenError, run
from tests.peers.suites import SUITES, Suite, Way
from tests.refusals import absent

PASSED, FAILED = Outcome("passed"), Outcome("failed", "\n  ValueError: no\n  at all\n")
KERAS = next(suite for suite in SUITES if suite.name == "integration")


@pytest.mark.parametrize(
    ("pattern", "test", "expected"),
    [
        ("a.py::T::test", "a.py::T::test", True),
        ("a.py::T::test", "a.py::T::test_more", False),
        ("a.py::T::test*", "a.py::T::test_more", True),
        ("a.py::*jit*", "a.py::T::test_jit", True),
        ("a.py::T::test[1]", "a.py::T::test[1]", True),  # no character but the star is special
        ("a.py::T::test[1]", "a.py::T::test1", False),
        ("a.py::T::te.t", "a.py::T::test", False),
        ("*", "a.py::T::test[line\nline]", True),
    ],
)
def test_a_star_stands_for_anything(pattern: str, test: str, expected: bool) -> None:
    assert matches(pattern, test) is expected


def test_what_fails_must_be_listed_and_what_is_listed_must_fail() -> None:
    alone = dict.fromkeys(("a", "b", "c", "d", "e"), PASSED) | {"f": FAILED, "g": Outcome("skipped")}
    scope = {"a": PASSED, "b": FAILED, "c": FAILED, "d": PASSED, "f": FAILED, "g": FAILED, "h": FAILED}
    verdict = judge(alone, scope, ["c", "d"])
    assert (verdict.alone, verdict.passed, verdict.by_design) == (5, 2, 1)
    failed, missing = verdict.failures
    assert failed == "b: failed, ValueError: no"
    assert missing.startswith("e: missing")
    assert verdict.passes == ["d"]
    assert verdict.unexpected == 3


def test_a_test_that_is_skipped_with_tfdist_has_not_passed() -> None:
    assert judge({"a": PASSED}, {"a": Outcome("skipped")}, []).failures == ["a: skipped, no message"]


def test_a_pattern_without_a_test_is_stale_where_its_file_was_run() -> None:
    patterns = ["a.py::*gone*", "a.py::*here*", "b.py::*gone*"]
    assert stale(patterns, ["a.py::here"], ["a.py"]) == ["a.py::*gone*"]


def test_a_test_that_only_began_has_ended_its_process() -> None:
    lines = [
        json.dumps({"test": test, "outcome": outcome, "message": ""})
        for test, outcome in [("a", "begun"), ("a", "passed"), ("b", "begun"), ("c", "begun"), ("c", "failed")]
    ]
    assert {test: outcome.result for test, outcome in read_log(lines).items()} == {
        "a": "passed",
        "b": "ended",
        "c": "failed",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[by_design]]\nreason = ""\ntests = ["a"]', "reason and tests"),
        ('[[by_design]]\nreason = "so"\ntests = []', "reason and tests"),
        ('[[by_design]]\ntests = ["a"]', "reason and tests"),
        ('[[by_design]]\nreason = "so"\ntests = ["a"]\nmore = 1', "nothing else"),
        ('[[by_design]]\nreason = "so"\ntests = ["a", "a"]', "more than once: a"),
        ('[[by_desing]]\nreason = "so"\ntests = ["a"]', "by_desing"),
    ],
)
def test_a_list_that_is_wrong_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_list(text)


def test_the_list_speaks_of_files_that_are_run() -> None:
    listed = read_list(command.LIST.read_text(encoding="utf-8"))
    assert listed != Listed()
    patterns = [pattern for suite in SUITES for pattern in suite.files]
    for test in (*listed.by_design, *listed.left_out):
        file = test.split("::")[0]
        assert any(fnmatch.fnmatch(file, pattern) for pattern in patterns), f"no suite runs {file}"


def test_the_table_has_sums() -> None:
    one = judge({"a": PASSED, "b": PASSED}, {"a": PASSED, "b": FAILED}, [])
    lines = table({"models": one, "more": one}).splitlines()
    assert [line.split()[-4:] for line in lines[1:]] == [["2", "1", "0", "1"]] * 2 + [["4", "2", "0", "2"]]
    assert table({})


def test_a_message_is_cut_to_a_line() -> None:
    assert first_line("\n\n first \nsecond") == "first"
    assert len(first_line("x" * 1000)) < 200
    assert first_line("") == "no message"


def test_a_suite_without_a_checkout_says_how_to_get_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MissingError) as caught:
        root(KERAS, None)
    (clone,) = re.findall("git clone .*", str(caught.value))
    assert not absent(clone, "--branch v", "https://github.com/keras-team/keras")
    with pytest.raises(MissingError, match="has no integration_tests"):
        root(KERAS, tmp_path)
    assert command.main(["--suite", "integration", "--results", str(tmp_path)]) == 2
    assert "make peers KERAS=" in capsys.readouterr().err


def test_a_checkout_with_a_space_in_its_name_is_one(tmp_path: Path) -> None:
    folder = tmp_path / "my ké ras"
    for file in KERAS.files:
        with pytest.raises(MissingError, match=f"has no .*{file}"):
            root(KERAS, folder)
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).touch()
    assert root(KERAS, folder) == folder


def test_suites_that_keras_installs_need_no_checkout() -> None:
    trainers = SUITES[0]
    assert (root(trainers, None) / "keras" / "__init__.py").is_file()


def test_a_folder_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--keras", "/nowhere"])
    assert "is no folder" in capsys.readouterr().err


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that were run in the place of pytest; each ends in the middle of the first test that is left."""
    commands: list[list[str]] = []

    def one(argv: list[str], environment: dict[str, str], folder: Path, printed: Path) -> int:
        commands.append(argv)
        options = dict(option.split("=", 1) for option in argv if option.startswith("--peers-") and "=" in option)
        skipped = Path(options["--peers-skip"]).read_text().splitlines()
        left = [test for test in ("a", "b") if test not in skipped]
        with Path(options["--peers-log"]).open("a") as log:
            for test in left[:1]:
                log.write(json.dumps({"test": test, "outcome": "begun", "message": ""}) + "\n")
        return 1 if left else 5

    monkeypatch.setattr("tests.peers.run._one_process", one)
    return commands


def test_a_process_that_ends_in_a_test_is_followed_by_another(tmp_path: Path, processes: list[list[str]]) -> None:
    found = run([], tmp_path, Way.SCOPE, with_tfdist=True, left_out=["*left*"], folder=tmp_path)
    assert {test: outcome.result for test, outcome in found.items()} == {"a": "ended", "b": "ended"}
    assert len(processes) == 3
    assert (tmp_path / "tfdist.skip").read_text().splitlines() == ["*left*", "a", "b"]
    assert all("--peers-tfdist" in argv for argv in processes)


def test_a_suite_of_which_nothing_was_run_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.peers.run._one_process", lambda *_: 3)
    with pytest.raises(BrokenError, match="code 3 after 0 tests"):
        run([], tmp_path, Way.SCOPE, with_tfdist=False, left_out=[], folder=tmp_path)


def test_names_of_suites_are_different() -> None:
    assert len({suite.name for suite in SUITES}) == len(SUITES)
    assert all(isinstance(suite, Suite) and suite.files for suite in SUITES)
