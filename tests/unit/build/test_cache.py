"""The cache: where it is, what it refuses, that a wheel is whole, and that one process builds at a time."""

import os
import zipfile
from pathlib import Path

import pytest

from tests.refusals import refused
from tfdist.cache import folder, locked, locked_folder
from tfdist.errors import ConfigError, DeadlineError
from tfdist_horovod.wheel_cache import Cache, open_cache


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return open_cache({"TFDIST_CACHE_DIR": str(tmp_path / "cache")})


def wheel_in(path: Path, content: str = "x" * 1000) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("horovod/a.py", content)
    return path


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TFDIST_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/h"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/h"}, "/b/tfdist"),
        ({"HOME": "/h"}, "/h/.cache/tfdist"),
        ({"TFDIST_CACHE_DIR": "", "HOME": "/h"}, "/h/.cache/tfdist"),
    ],
)
def test_where_it_is(environ: dict[str, str], expected: str) -> None:
    assert folder(environ) == Path(expected)


@pytest.mark.parametrize("name", ["a:b", "a;b", "a\nb"])
def test_a_path_that_cannot_be_passed_on_is_refused(tmp_path: Path, name: str) -> None:
    with refused(ConfigError, name="TFDIST_CACHE_DIR", path=tmp_path / name):
        open_cache({"TFDIST_CACHE_DIR": str(tmp_path / name)})
    assert not (tmp_path / name).exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    where = tmp_path / "file" / "cache"
    with refused(ConfigError, name="TFDIST_CACHE_DIR", path=where, mentions=["Not a directory"]):
        open_cache({"TFDIST_CACHE_DIR": str(where)})


def test_a_wheel_is_put_in_place_and_found(cache: Cache, tmp_path: Path) -> None:
    assert cache.find("key", "a.whl") is None
    place = cache.put(wheel_in(tmp_path / "new.whl"), "key", "a.whl")
    assert cache.find("key", "a.whl") == place
    assert cache.find("other", "a.whl") is None
    assert list(cache.work.iterdir()) == []


def test_a_wheel_that_cannot_be_put_in_place_leaves_nothing(cache: Cache, tmp_path: Path) -> None:
    cache.wheel("key", "a.whl").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        cache.put(wheel_in(tmp_path / "new.whl"), "key", "a.whl")
    assert list(cache.work.iterdir()) == []


def test_a_build_works_where_the_path_has_no_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = open_cache({"TFDIST_CACHE_DIR": str(tmp_path / "plain")})
    spaced = open_cache({"TFDIST_CACHE_DIR": str(tmp_path / "with a space")})
    assert plain.workplace == plain.work
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert spaced.workplace == tmp_path
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "my files"))
    with refused(ConfigError, name="TMPDIR", path=tmp_path / "my files"):
        _ = spaced.workplace


def test_a_damaged_wheel_counts_for_none(cache: Cache, tmp_path: Path) -> None:
    place = cache.put(wheel_in(tmp_path / "new.whl"), "key", "a.whl")
    whole = place.read_bytes()
    place.write_bytes(whole[: len(whole) // 2])
    assert cache.find("key", "a.whl") is None
    place.write_bytes(whole.replace(b"xxxx", b"xyxx"))
    assert cache.find("key", "a.whl") is None
    place.write_bytes(b"")
    assert cache.find("key", "a.whl") is None


def test_who_waits_is_told_for_whom_and_not_for_ever(cache: Cache) -> None:
    told: list[str] = []
    with (
        locked(cache.lock("key"), timeout_seconds=200, on_wait=told.append),
        locked(cache.lock("other"), timeout_seconds=200, on_wait=told.append),
    ):
        assert told == []
        with (
            refused(DeadlineError, path=cache.lock("key"), mentions=[f"process {os.getpid()}"]),
            locked(cache.lock("key"), timeout_seconds=0.1, on_wait=told.append),
        ):
            pytest.fail("two had the same lock")
    assert told == [f"process {os.getpid()}"]
    with locked(cache.lock("key"), timeout_seconds=0.1, on_wait=told.append):
        assert len(told) == 1


def test_a_folder_is_locked_without_a_file(tmp_path: Path) -> None:
    told: list[str] = []
    with (
        locked_folder(tmp_path, timeout_seconds=200, on_wait=told.append),
        refused(DeadlineError, path=tmp_path),
        locked_folder(tmp_path, timeout_seconds=0.1, on_wait=told.append),
    ):
        pytest.fail("two had the same lock")
    assert told == ["another process"]
    assert list(tmp_path.iterdir()) == []
    with locked_folder(tmp_path, timeout_seconds=0.1, on_wait=told.append):
        assert len(told) == 1
