"""An environment of its own for a peer, whose requirements conflict with those of tfdist."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_TURN_SECONDS = 3600.0


class PeerEnvironment:
    """A virtual environment in a folder, made if it is not there; `ask` runs one turn of a script in it."""

    def __init__(self, folder: Path, *requirements: str, side: Path) -> None:
        self._folder, self._side = folder, side
        self._python = folder / "environment" / "bin" / "python"
        whole = folder / "environment" / "requirements.json"
        if whole.exists() and json.loads(whole.read_text(encoding="utf-8")) == list(requirements):
            return
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder / "environment"], check=True)
        subprocess.run([self._python, "-m", "pip", "install", "--quiet", *requirements], check=True)
        whole.write_text(json.dumps(requirements), encoding="utf-8")

    def ask(self, what: str, **setup: Any) -> Any:
        """Run a turn of the peer, and return its result."""
        into = self._folder / "found.json"
        asked = json.dumps({**setup, "into": str(into)})
        subprocess.run([self._python, self._side, what, asked], check=True, timeout=_TURN_SECONDS, cwd=self._folder)
        return json.loads(into.read_text(encoding="utf-8"))
