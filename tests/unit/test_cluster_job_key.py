"""The file of a job's key is there as a whole, or not at all."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tfdist.cluster import job_key


def no_links(*arguments: Any, **options: Any) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("has_links", [True, False])
def test_a_key_is_not_there_before_it_is_whole(
    has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, drawn = tmp_path / "job.key", job_key.drawn

    def looked() -> str:
        assert not path.exists()
        return drawn()

    monkeypatch.setattr(job_key, "drawn", looked)
    if not has_links:
        monkeypatch.setattr(os, "link", no_links)
    key = job_key.from_file(path, make=True)
    assert key == job_key.from_file(path, make=True) == job_key.from_file(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_no_empty_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(job_key, "drawn", full)
    with pytest.raises(OSError, match="No space left"):
        job_key.from_file(tmp_path / "job.key", make=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("has_links", [True, False])
def test_of_two_keys_the_first_counts(has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, drawn, others = tmp_path / "job.key", job_key.drawn, list[bytes]()

    def later() -> str:
        monkeypatch.setattr(job_key, "drawn", drawn)
        others.append(job_key.from_file(path, make=True))
        return drawn()

    monkeypatch.setattr(job_key, "drawn", later)
    if not has_links:
        monkeypatch.setattr(os, "link", no_links)
    assert [job_key.from_file(path, make=True)] == others
