"""`tfdist run --engine mpi`: by the mpirun that is installed, and by programs that do what others do at a signal."""

import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.agents import (
    DEADLINE_SECONDS,
    agent,
    alive,
    environment,
    finished,
    own_lines,
    says,
    told,
    wait_until,
)
from tests.integration.steppers import done, fault, happened, job, wait_for_event
from tests.integration.test_run_hosts import ON_HOSTS

pytestmark = pytest.mark.quick
# what starts the agents here, as MPICH's mpirun does; at SIGTERM, and when one of them has ended, it does what is told
STARTS_AGENTS = """
import os, pathlib, signal, subprocess, sys, time
if "--version" in sys.argv:
    sys.exit(print("HYDRA build details:"))
pathlib.Path(os.environ["SHARED"], "mpirun").write_text(str(os.getpid()))
words, agents = sys.argv[1:], []
def end_all(number, frame=None):
    for one in agents:
        one.send_signal(number)
signal.signal(signal.SIGTERM, end_all)
while "env" in words:
    words = words[words.index("env") :]
    end = words.index(":") if ":" in words else len(words)
    agents.append(subprocess.Popen(words[:end]))
    words = words[end:]
codes = []
while len(codes) < len(agents):
    pid, status = os.wait()
    codes.append(os.waitstatus_to_exitcode(status))
    [one] = [one for one in agents if one.pid == pid]
    one.returncode = codes[-1]
    if codes[-1] < 0 and ENDS_ALL:
        end_all(signal.SIGTERM)
        time.sleep(1)
        end_all(signal.SIGKILL)
sys.exit(max(map(abs, codes)))
"""


@pytest.fixture
def options() -> list[str]:
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    return ["--engine", "mpi", "--hosts", "localhost:2", "--mpi-command", str(shutil.which("mpirun"))]


def test_the_first_failure_is_the_cause_and_its_code_is_kept(options: list[str], script: Any, shared: Path) -> None:
    path = script(
        """
        print(os.environ["TFDIST_LOCAL_INDEX"], [name for name in os.environ if name.startswith(("OMPI_", "PMI"))])
        tell(f"here {ME}")
        wait_for(lambda: all((SHARED / f"here {one}").exists() for one in range(2)))
        sys.exit(7) if ME else time.sleep(1000)
        """
    )
    code, out, err = finished(*options, path, shared=shared)
    assert (code, "worker 1 of 2 failed first" in err) == (7, True), err
    assert [own_lines(out, worker)[0] for worker in range(2)] == ["0 []", "1 []"]


def test_ctrl_c_ends_the_job_and_no_command_line_has_the_key(options: list[str], script: Any, shared: Path) -> None:
    path = script("tell(f'{ME}', f'{os.getpid()} ' + os.environ['TFDIST_JOB_KEY'])\ntime.sleep(1000)")
    with agent(*options, path, shared=shared) as process:
        wait_until(lambda: process.poll() is not None or (shared / "1").exists(), "worker 1 has not begun")
        assert process.poll() is None, process.communicate()
        pids, keys = zip(*(told(shared, str(worker)).split() for worker in range(2)), strict=True)
        joining = psutil.Process(int(pids[0])).parent()
        assert joining is not None
        secrets = {keys[0], joining.environ()["TFDIST_JOB_KEY"]}
        lines = [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
        assert len(secrets) == 2
        assert not [line for line in lines if any(secret in line for secret in secrets)]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 130
    wait_until(lambda: not any(alive(int(pid)) for pid in pids), "a worker is left")


def test_a_host_that_is_not_known_is_one_error(options: list[str], script: Any, shared: Path) -> None:
    hosts = (*options, "--hosts", "nowhere.invalid:2")
    code, _, err = finished(*hosts, script("sys.exit('it was started')"), shared=shared)
    assert (code, "Traceback" in err) == (1, False), err
    assert "nowhere.invalid: no address" in err


def test_an_mpirun_that_is_none_is_one_error(script: Any, shared: Path) -> None:
    for program, said in (("no-mpirun", "is not found"), ("false", "Open MPI or MPICH")):
        where = ("--engine", "mpi", "--hosts", "localhost:2", "--mpi-command", program)
        code, _, err = finished(*where, script("sys.exit('it was started')"), shared=shared)
        assert code in (1, 2)
        assert said in err
        assert "it was started" not in err


def test_workers_that_are_killed_lose_and_repeat_no_step(options: list[str], script: Any, shared: Path) -> None:
    faults = [fault("kill", 1, 4), fault("kill", 0, 7, restart=1)]
    path = script(ON_HOSTS["40"] + "\ntrain(20)\n")
    with job(*options, "--max-restarts", 2, path, shared=shared, faults=faults) as process:
        _, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0, err
    assert done(shared) == list(range(20))
    failures = [one for one in happened(shared) if one["event"] == "failed"]
    assert [(one["cause"], one["worker"], one["tick"]) for one in failures] == [("signal", 1, 4), ("signal", 0, 7)]


def by_program(shared: Path, *, ends_all: bool) -> list[str]:
    program = shared / "starts agents"
    program.write_text(f"#!{sys.executable}\nENDS_ALL = {ends_all}\n{STARTS_AGENTS}")
    program.chmod(0o755)
    return ["--engine", "mpi", "--hosts", "one=127.0.0.1,two=127.0.0.2", "--mpi-command", f"'{program}'"]


def test_sigterm_to_an_mpirun_that_only_hands_it_on_ends_the_job_as_one_to_tfdist_does(
    script: Any, shared: Path
) -> None:
    where = by_program(shared, ends_all=False)
    with job(*where, "--max-restarts", 3, script(ON_HOSTS[""]), shared=shared) as process:
        wait_for_event(shared, "stepping")
        psutil.Process(int(told(shared, "mpirun"))).send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 143, err
    assert b"received SIGTERM" in err
    assert len({told(shared, f"halted 0 {worker}") for worker in range(2)}) == 1, "they stopped before different steps"
    assert not [one for one in happened(shared) if one["event"] == "failed"]


def test_sigterm_to_the_agents_that_are_left_when_one_is_lost_ends_no_job(script: Any, shared: Path) -> None:
    lose = """
def lose(tick):
    if (tick, ME, START) == (5, 1, 0):
        os.kill(os.getppid(), signal.SIGKILL)

train(20, before=lose)
"""
    where = by_program(shared, ends_all=True)
    with job(*where, "--max-restarts", 1, script(ON_HOSTS["40"] + lose), shared=shared) as process:
        _, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0, err
    assert done(shared) == list(range(20))
    assert b"received SIGTERM" not in err


def test_an_mpirun_that_is_killed_ends_the_job_though_its_agents_go_on(script: Any, shared: Path) -> None:
    where = by_program(shared, ends_all=False)
    path = script("os.kill(int((SHARED / 'mpirun').read_text()), signal.SIGKILL)\ntime.sleep(1000)")
    code, _, err = finished(*where, path, shared=shared)
    assert code == 1, err
    assert says(err, "starts agents was", "SIGKILL")


def test_dry_run_shows_the_line_of_mpirun_without_the_key_and_starts_nothing(script: Any, shared: Path) -> None:
    where = by_program(shared, ends_all=False)
    key = {"TFDIST_JOB_KEY": "ab" * 32, "TOKEN": "secret"}
    options = ("--dry-run", *where, "--pass-env", "TOKEN", script("sys.exit('it was started')"))
    code, out, err = finished(*options, shared=shared, env=environment(shared, **key))
    assert code == 0, err
    assert "agents' -bind-to none -genvall -hosts one:1,two:1 -n 1 env TFDIST_HOST_NAME=one" in out
    assert "TFDIST_WORKERS=127.0.0.1:10000,127.0.0.2:10001" in out
    assert not (shared / "mpirun").exists()
    assert not [secret for secret in key.values() if secret in out + err]
