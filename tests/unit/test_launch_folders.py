"""Folders of jobs: what a dead job has left is cleared, and nothing else."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.cluster.job_files import PREFIX
from tfdist.jobs.process import script_worker
from tfdist.processes import guardian
from tfdist.processes.job_resources import claimed, clear

ROOT = Path(__file__).parents[2]
MAKER = """
import os, pathlib, signal, sys
from tfdist.processes.job_resources import claimed
with claimed("dead", pathlib.Path(sys.argv[1])) as folder:
    files = [pathlib.Path(sys.argv[1], name) for name in ("__autograph_generated_file1.py", "mine.py")]
    for path in files:
        path.write_text("x")
    (folder / "worker-0.json.generated").write_bytes(b"\\0".join(map(os.fsencode, files)))
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_dead_jobs_folder_goes_and_the_files_that_it_lists(tmp_path: Path) -> None:
    died = subprocess.run(
        [sys.executable, "-c", MAKER, str(tmp_path)], capture_output=True, text=True, cwd=ROOT, timeout=200, check=False
    )
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert Path(died.stdout.strip()).is_dir()
    with claimed("a", tmp_path) as living:
        clear([tmp_path, tmp_path / "missing"])
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["mine.py", living.name])
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


@pytest.mark.parametrize("kind", ["other host", "no host", "other name", "link"])
def test_what_may_be_somebody_elses_stays(kind: str, tmp_path: Path) -> None:
    with claimed("a", tmp_path) as made:
        host = (made / "host").read_text()
    folder = tmp_path / ("tfdist-tune-x" if kind == "other name" else f"{PREFIX}a-x")
    target = tmp_path / "target" if kind == "link" else folder
    target.mkdir()
    if kind != "no host":
        (target / "host").write_text("elsewhere" if kind == "other host" else host)
    if kind == "link":
        folder.symlink_to(target)
    clear([tmp_path])
    assert folder.is_dir()
    assert target.is_dir()


def test_only_autographs_files_are_removed(tmp_path: Path) -> None:
    generated, other = tmp_path / "__autograph_generated_file_ü.py", tmp_path / "data"
    for path in (generated, other):
        path.write_text("x")
    listing = tmp_path / "worker-0.json.generated"
    listing.write_bytes(b"".join(os.fsencode(path) + b"\0" for path in (generated, other, tmp_path / "gone")))
    guardian.remove_listed(str(listing))
    guardian.remove_listed(str(listing))
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_worker_lists_what_it_is_about_to_make(tmp_path: Path) -> None:
    code = """
import sys, tempfile
sys.path.insert(0, sys.argv[2])
import script_worker
script_worker.list_generated_files(sys.argv[1] + "/list")
tempfile.mkstemp(prefix="data", dir=sys.argv[1])
tempfile.mkstemp(dir=sys.argv[1].encode())
_, made = tempfile.mkstemp(prefix="__autograph_generated_file", suffix=".py", dir=sys.argv[1])
script_worker.list_generated_files(sys.argv[1] + "/no folder/list")
tempfile.mkstemp(prefix="__autograph_generated_file", suffix=".py", dir=sys.argv[1])
"""
    folder = str(Path(script_worker.__file__).parent)
    subprocess.run([sys.executable, "-c", code, str(tmp_path), folder], timeout=200, check=True)
    listed = (tmp_path / "list").read_bytes().split(b"\0")[:-1]
    assert {os.fsencode(path) for path in tmp_path.glob("__auto*")} == set(listed)
    assert len(listed) == 2
    assert (script_worker.LISTING, script_worker.GENERATED) == (guardian.LISTING, guardian.GENERATED)
