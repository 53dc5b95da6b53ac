"""Processes of turns: quiet ones, and those of a peer whose requirements conflict with those of tfdist."""

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfdist.errors import TfdistError

_TURN_SECONDS = 3600.0
_SHOWN = 2000  # characters of what a failed program has said


def quietly(command: Sequence[str], **known: Any) -> str:
    """Run a turn whose messages matter only if it fails, and return its standard output; ``known`` as for `run`."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TURN_SECONDS, check=False, **known)
    if done.returncode:
        said = (done.stderr or done.stdout)[-_SHOWN:]
        raise TfdistError(f"{shlex.join(command)} ended with code {done.returncode}. It said:\n{said}")
    return str(done.stdout)


def python_with(environment: Path, *requirements: str, alone: Sequence[str] = ()) -> Path:
    """Return the Python of a virtual environment, which is made if it is missing or has other requirements.

    Those in ``alone`` are installed without their own dependencies.
    """
    python, whole = environment / "bin" / "python", environment / "requirements.json"
    wanted = [*requirements, *alone]
    if whole.exists() and json.loads(whole.read_text(encoding="utf-8")) == wanted:
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, *requirements], check=True)
    if alone:
        subprocess.run([*install, "--no-deps", *alone], check=True)
    whole.write_text(json.dumps(wanted), encoding="utf-8")
    return python


class PeerEnvironment:
    """A virtual environment in a folder, made if it is not there; `ask` runs one turn of a script in it."""

    def __init__(self, folder: Path, *requirements: str, side: Path) -> None:
        self._folder, self._side = folder, side
        self._python = python_with(folder / "environment", *requirements)

    def ask(self, what: str, **setup: Any) -> Any:
        """Run a turn of the peer, and return its result."""
        into = self._folder / "found.json"
        asked = json.dumps({**setup, "into": str(into)})
        subprocess.run([self._python, self._side, what, asked], check=True, timeout=_TURN_SECONDS, cwd=self._folder)
        return json.loads(into.read_text(encoding="utf-8"))
