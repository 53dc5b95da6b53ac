"""An environment of its own for Flower, whose requirements do not go with those of tfdist."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_SIDE = Path(__file__).with_name("flower_side.py")
_TURN_SECONDS = 3600.0


class FlowerEnvironment:
    """A virtual environment in a folder; `ask` runs one turn of `flower_side.py` in it."""

    def __init__(self, folder: Path, requirement: str) -> None:
        self._folder = folder
        self._python = folder / "environment" / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", folder / "environment"], check=True)
        subprocess.run([self._python, "-m", "pip", "install", "--quiet", requirement], check=True)

    def ask(self, what: str, **setup: Any) -> Any:
        """Return what a turn found."""
        into = self._folder / "found.json"
        asked = json.dumps({**setup, "into": str(into)})
        subprocess.run([self._python, _SIDE, what, asked], check=True, timeout=_TURN_SECONDS, cwd=self._folder)
        return json.loads(into.read_text(encoding="utf-8"))
