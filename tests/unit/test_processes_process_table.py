"""The table of this machine's processes: what it says of a child, compared with psutil."""

import os
import signal
import subprocess
from collections.abc import Iterator

import psutil
import pytest

from tfdist.processes import guardian, process_table
from tfdist.variables import JOB_ID, JOB_PART


@pytest.fixture
def child() -> Iterator["subprocess.Popen[bytes]"]:
    """A process in a session of its own, with a name that has a parenthesis, and the id of a job."""
    environment = {**os.environ, JOB_ID.name: "table-of-a-test", "EMPTY": ""}
    words = ["bash", "-c", "exec -a 'a) R 1 1 1' sleep 1000"]
    process = subprocess.Popen(words, env=environment, start_new_session=True)
    yield process
    process.kill()
    process.wait(60)


def entry(pid: int) -> process_table.Process | None:
    return next((one for one in process_table.processes() if one.pid == pid), None)


def test_it_says_of_a_child_what_psutil_says(child: "subprocess.Popen[bytes]") -> None:
    found, seen = entry(child.pid), psutil.Process(child.pid)
    assert found == process_table.Process(
        pid=child.pid, parent=seen.ppid(), session=os.getsid(child.pid), is_zombie=False
    )
    assert found.parent == os.getpid()
    assert found.session == child.pid
    assert process_table.environment(child.pid) == seen.environ()
    assert process_table.environment(child.pid)["EMPTY"] == ""


def test_one_that_has_ended_is_a_zombie_until_it_is_collected(child: "subprocess.Popen[bytes]") -> None:
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    found = entry(child.pid)
    assert found is not None
    assert found.is_zombie
    assert child.wait(60) == -signal.SIGKILL
    assert entry(child.pid) is None
    assert process_table.environment(child.pid) == {}


def test_members_are_found_by_session_by_id_and_by_part(child: "subprocess.Popen[bytes]") -> None:
    assert guardian.members("table-of-a-test", sessions=[]) == [child.pid]
    assert guardian.members("another", sessions=[child.pid]) == [child.pid]
    assert guardian.members("another", sessions=[]) == []
    assert os.getpid() not in guardian.members("another", sessions=[os.getsid(0)])
    part = subprocess.Popen(["sleep", "1000"], env={JOB_PART.name: "part-of-a-test", "PATH": os.environ["PATH"]})
    try:
        assert guardian.members("part-of-a-test", sessions=[]) == [part.pid]
        part.kill()
        os.waitid(os.P_PID, part.pid, os.WEXITED | os.WNOWAIT)
        assert guardian.members("part-of-a-test", sessions=[]) == []  # it has ended
    finally:
        part.kill()
        part.wait(60)
