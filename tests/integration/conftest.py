"""Fixtures of the tests of `tfdist run` and of fault tolerance."""

import os
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.agents import PRELUDE
from tests.integration.forks import Forks, forks
from tfdist.native import build_target, library
from tfdist.variables import TRIALS

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", TRIALS.name: "again"}
THREADS = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Yield the server that forks processes with TensorFlow imported, one for all tests of this process."""
    # minutes on a busy machine, which are not to wait for what has a deadline
    for one in (library.COLLECTIVES, library.STAMPS):
        library.build(one, build_target.observe(), os.environ)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TFDIST_", "TF_CONFIG"))}
    with forks(tmp_path_factory.mktemp("forks"), {**kept, **QUIET, **THREADS}) as found:
        yield found


@pytest.fixture(scope="session")
def drawing(forking: Forks) -> Iterator[Forks]:
    """Yield a server whose forks have also imported matplotlib and the loader of the digits."""
    with forking.with_more("sklearn.datasets", "matplotlib.pyplot") as found:
        yield found


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder for what scripts and tests tell each other."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "tmp").mkdir()
    return tmp_path / "shared"


@pytest.fixture
def script(tmp_path: Path, shared: Path) -> Callable[[str], Path]:
    def write(body: str, name: str = "script.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PRELUDE + textwrap.dedent(body), encoding="utf-8")
        return path

    return write
