"""Fixtures of the tests of `tfdist run`."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.agents import PRELUDE


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
