"""Files of the code that a page names exist: a reader who follows a name finds the file, and the other way around."""

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / "tfdist").rglob("*.md"), ROOT / "CONTRIBUTING.md"])
_NAMED = re.compile(r"`((?:[\w.-]+/)*\w+\.(?:py|cc|h))`")
# scripts of users, and files of TensorFlow, Horovod and MPI
_OTHERS = {"train.py", "app.py", "setup.py", "ops.h", "tensorflow/c/kernels.h", "farmhash.h", "xla_mpi_ops.cc"}
FOLDERS = ("tfdist", "tests", "benchmarks", "packaging", "strategies", "docker", "docs", "ecosystem")
FILES = [f"/{path.relative_to(ROOT)}" for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = set(_NAMED.findall(page.read_text(encoding="utf-8"))) - _OTHERS
    named = {name for name in named if not name.startswith("horovod/")}
    missing = [name for name in sorted(named) if not any(file.endswith(f"/{name}") for file in FILES)]
    assert not missing


def test_findings_are_listed_once_and_can_be_run() -> None:
    scripts = sorted((ROOT / "findings").glob("*.sh"))
    listed = re.findall(r": `([\w-]+)` \|", (ROOT / "docs" / "findings.md").read_text(encoding="utf-8"))
    assert sorted(listed) == [script.stem for script in scripts]
    assert not [script.name for script in scripts if not os.access(script, os.X_OK)]
