"""`tfdist run --hosts`: jobs on several hosts, reached by a program that stands for ssh and runs commands here.

What differs from several machines is the network alone, which `tests/soak/hosts.py` has, with a real sshd.
"""

import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.agents import (
    DEADLINE_SECONDS,
    TRIAL,
    agent,
    alive,
    another_host,
    environment,
    finished,
    own_lines,
    says,
    searched,
    told,
    wait_until,
)
from tests.integration.steppers import STEPPER, done, fault, happened, job, wait_for_event
from tests.integration.test_run_resize import FOREVER, resize, sizes
from tests.integration.test_run_resize import halts as halted_before

quick = pytest.mark.quick
HOSTS = "one=127.0.0.1:2,two=127.0.0.2:2"
# each host has memory of its own, and this stepper's chief hands its state to nobody
ON_HOSTS = {name: text.replace('"TFDIST_MEMORY_DIR"', '"NOWHERE"') for name, text in (("40", STEPPER), ("", FOREVER))}


@pytest.fixture
def hosts(shared: Path) -> list[str]:
    return ["--hosts", HOSTS, "--ssh-command", f"'{another_host(shared)}'"]


@quick
def test_what_workers_get_and_write(hosts: list[str], script: Any, shared: Path) -> None:
    path = script(
        """
        print(*(os.environ.get(f"TFDIST_{name}") for name in ("WORKER_INDEX", "LOCAL_INDEX", "LOCAL_WORKERS")))
        print(os.getcwd(), sys.argv[1], len(os.environ["TFDIST_JOB_KEY"]), flush=True)
        gpus = os.environ["CUDA_VISIBLE_DEVICES"]
        print(os.environ["MINE"], os.environ.get("ALIEN"), os.environ["TF_MINE"], gpus, flush=True)
        tell(f"addresses {ME}", os.environ["TFDIST_WORKERS"])
        os.write(1, b"x" * 1_000_000 + b"\\n")
        print("ü", file=sys.stderr)
        """,
        name="folder ü/script.py",
    )
    variables = {"MINE": "1", "ALIEN": "2", "TF_MINE": "3", "TFDIST_HOST_ID": "mine alone"}
    variables["CUDA_VISIBLE_DEVICES"] = "4,6"
    hosts += ["--gpus-per-worker", "1"]
    where = {"cwd": path.parent, "env": environment(shared, **variables)}
    code, out, err = finished(*hosts, "--pass-env", "MINE", path.name, "a b", shared=shared, **where)
    assert (code, err.count("ü")) == (0, 4), err
    places = [("0", "0", "2"), ("1", "1", "2"), ("2", "0", "2"), ("3", "1", "2")]
    for worker, place in enumerate(places):
        lines = own_lines(out, worker)
        assert lines[:3] == [" ".join(place), f"{path.parent} a b 64", f"1 None 3 {'46'[int(place[1])]}"]
        assert len(lines[3]) == 1_000_000
    addresses = {told(shared, f"addresses {worker}") for worker in range(4)}
    assert len(addresses) == 1
    assert [one.partition(":")[0] for one in addresses.pop().split(",")] == ["127.0.0.1"] * 2 + ["127.0.0.2"] * 2


@quick
def test_trials_of_a_search_have_places_and_gpus_of_their_own(script: Any, shared: Path) -> None:
    env = environment(shared, CUDA_VISIBLE_DEVICES="4,6", TFDIST_SSH_COMMAND=f"'{another_host(shared)}'")
    hosts = ("--hosts", HOSTS, "--gpus-per-worker", 1)
    logs = searched(*hosts, "--trials", 4, script(TRIAL), shared=shared, env=env)
    found = sorted(line.partition("at ")[2] for log in logs for line in log.splitlines() if "at 127" in line)
    assert found == ["127.0.0.1 0", "127.0.0.1 1", "127.0.0.2 0", "127.0.0.2 1"], logs


@quick
def test_the_first_failure_is_the_cause_and_its_code_is_kept(hosts: list[str], script: Any, shared: Path) -> None:
    path = script(
        """
        if ME == 3:
            raise SystemExit(7)
        time.sleep(1000)
        """
    )
    code, _, err = finished(*hosts, path, shared=shared)
    assert (code, "worker 3 of 4 failed first" in err, "exit code 7" in err) == (7, True, True), err


@quick
def test_killed_stopped_and_a_host_lost_twice_and_no_step_is_lost_or_repeated(
    hosts: list[str], script: Any, shared: Path
) -> None:
    lose = """
def lose(tick):
    if (tick, ME) == (5, 2) and START in (2, 3):
        if START == 3:
            tell("two is gone")
        os.kill(os.getppid(), signal.SIGKILL)

clock.warn("of all")
clock.warn(f"of worker {ME} " + 9000 * "x")
train(40, before=lose)
"""
    path = script(ON_HOSTS["40"] + lose)
    faults = [fault("kill", 3, 4), fault("stop", 2, 8, restart=1)]
    options = ("--max-restarts", 4, "--min-workers", 2)
    with job(*hosts, *options, path, shared=shared, faults=faults) as process:
        _, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0, err
    assert done(shared) == list(range(40))
    *_, ended = happened(shared)
    assert sorted(ended["warnings"]) == ["of all", *(f"of worker {number} " + 9000 * "x" for number in range(4))]
    failures = [one for one in happened(shared) if one["event"] == "failed"]
    assert [one["cause"] for one in failures] == ["signal", "hang", "exception", "exception"]
    assert (failures[0]["worker"], failures[0]["tick"], failures[1]["worker"]) == (3, 4, 2)
    assert all("connection to host two" in failure["text"] for failure in failures[2:])
    # a start that is lost may be over before the agent has seen all of it step
    stepping = [one["workers"] for one in happened(shared) if one["event"] == "stepping"]
    assert [workers for workers, _ in itertools.groupby(stepping)] == [4, 2]
    assert b"host two was lost" in err
    assert b"continues with 2 workers" in err


@quick
def test_all_hosts_stop_before_the_same_step(hosts: list[str], script: Any, shared: Path) -> None:
    path = script(ON_HOSTS[""])
    with job(*hosts, "-n", 2, "--min-workers", 1, "--max-workers", 4, path, shared=shared) as process:
        wait_for_event(shared, "stepping")
        (shared / "two is gone").touch()
        code, _, err = resize(shared, 4)
        assert (code, "host two" in err) == (1, True), err
        (shared / "two is gone").unlink()
        for workers in (4, 3):
            code, _, err = resize(shared, workers)
            assert code == 0, err
        (shared / "enough").write_text("x")
        process.communicate(timeout=DEADLINE_SECONDS)
    assert (process.returncode, [size for size, _ in itertools.groupby(sizes(shared))]) == (0, [2, 4, 3])
    steps = done(shared)
    assert steps == list(range(len(steps)))
    for start, workers in enumerate((2, 2, 4)):
        assert len(halted_before(shared, start, workers)) == 1, "they stopped before different steps"


@quick
def test_a_host_whose_agent_is_asked_to_end_is_lost_and_its_workers_have_not_failed(
    hosts: list[str], script: Any, shared: Path
) -> None:
    path = script("tell(f'agent {ME}', str(os.getppid()))\ntime.sleep(1000)")
    with agent(*hosts, path, shared=shared) as process:
        for worker in (0, 1, 3):
            told(shared, f"agent {worker}")
        os.kill(int(told(shared, "agent 2")), signal.SIGTERM)
        _, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 1, err
    assert (
        b"the connection to host two has ended\n    what acts for the launcher there was asked to end (SIGTERM)" in err
    )
    assert b"SIGKILL" not in err


@quick
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_what_ends_the_agent_ends_the_workers(number: int, hosts: list[str], script: Any, shared: Path) -> None:
    path = script("tell(f'pid {ME}', str(os.getpid()))\nsubprocess.Popen(['sleep', '1000'])\ntime.sleep(1000)")
    with agent(*hosts, path, shared=shared) as process:
        pids = [int(told(shared, f"pid {worker}")) for worker in range(4)]
        process.send_signal(number)
        process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == (130 if number == signal.SIGINT else -9)
    wait_until(lambda: not any(map(alive, pids)), "a worker is left")


def refused(*arguments: object, shared: Path, script: Any) -> str:
    code, _, err = finished(*arguments, script("sys.exit('it was started')"), shared=shared)
    assert code in (1, 2), err
    assert "it was started" not in err
    assert "Traceback" not in err
    return err


@quick
def test_hosts_that_cannot_be_are_one_error_before_anything_is_started(
    hosts: list[str], script: Any, shared: Path, tmp_path: Path
) -> None:
    def error(*arguments: object) -> str:
        return refused(*arguments, shared=shared, script=script)

    shell = hosts[2:]
    assert "names 'one' twice" in error("--hosts", "one,one:2")
    assert says(error(*hosts, "-n", 5), "5 processes", "places for 4")
    assert "a host is [USER@]HOST" in error("--hosts", "one:2:3")
    assert "-oProxyCommand" in error("--hosts", "-oProxyCommand=evil")
    assert "localhost is, on host" in error("--hosts", "one=127.0.0.1,two=localhost", *shell)
    assert "Install OpenSSH's client" in error("--hosts", "one", "--ssh-command", str(tmp_path / "missing"))
    assert "host one cannot be" in error("--hosts", "one", "--ssh-command", "false")
    assert "--remote-python" in error("--hosts", "one", *shell, "--remote-python", str(tmp_path / "python"))
    assert "does not resolve" in error("--hosts", "no-such-host.invalid", *shell)
    old = tmp_path / "old"
    old.write_text(f"#!/bin/sh\nexec {sys.executable} -c \"import sys; sys.exit('No module named tfdist')\"\n")
    old.chmod(0o755)
    assert "same version of tfdist" in error("--hosts", "one", *shell, "--remote-python", str(old))


@quick
def test_dry_run_shows_no_key_and_reaches_nobody(script: Any, shared: Path) -> None:
    code, out, err = finished("--dry-run", "--hosts", "a:1,me@b=10.0.0.5:2", script(""), shared=shared)
    assert code == 0, err
    assert "TFDIST_WORKERS=a:10000,10.0.0.5:10001,10.0.0.5:10002" in out
    assert "ssh -T -o BatchMode=yes" in out
    assert " me@b " in out
    assert "TFDIST_JOB_KEY" not in out
    assert os.sep not in err
