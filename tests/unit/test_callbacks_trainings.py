"""A backup directory that a training of another process uses is told, and a process that has died uses none."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfdist.callbacks.backup.run_identity import Claim

HOLDS = """
import os, sys
from tfdist.callbacks.backup.run_identity import Claim
claim = Claim(sys.argv[1])
if os.fork():
    os.write(1, f"holds {claim.is_alone}\\n".encode())
    sys.stdin.read()
else:  # as a process of the script's own, which outlives it
    os.write(1, b"child\\n")
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that trains with the directory, and a child of it."""
    command = [sys.executable, "-c", HOLDS, str(tmp_path / "backup")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert sorted(process.stdout.readline() for _ in range(2)) == ["child\n", "holds True\n"]
        yield process
        process.kill()


def test_another_process_is_seen_until_it_ends(tmp_path: Path, other: "subprocess.Popen[str]") -> None:
    seen = Claim(str(tmp_path / "backup"))
    assert not seen.is_alone
    seen.close()
    other.send_signal(signal.SIGKILL)
    other.wait(60)  # its child goes on
    alone = Claim(str(tmp_path / "backup"))
    assert alone.is_alone
    alone.close()


def test_a_process_does_not_disturb_itself_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    first, second = Claim(str(folder)), Claim(str(folder))
    assert (first.is_alone, second.is_alone) == (True, True)
    first.close()
    second.close()
    second.close()
    assert not folder.exists()


def test_what_was_saved_stays_and_an_object_store_has_no_locks(tmp_path: Path) -> None:
    with open(tmp_path / "saved", "w"):
        Claim(str(tmp_path)).close()
    assert os.listdir(tmp_path) == ["saved"]
    assert Claim("memory://bucket/backup").is_alone
