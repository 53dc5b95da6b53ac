"""MPI: which one, and what it adds."""

from pathlib import Path

import pytest

from tests.refusals import refused
from tfdist.errors import ConfigError
from tfdist_horovod import mpi_for_build


def program(path: Path, said: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/", "openmpi5.0.11"),
        ("mpiexec (OpenRTE) 3.1.3", "openmpi3.1.3"),
        ("HYDRA build details:\n    Version:                                 4.0.2\n", "mpich4.0.2"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005", "mpi2021.11"),
        ("", "mpi"),
    ],
)
def test_it_is_named_by_what_mpirun_says(said: str, name: str) -> None:
    assert mpi_for_build.slug(said) == name


def test_the_mpi_of_a_folder(tmp_path: Path) -> None:
    assert mpi_for_build.toolkit(None) == mpi_for_build.FROM_WHEEL
    for name in ("one", "two"):
        program(tmp_path / name / "bin" / "mpirun", "mpirun (Open MPI) 4.1.4")
        with refused(ConfigError, name="--mpi-home", path=tmp_path / name / "bin" / "mpicxx"):
            mpi_for_build.toolkit(tmp_path / name)
        program(tmp_path / name / "bin" / "mpicxx", "")
    found = [mpi_for_build.toolkit(tmp_path / name) for name in ("one", "two")]
    assert found[0].home == tmp_path / "one"
    assert found[0].version.startswith("openmpi4.1.4-")
    assert found[0].version != found[1].version


def test_what_it_adds_to_the_environment() -> None:
    extra = mpi_for_build.extra(Path("/opt/mpi"))
    assert extra.variables == {"MPI_HOME": "/opt/mpi"}
    assert extra.path == (Path("/opt/mpi/bin"),)
    assert extra.libraries == (Path("/opt/mpi/lib"),)
