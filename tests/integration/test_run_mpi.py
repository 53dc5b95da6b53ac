"""`tfdist run --engine mpi`: by the mpirun that is installed, with a program in place of its ssh."""

import shutil
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.agents import DEADLINE_SECONDS, agent, alive, finished, own_lines, told, wait_until
from tests.integration.steppers import done, fault, happened, job
from tests.integration.test_run_hosts import ON_HOSTS

pytestmark = [
    pytest.mark.quick,
    pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun"),
]


@pytest.fixture
def options() -> list[str]:
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
    assert "nowhere.invalid: no address of that name is known here" in err


def test_an_mpirun_that_is_none_is_one_error(script: Any, shared: Path) -> None:
    for program, said in (("no-mpirun", "is not found"), ("false", "needs the mpirun of Open MPI or MPICH")):
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
