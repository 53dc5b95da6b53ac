"""An environment for one pair of TensorFlow and Keras: made once by pip, kept, and made anew when setup.py changes."""

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

from tests.compat.processes import REPOSITORY, run
from tfdist.compat.version_pairs import Pair
from tfdist.variables import UNTESTED_VERSIONS

FOLDER = REPOSITORY / ".venv-compat"
INSTALL_SECONDS = 3600.0
HOROVOD_SECONDS = 3600.0
_VERSIONS = """
import importlib.metadata, json, platform
names = {name: importlib.metadata.version(name) for name in ("tensorflow", "keras", "numpy")}
print(json.dumps({"python": platform.python_version(), **names}))
"""


class BrokenError(Exception):
    """A pair could not be installed; the message says what pip said."""


def name(pair: Pair) -> str:
    """Return the name of the folders of a pair.

    Example:
        >>> name(Pair("2.18.1", "3.15.1"))
        'tf-2.18.1-keras-3.15.1'
    """
    return f"tf-{pair.tensorflow}-keras-{pair.keras}"


def ensure(pair: Pair, log: Path, *, folder: Path = FOLDER) -> Path:
    """Return the environment of a pair, installed if it was not, or not since setup.py changed.

    Args:
        pair: the versions; others of TensorFlow and Keras are not accepted beside them.
        log: the file for what pip prints.
        folder: where environments are kept.
    Raises:
        BrokenError: pip cannot install the pair; the message has pip's reason, and the environment is gone.
    """
    place = folder / name(pair)
    stamp = place / ".installed"
    if stamp.exists() and stamp.stat().st_mtime >= (REPOSITORY / "setup.py").stat().st_mtime:
        print(f"{pair}: {place.relative_to(folder.parent)} is there", flush=True)
        return place
    print(f"{pair}: installing into {place.relative_to(folder.parent)} (about two minutes and 2 GB)", flush=True)
    if not (place / "bin" / "pip").exists():
        venv.create(place, clear=True, with_pip=True)
    wanted = [f"tensorflow=={pair.tensorflow}", f"keras=={pair.keras}"]
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--no-compile", "--progress-bar=off"]
    code = run(
        [*pip, "--editable", ".[compat]", "--editable", "packaging/horovod", *wanted], log, seconds=INSTALL_SECONDS
    )
    if code:
        shutil.rmtree(place)
        raise BrokenError(f"{pair} cannot be installed beside tfdist:\n{_reason(log, code)}")
    stamp.touch()
    return place


def versions(place: Path) -> Mapping[str, str]:
    """Return the versions in an environment: of Python, TensorFlow, Keras and NumPy."""
    said = subprocess.run(
        [str(place / "bin" / "python"), "-P", "-c", _VERSIONS], capture_output=True, text=True, check=True, timeout=60
    )
    return dict(json.loads(said.stdout))


def build_horovod(place: Path, log: Path) -> None:
    """Build Horovod for the TensorFlow of an environment; one that was built before is taken from where it is kept.

    Raises:
        BrokenError: it cannot be built.
    """
    code = run([str(place / "bin" / "tfdist"), "build", "horovod"], log, seconds=HOROVOD_SECONDS)
    if code:
        raise BrokenError(f"Horovod was not built, as {log} says. Leave the ring out: without RING=1.")


def variables(place: Path) -> dict[str, str]:
    """Return the variables for programs of an environment.

    Its own programs are found first. A pair that is not known is run all the same, to see which of its features fail.
    """
    kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    return {
        **kept,
        "PATH": os.pathsep.join([str(place / "bin"), os.environ.get("PATH", os.defpath)]),
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        UNTESTED_VERSIONS.name: "allow",
    }


def _reason(log: Path, code: int) -> str:
    """Return pip's error messages, and the log that holds all of its output."""
    if code == 124:
        return f"  pip took longer than {INSTALL_SECONDS:.0f} s; {log} says how far it was."
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    said = [f"  {line}" for line in lines if line.startswith("ERROR:")] or [f"  pip ended with code {code}"]
    python = ".".join(map(str, sys.version_info[:2]))
    return "\n".join([*said, f"  That is for Python {python}; {log} has all that pip printed."])
