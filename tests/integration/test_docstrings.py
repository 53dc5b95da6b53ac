"""Every example in a docstring runs and shows what it says, but for lines that are marked `doctest: +SKIP`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration import light

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "cases" / "docstrings.py"
DEADLINE_SECONDS = 800
EXAMPLES = 200  # there are more; fewer mean that they were not found


def modules() -> list[str]:
    """The modules of tfdist whose docstrings have examples."""
    found = []
    for path in sorted((ROOT / "tfdist").rglob("*.py")):
        if re.search(r"^\s*>>> ", path.read_text(encoding="utf-8"), re.MULTILINE):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


@pytest.mark.quick
def test_examples_in_docstrings_run() -> None:
    # one process for all: what an example needs is in it, and it leaves nothing behind in this empty directory
    command = [sys.executable, str(SCRIPT), *modules()]
    environ = {
        **os.environ,
        "PYTHONPATH": f"{light.STARTING}:{ROOT}",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    said = re.fullmatch(r"(\d+) lines of examples, 0 failed", done.stdout.splitlines()[-1])
    assert said
    assert int(said[1]) >= EXAMPLES, "examples are not found any more"
