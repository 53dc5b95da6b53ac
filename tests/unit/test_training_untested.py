"""Untested versions of TensorFlow and Keras: compared, refused, or used at the user's risk."""

import os
from pathlib import Path

import pytest

from tests.refusals import refused
from tfdist.compat import version_pairs
from tfdist.compat.version_pairs import Pair, Standing
from tfdist.errors import ConfigError, UnsupportedError
from tfdist.training.checks import untested
from tfdist.training.checks.untested import Decision
from tfdist.verify import one_step

NEW = ("2.20.0", "3.15.77")
RUNS: list[str] = []


@pytest.fixture(autouse=True)
def nothing_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    RUNS.clear()
    monkeypatch.setattr(untested, "_settled", set())
    monkeypatch.setattr(version_pairs, "TESTED", (version_pairs.MAIN,))


def compared(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    def compare(environ: object) -> str:
        RUNS.append(wrong)
        return wrong

    monkeypatch.setattr(untested, "compare", compare)


@pytest.mark.parametrize(
    ("standing", "mode", "decided"),
    [
        (Standing.TESTED, "check", Decision.USE),
        (Standing.TESTED, "allow", Decision.USE),
        (Standing.UNTESTED, "check", Decision.CHECK),
        (Standing.UNTESTED, "allow", Decision.WARN),
        (Standing.OUT_OF_RANGE, "check", Decision.REFUSE),
        (Standing.OUT_OF_RANGE, "allow", Decision.WARN),
    ],
)
def test_what_follows_from_what_is_known(standing: Standing, mode: str, decided: Decision) -> None:
    assert untested.decision(standing, mode) is decided


def test_a_tested_pair_is_not_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compared(monkeypatch, "never asked")
    untested.require(version_pairs.MAIN.tensorflow, version_pairs.MAIN.keras, {"TFDIST_CACHE_DIR": str(tmp_path)})
    assert not RUNS
    assert not list(tmp_path.iterdir())


def test_a_pair_is_compared_once_on_a_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compared(monkeypatch, "")
    environ = {"TFDIST_CACHE_DIR": str(tmp_path / "gewählt")}
    untested.require(*NEW, environ)
    untested.require(*NEW, environ)
    monkeypatch.setattr(untested, "_settled", set())  # as in another process
    untested.require(*NEW, environ)
    assert RUNS == [""]
    untested.require("2.19.0", NEW[1], environ)  # another pair
    assert RUNS == ["", ""]


def test_a_step_that_differs_is_refused_every_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compared(monkeypatch, "weights: apart by 0.03")
    for _ in range(2):
        with refused(
            UnsupportedError, mentions=[*NEW, "apart by 0.03", "tensorflow==2.21.0", "TFDIST_UNTESTED_VERSIONS=allow"]
        ):
            untested.require(*NEW, {"TFDIST_CACHE_DIR": str(tmp_path)})
    assert len(RUNS) == 2


def test_a_pair_out_of_range_is_refused_or_used_at_ones_risk(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compared(monkeypatch, "never asked")
    with refused(UnsupportedError, mentions=["2.30.0", "3.15.1", "out of range"]):
        untested.require("2.30.0", "3.15.1", {})
    untested.require("2.30.0", "3.15.1", {"TFDIST_UNTESTED_VERSIONS": "allow"})
    untested.require("2.30.0", "3.15.1", {})  # settled
    assert not RUNS
    assert caplog.text.count("out of range") == 1


def test_a_cache_that_cannot_be_written_costs_a_comparison_in_each_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compared(monkeypatch, "")
    (tmp_path / "file").write_text("")
    for _ in range(2):
        monkeypatch.setattr(untested, "_settled", set())
        untested.require(*NEW, {"TFDIST_CACHE_DIR": str(tmp_path / "file")})
    assert RUNS == ["", ""]


def test_a_variable_with_another_value_is_refused() -> None:
    with refused(ConfigError, name="TFDIST_UNTESTED_VERSIONS", received="yes"):
        untested.require(*NEW, {"TFDIST_UNTESTED_VERSIONS": "yes"})


def test_a_program_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untested, "_PROGRAM", "json.tool")  # nothing is on its standard input
    assert "Expecting value" in untested.compare(os.environ)


def test_the_text_names_all_that_were_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_pairs, "TESTED", (version_pairs.MAIN, Pair("2.17.1", "3.15.1")))
    assert "TensorFlow 2.21.0, 2.17.1 with Keras 3.15.1" in version_pairs.judge(*NEW).text


@pytest.mark.parametrize(
    ("found", "code", "says"),
    [
        ({"weights": 9e-6, "predict": 0.0}, 0, ""),
        ({"weights": 0.03, "predict": 0.0}, 1, "weights: apart by 0.03\n"),
        ({"weights": float("nan")}, 1, "weights: apart by nan\n"),
        (ValueError("operands could not be broadcast"), 1, "ValueError: operands could not be broadcast\n"),
    ],
)
def test_the_program_says_what_is_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: object, code: int, says: str
) -> None:
    def apart() -> object:
        if isinstance(found, Exception):
            raise found
        return found

    alarms: list[int] = []
    monkeypatch.setattr(one_step.signal, "alarm", alarms.append)
    monkeypatch.setattr(one_step, "apart", apart)
    assert one_step.main() == code
    assert capsys.readouterr().out == says
    assert alarms == [600]
