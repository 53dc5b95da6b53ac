"""The changes to the sources: an exact text, once, or nothing at all."""

from pathlib import Path

import pytest

from tests.refusals import refused
from tfdist.errors import UnsupportedError
from tfdist_horovod import edits, gpu
from tfdist_horovod.compiling import changes_for
from tfdist_horovod.edits import Edit
from tfdist_horovod.recipe import Options, Toolkit

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
    with refused(UnsupportedError, path="setup.py", name=SECOND.old, received=times):
        edits.apply([FIRST, SECOND], sources)
    assert (sources / "a" / "CMakeLists.txt").read_text() == before
    assert (sources / "setup.py").read_text() == content


def test_a_missing_file_is_named(sources: Path) -> None:
    (sources / "setup.py").unlink()
    with refused(UnsupportedError, path="setup.py", name=None):
        edits.apply([FIRST, SECOND], sources)


def test_where_a_library_looks_for_others(tmp_path: Path) -> None:
    path = tmp_path / "horovod" / "tensorflow" / "CMakeLists.txt"
    path.parent.mkdir(parents=True)
    before = 'set_target_properties(${TF_TARGET_LIB} PROPERTIES OUTPUT_NAME "mpi_lib")\n'
    path.write_text(before)
    edits.apply([edits.run_path(["$ORIGIN/a", "$ORIGIN/b"], linked=False)], tmp_path)
    added = path.read_text().removeprefix(before)
    assert 'INSTALL_RPATH "$ORIGIN/a;$ORIGIN/b"' in added
    assert "USE_LINK_PATH FALSE" in added


def test_what_is_changed_for_what() -> None:
    mpi = Options(mpi=Toolkit(version="openmpi5"))
    own = Options(mpi=Toolkit(version="openmpi4.1-0a1b2c3d", home=Path("/opt/mpi")))
    both = Options(mpi=mpi.mpi, cuda=Toolkit(version="13.0"))
    assert {*edits.FOR_TENSORFLOW, *edits.FOR_CPU} <= set(changes_for(Options()))
    assert not {*edits.FOR_CPU} & set(changes_for(both))
    assert changes_for(mpi)[:-1] == changes_for(Options())
    assert "$ORIGIN/../../../.." in changes_for(mpi)[-1].new
    assert "USE_LINK_PATH TRUE" in changes_for(own)[-1].new
    assert set(gpu.EDITS) < set(changes_for(both))
    assert "$ORIGIN/../../nvidia/nccl/lib;$ORIGIN/../../../.." in changes_for(both)[-1].new


def test_every_edit_has_a_reason_and_changes_something() -> None:
    everything = Options(cuda=Toolkit(version="13.0"), mpi=Toolkit(version="openmpi5"))
    for edit in (*changes_for(Options()), *changes_for(everything)):
        assert edit.why
        assert edit.old != edit.new
