"""The changes to the sources: an exact text, once, or nothing at all."""

from pathlib import Path

import pytest

from tfdist.build import edits, gpu
from tfdist.build.edits import Edit
from tfdist.errors import UnsupportedError

FIRST = Edit("a/CMakeLists.txt", "list(xla)\n", "", why="it does not compile")
SECOND = Edit("setup.py", "'RelWithDebInfo'", "'Release'", why="it is large")
THIRD = Edit("setup.py", "-j8", "-j2", why="it is slow")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "CMakeLists.txt").write_text("list(ops)\nlist(xla)\nadd_library(x)\n")
    (tmp_path / "setup.py").write_text("config = 'RelWithDebInfo'\nargs = ['-j8']\n")
    return tmp_path


def test_each_text_is_replaced(sources: Path) -> None:
    edits.apply([FIRST, SECOND, THIRD], sources)
    assert (sources / "a" / "CMakeLists.txt").read_text() == "list(ops)\nadd_library(x)\n"
    assert (sources / "setup.py").read_text() == "config = 'Release'\nargs = ['-j2']\n"


@pytest.mark.parametrize(("content", "times"), [("", 0), ("'RelWithDebInfo' 'RelWithDebInfo'", 2)])
def test_other_sources_are_refused_and_left_alone(sources: Path, content: str, times: int) -> None:
    (sources / "setup.py").write_text(content)
    before = (sources / "a" / "CMakeLists.txt").read_text()
    with pytest.raises(UnsupportedError, match=rf"setup\.py has the text .* {times} times, not once"):
        edits.apply([FIRST, SECOND], sources)
    assert (sources / "a" / "CMakeLists.txt").read_text() == before
    assert (sources / "setup.py").read_text() == content


def test_a_missing_file_is_named(sources: Path) -> None:
    (sources / "setup.py").unlink()
    with pytest.raises(UnsupportedError, match=r"no readable setup\.py"):
        edits.apply([FIRST, SECOND], sources)


def test_every_edit_has_a_reason_and_changes_something() -> None:
    for edit in (*edits.FOR_TENSORFLOW, *edits.FOR_CPU, *gpu.EDITS):
        assert edit.why
        assert edit.old != edit.new
