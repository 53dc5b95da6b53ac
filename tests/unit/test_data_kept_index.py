"""The index that a pass over foreign files keeps, and that is made again once the files have changed."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tfdist
from tests.refusals import refused
from tfdist.cli.data.data_index import command
from tfdist.data.foreign import json_lines, kept_index
from tfdist.data.format.schema import Feature, Schema
from tfdist.errors import ConfigError, StorageError
from tfdist.storage.local_storage import LocalStorage

SCHEMA = Schema({"n": Feature("int64")})


@pytest.fixture(autouse=True)
def passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the files that were passed over; files of any size are kept."""
    monkeypatch.setenv("TFDIST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_index, "_SMALL", 0)
    found: list[str] = []
    whole = json_lines._offsets

    def looked(files: Any, number: int) -> Any:
        found.append(files.names[number])
        return whole(files, number)

    monkeypatch.setattr(json_lines, "_offsets", looked)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "lines").mkdir()
    for name in ("a", "b"):
        (tmp_path / f"lines/{name}.jsonl").write_text("".join(f'{{"n": {n}}}\n\n' for n in range(5)))
    return tmp_path / "lines"


def numbers(folder: Path) -> list[int]:
    return [int(row["n"]) for row in tfdist.data.open(folder)]


def test_files_are_passed_over_once(folder: Path, passes: list[str]) -> None:
    digests = {tfdist.data.open(folder).manifest.digest for _ in range(3)}
    assert numbers(folder) == [*range(5), *range(5)]
    assert passes == ["a.jsonl", "b.jsonl"]
    assert len(digests) == 1
    assert sorted(path.name for path in folder.iterdir()) == ["a.jsonl", "b.jsonl"]


@pytest.mark.parametrize("change", ["size", "time", "ends"])
def test_files_that_changed_are_passed_over_again(folder: Path, passes: list[str], change: str) -> None:
    path = folder / "b.jsonl"
    before = path.stat()
    assert numbers(folder)[-1] == 4
    if change == "size":
        path.write_text('{"n": 7}')
    elif change == "ends":
        path.write_text(path.read_text().replace('"n": 4', '"n": 9'))
    if change != "time":
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert numbers(folder)[-1] == {"size": 7, "time": 4, "ends": 9}[change]
    assert len(passes) == 4


@pytest.mark.parametrize("damage", [b"", b"{}", b"\x93NUMPY", None])
def test_a_damaged_index_is_made_again(folder: Path, passes: list[str], tmp_path: Path, damage: bytes | None) -> None:
    assert numbers(folder) == [*range(5), *range(5)]
    for path in [path for path in (tmp_path / "cache").rglob("*") if path.suffix in (".npy", ".json")]:
        if damage is None:
            content = bytearray(path.read_bytes())
            content[-1] ^= 1
            path.write_bytes(content)
        else:
            path.write_bytes(damage)
        assert numbers(folder) == [*range(5), *range(5)]
    assert len(passes) > 2


def test_the_command_keeps_an_index_next_to_files(folder: Path, passes: list[str], tmp_path: Path) -> None:
    found = CliRunner().invoke(command, [str(folder)])
    assert found.exit_code == 0
    assert "10 examples" in found.output
    assert "n int64" in found.output
    moved = folder.rename(tmp_path / "moved")
    assert numbers(moved) == [*range(5), *range(5)]
    assert len(passes) == 2
    for option, value in (("label", "n"), ("split", "train"), ("schema", SCHEMA)):
        with refused(ConfigError, name=option):
            tfdist.data.index(moved, **{option: value})


def test_a_read_only_folder_has_its_index_in_the_cache(
    folder: Path, passes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = LocalStorage.lock
    closed = [folder]

    def lock(self: LocalStorage, **options: Any) -> Any:
        if any(self.local.is_relative_to(place) for place in closed):
            raise StorageError("Read-only file system")
        return whole(self, **options)

    monkeypatch.setattr(LocalStorage, "lock", lock)
    assert tfdist.data.index(folder).examples == 10
    assert tfdist.data.index(folder).examples == 10
    assert not (folder / kept_index.BESIDE).exists()
    assert len(passes) == 2
    closed.append(tmp_path / "cache")
    (folder / "c.jsonl").write_text(json.dumps({"n": 8}))
    assert numbers(folder)[-1] == 8
    assert len(passes) == 5
    assert "is not kept" in caplog.text


def test_documents_beside_the_files_are_no_data(folder: Path) -> None:
    before = tfdist.data.open(folder).manifest.digest
    for name in ("README.md", "readme", "LICENSE", "LICENCE.txt", "sha256sums.txt", "Datasheet.pdf", "_SUCCESS"):
        (folder / name).write_text("of people, for people")
    done = CliRunner().invoke(command, [str(folder)])
    assert done.exit_code == 0, done.output
    assert tfdist.data.open(folder).manifest.digest == before
    (folder / "README.md").write_text("an edited text")
    assert numbers(folder) == [*range(5), *range(5)]


@pytest.mark.parametrize("other", ["labels.json", "c.tar", "readmes.txt"])
def test_files_of_several_kinds_are_refused_with_a_way_on(folder: Path, other: str) -> None:
    (folder / other).write_text("{}")
    named = "*.tar" if other.endswith(".tar") else other
    for given in (folder, folder / "*"):
        with refused(ConfigError, path=given, mentions=(named, f"'{folder}/*.jsonl'")):
            tfdist.data.open(given)
    assert numbers(folder / "*.jsonl") == [*range(5), *range(5)]
