"""The wheel and the source distribution: built as for a package index, and used without the repository."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 800
COPIED = ("*.*", "LICENSE", "Makefile", "tfdist", "benchmarks", "strategies", "notebooks", "docs")

pytestmark = pytest.mark.quick


def run(*command: str, folder: Path, **variables: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with both; the wheel is built from the source distribution, which must have all that it needs."""
    folder = tmp_path_factory.mktemp("dist")
    source = tmp_path_factory.mktemp("source") / "tfdist"
    source.mkdir()
    for path in (path for pattern in COPIED for path in ROOT.glob(pattern) if path.name[0] != "."):
        if path.is_dir():
            shutil.copytree(path, source / path.name, dirs_exist_ok=True)
        else:
            shutil.copy(path, source)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(source), folder=folder)
    return folder


@pytest.mark.thorough
def test_an_index_takes_both(packed: Path) -> None:
    files = sorted(map(str, packed.iterdir()))
    assert len(files) == 2
    assert run(sys.executable, "-m", "twine", "check", "--strict", *files, folder=packed).count("PASSED") == 2
    (wheel,) = packed.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        text = archive.read(metadata).decode()
        assert any(name.endswith("/LICENSE") for name in archive.namelist())
    assert "](docs/" not in text, "an index has no files to link to"
    assert "License: Apache-2.0" in text or "License-Expression: Apache-2.0" in text


def test_the_source_has_what_the_guides_need(packed: Path) -> None:
    (source,) = packed.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "CHANGELOG.md",
        "mkdocs.yml",
        "benchmarks/__main__.py",
        "docs/hooks.py",
        "strategies/mirrored/train.py",
        "notebooks/README.md",
    } <= names
    assert not any("__pycache__" in name for name in names)


def test_the_wheel_brings_recipes_pages_and_sources_of_ops(packed: Path, tmp_path: Path) -> None:
    (wheel,) = packed.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    assert sorted(path.name for path in (tmp_path / "site").iterdir() if path.suffix != ".dist-info") == ["tfdist"]
    for path in [*(ROOT / "tfdist").rglob("*.py"), *(ROOT / "tfdist").rglob("*.cc"), ROOT / "tfdist" / "py.typed"]:
        assert (tmp_path / "site" / path.relative_to(ROOT)).is_file(), f"the wheel lacks {path.relative_to(ROOT)}"

    def tfdist(*arguments: str) -> str:
        return run(sys.executable, "-m", "tfdist", *arguments, folder=tmp_path, PYTHONPATH=str(tmp_path / "site"))

    assert tfdist("docs", "data") == (ROOT / "docs" / "data.md").read_text()
    assert str(tmp_path / "site" / "tfdist") in tfdist("docs", "--path")
    tfdist("recipes", "copy", "mirrored")
    assert (tmp_path / "mirrored" / "train.py").read_text() == (ROOT / "strategies/mirrored/train.py").read_text()
