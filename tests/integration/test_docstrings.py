"""Every example in a docstring runs and shows what it says, but for lines that are marked `doctest: +SKIP`."""

import re
from pathlib import Path

from tests.integration.forks import Forks

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "cases" / "docstrings.py"
EXAMPLES = 200  # there are more; fewer mean that they were not found


def modules() -> list[str]:
    """The modules of tfdist and of the benchmarks whose docstrings have examples."""
    found = []
    for path in sorted(path for folder in ("tfdist", "benchmarks") for path in (ROOT / folder).rglob("*.py")):
        if re.search(r"^\s*>>> ", path.read_text(encoding="utf-8"), re.MULTILINE):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return found


def test_examples_in_docstrings_run(drawing: Forks, tmp_path: Path) -> None:
    # one process for all: what an example needs is in it, and it leaves nothing behind in this empty directory
    with drawing.start(str(SCRIPT), *modules(), cwd=tmp_path) as process:
        out, err = process.communicate()
    assert process.returncode == 0, (out[-8000:] + err[-4000:]).decode()
    said = re.fullmatch(r"(\d+) lines of examples, 0 failed", out.decode().splitlines()[-1])
    assert said
    assert int(said[1]) >= EXAMPLES, "examples are not found any more"
    assert not list(tmp_path.iterdir())
