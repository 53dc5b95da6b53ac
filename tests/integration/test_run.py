"""`tfdist run` when workers fail and signals arrive: the root cause, the exit code, and that nothing is left behind.

No test waits for a fault by sleeping: scripts and tests tell each other what has happened through files.
"""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from tests.integration.agents import DEADLINE_SECONDS, agent, alive, environment, finished, told, wait_until

pytestmark = pytest.mark.quick


def test_the_first_failure_by_time_is_the_root_cause(script, shared):  # type: ignore[no-untyped-def]
    # worker 1 fails first, but its process stays until worker 0, which fails because of it, has ended
    path = script("""
        import atexit
        if ME == 1:
            tell("pid", str(os.getpid()))
            atexit.register(wait_told, "other one ended")
            raise ValueError("the root cause")
        wait_for(pathlib.Path(os.environ["TFDIST_ERROR_FILE"]).with_name("worker-1.json").exists)
        atexit.register(tell, "other one ended")
        raise RuntimeError("collective failed")
    """)
    code, _, err = finished("-n", 2, path, shared=shared)
    assert code == 1
    report = err[err.index("worker 1 of 2 failed first") :]
    assert "exit code 1" in report
    assert "ValueError: the root cause" in report
    assert "later worker 0: RuntimeError: collective" in report
    assert f'File "{path}"' in report
    assert "worker.py" not in report


def test_a_failed_worker_that_does_not_end_ends_the_job(script, shared):  # type: ignore[no-untyped-def]
    path = script("""
        import threading
        if ME == 1:
            threading.Thread(target=threading.Event().wait).start()
            raise ValueError("and a thread keeps the process")
        threading.Event().wait()
    """)
    code, _, err = finished("-n", 2, "--grace-seconds", 0.5, path, shared=shared)
    assert code == 1
    assert "worker 1 of 2 failed first" in err
    assert "ValueError: and a thread keeps" in err


def test_a_killed_worker_is_the_root_cause(script, shared):  # type: ignore[no-untyped-def]
    path = script("""
        def broken(number, frame):
            raise RuntimeError("collective failed")
        signal.signal(signal.SIGTERM, broken)
        tell(f"ready {ME}", str(os.getpid()))
        while True:
            time.sleep(1)
    """)
    with agent("-n", 2, path, shared=shared) as process:
        told(shared, "ready 0")
        os.kill(int(told(shared, "ready 1")), signal.SIGKILL)
        _, err = process.communicate(timeout=DEADLINE_SECONDS)
    report = err.decode()
    assert process.returncode == 128 + signal.SIGKILL
    assert "worker 1 of 2 failed first" in report
    assert "SIGKILL (signal 9)" in report
    assert "memory" in report
    assert "later worker 0: RuntimeError: collective" in report


@pytest.mark.parametrize(
    ("ending", "code", "shown"),
    [
        ("sys.exit(7)", 7, "SystemExit: 7"),
        ("sys.exit('a reason')", 1, "SystemExit: a reason"),
        ("os._exit(9)", 9, "exit code 9"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "SIGSEGV"),
        ("this is no Python", 1, "SyntaxError"),
    ],
)
def test_the_exit_code_is_kept(ending, code, shown, script, shared):  # type: ignore[no-untyped-def]
    path = script(ending if "no Python" in ending else f"if ME == 1: {ending}")
    received, _, err = finished("-n", 2, path, shared=shared)
    assert received == code
    assert "failed first" in err
    assert shown in err[err.index("failed first") :]


def test_a_worker_that_ends_well_early_is_no_failure(script, shared):  # type: ignore[no-untyped-def]
    path = script("""
        if ME == 0:
            tell("pid", str(os.getpid()))
            sys.exit(0)
        wait_told("ended")
        print("still here")
    """)
    with agent("-n", 2, path, shared=shared) as process:
        pid = int(told(shared, "pid"))
        wait_until(lambda: not alive(pid), "worker 0 does not end")
        (shared / "ended").write_text("x")
        out, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert (process.returncode, out.decode(), err.decode()) == (0, "[worker 1] still here\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("workers", [1, 2])
def test_signals_are_passed_on(number, workers, script, shared):  # type: ignore[no-untyped-def]
    path = script("""
        def ending(number, frame):
            tell(f"got {number} {ME}")
            sys.exit(0)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, ending)
        tell(f"ready {ME}")
        while True:
            time.sleep(1)
    """)
    with agent("-n", workers, path, shared=shared) as process:
        for worker in range(workers):
            told(shared, f"ready {worker}")
        process.send_signal(number)
        _, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 128 + number
    assert all((shared / f"got {int(number)} {worker}").exists() for worker in range(workers))
    assert signal.Signals(number).name in err.decode()
    assert "failed first" not in err.decode()


def test_ctrl_c_again_kills_at_once(script, shared):  # type: ignore[no-untyped-def]
    path = script("""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, lambda number, frame: tell(f"interrupted {ME}"))
        tell(f"ready {ME}")
        while True:
            time.sleep(1)
    """)
    with agent("-n", 2, "--grace-seconds", 10_000, path, shared=shared) as process:
        for name in ("ready", "interrupted"):
            for worker in range(2):
                told(shared, f"{name} {worker}")
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 130


def test_an_ignored_hangup_stays_ignored(script, shared):  # type: ignore[no-untyped-def]
    path = script("tell('ready'); wait_told('go'); print('survived')")
    command = [sys.executable, "-m", "tfdist", "run", str(path)]
    quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    with subprocess.Popen(["nohup", *command], env=environment(shared), **quiet) as process:
        try:
            told(shared, "ready")
            process.send_signal(signal.SIGHUP)
            (shared / "go").write_text("x")
            out, _ = process.communicate(timeout=DEADLINE_SECONDS)
        finally:
            process.kill()
    assert (process.returncode, out) == (0, b"survived\n")


def test_a_worker_that_ignores_sigterm_is_killed(script, shared):  # type: ignore[no-untyped-def]
    path = script("""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        tell(f"pid {ME}", str(os.getpid()))
        wait_told("pid 0")
        if ME == 1:
            sys.exit(5)
        while True:
            time.sleep(1)
    """)
    code, _, err = finished("-n", 2, "--grace-seconds", 0.3, path, shared=shared)
    assert code == 5
    assert "killing 1 worker" in err
    assert not alive(int(told(shared, "pid 0")))


CHILDREN = """
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(1000)"
    def start(name, **options):
        process = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, **options)
        process.stdout.readline()
        tell(name, str(process.pid))
    start(f"child {ME}")
    start(f"session {ME}", start_new_session=True)
    start(f"bare {ME}", env={})
"""
CHILD_NAMES = [f"{kind} {worker}" for kind in ("child", "session", "bare") for worker in range(2)]


@pytest.mark.parametrize("ending", ["if ME == 1: sys.exit(3)", "if ME == 1: sys.exit(0)"])
def test_children_of_workers_are_ended(ending, script, shared):  # type: ignore[no-untyped-def]
    path = script(
        textwrap.dedent(CHILDREN) + f"tell(f'all {{ME}}'); wait_told('all 0'); wait_told('all 1')\n{ending}\n"
    )
    code, _, _ = finished("-n", 2, "--grace-seconds", 0.3, path, shared=shared)
    assert code == (3 if "3" in ending else 0)
    assert [name for name in CHILD_NAMES if alive(int(told(shared, name)))] == []


def test_a_killed_agent_leaves_nothing(script, shared):  # type: ignore[no-untyped-def]
    path = script(textwrap.dedent(CHILDREN) + "tell(f'ready {ME}', str(os.getpid()))\nwhile True: time.sleep(1)\n")
    with agent("-n", 2, path, shared=shared) as process:
        pids = [int(told(shared, name)) for name in ("ready 0", "ready 1", *CHILD_NAMES)]
        process.kill()
        process.wait(timeout=DEADLINE_SECONDS)
        wait_until(lambda: not any(map(alive, pids)), "processes are left")
