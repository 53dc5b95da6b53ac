"""Verdicts that are kept: what is put is taken, what is broken is not, and there are never too many files."""

import os
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from tfdist.errors import ConfigError
from tfdist.training.checks import kept_verdicts
from tfdist.training.checks.kept_verdicts import Shelf, Tried, as_numbers
from tfdist.training.replica.judging import VERDICTS, StateRule
from tfdist.variables import TRIALS

KEY = st.tuples(st.text(max_size=4), st.integers())
RULE = st.builds(StateRule, st.sampled_from(VERDICTS), st.floats(allow_nan=False), st.booleans())
TRIED = st.builds(
    Tried, st.dictionaries(KEY, RULE), st.dictionaries(KEY, st.text()), st.dictionaries(KEY, st.text(max_size=9))
)
ONE = Tried({("state", 2): StateRule("sum", 0.9, True)}, {("loss", 0): "it"}, {("gradient", 0): "It limits."})


def shelf(folder: Path, **more: str) -> Shelf:
    return Shelf({"TFDIST_CACHE_DIR": str(folder), **more})


@hypothesis.given(TRIED)
def test_what_is_written_is_read(tried: Tried) -> None:
    assert Tried.of_text(tried.to_text()) == tried


@hypothesis.given(TRIED, TRIED)
def test_workers_tell_verdicts_apart(one: Tried, other: Tried) -> None:
    assert (as_numbers(one) == as_numbers(other)) == (one.to_text() == other.to_text())
    assert all(0 < number < 2**63 for number in as_numbers(one))


def test_what_is_put_is_taken(tmp_path: Path) -> None:
    shelf(tmp_path).put("a", ONE)
    assert shelf(tmp_path).take("a") == ONE
    assert shelf(tmp_path).take("b") is None
    assert [file.name for file in (tmp_path / "trials").iterdir()] == ["a.json"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[1]",
        b"null",
        b"\x00\xff",
        b'{"found": [], "names": [], "uses": ',
        b'{"found": 3, "names": [], "uses": []}',
        b'{"found": [["loss", 0, "best", 1.0, false]], "names": [], "uses": []}',
        b'{"found": [["loss", "0", "sum", 1.0, false]], "names": [], "uses": []}',
        b'{"found": [["loss", 0, "sum", "1", false]], "names": [], "uses": []}',
        b'{"found": [["loss", 0, "sum", 1.0, 3]], "names": [], "uses": []}',
        b'{"found": [], "names": [["loss", 0, 5]], "uses": []}',
        b'{"found": [], "names": [], "uses": [["loss"]]}',
        b"[" * 100_000,
    ],
)
def test_something_else_in_a_file_is_as_if_it_were_not_there(content: bytes, tmp_path: Path) -> None:
    shelf(tmp_path).put("a", ONE)
    (tmp_path / "trials" / "a.json").write_bytes(content)
    assert shelf(tmp_path).take("a") is None


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    shelf(tmp_path / "file").put("a", ONE)
    assert shelf(tmp_path / "file").take("a") is None


def test_the_oldest_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_verdicts, "_MOST_FILES", 3)
    for number in range(5):
        shelf(tmp_path).put(str(number), ONE)
        os.utime(tmp_path / "trials" / f"{number}.json", (number, number))
    assert sorted(file.stem for file in (tmp_path / "trials").iterdir()) == ["2", "3", "4"]


def test_a_user_can_have_nothing_kept(tmp_path: Path) -> None:
    assert shelf(tmp_path).is_open
    assert not shelf(tmp_path, **{TRIALS.name: "again"}).is_open
    with pytest.raises(ConfigError, match="keep"):
        shelf(tmp_path, **{TRIALS.name: "never"})
