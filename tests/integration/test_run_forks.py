"""Workers of a job that has loaded TensorFlow are started again from a process that has imported it already."""

import signal

from tests.integration.agents import DEADLINE_SECONDS, alive, told, wait_until
from tests.integration.steppers import STEPPER, done, job, wait_for_event

FOREVER = (
    """
import os
os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
import tensorflow as tf
"""
    + STEPPER
    + """
tell(f"command {START} {ME}", pathlib.Path("/proc/self/cmdline").read_text())
tell(f"variable {START} {ME}", f"{tf.constant(ME + 1).numpy()} {sys.argv[1:]} {os.getppid()}")
def before(tick):
    if tick == 3 and START < 3:
        wait_told(f"go {START}")
        if ME == 1:
            os.kill(os.getpid(), signal.SIGKILL)
train(20, before=before)
if START == 3:
    print("a line of", ME)
    wait_told("end")
"""
)


def test_restarts_from_a_process_that_has_imported_tensorflow(script, shared):  # type: ignore[no-untyped-def]
    path = script(FOREVER)
    with job("-n", 2, "--max-restarts", 3, "--hang-seconds", 100, path, "--epochs", 3, shared=shared) as process:
        for start in range(3):
            wait_for_event(shared, "stepping", start=start)
            (shared / f"go {start}").write_text("x")
        assert done(shared) == list(range(20))
        pids = [int(told(shared, f"pid 3 {worker}")) for worker in range(2)]
        (shared / "end").write_text("x")
        out, err = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == 0, err
        assert {b"[worker 0] a line of 0", b"[worker 1] a line of 1"} <= set(out.splitlines())
        for start in range(4):
            for worker in range(2):
                forked = "forking.py" in told(shared, f"command {start} {worker}")
                assert forked == (start > 0)
                said = f"{worker + 1} ['--epochs', '3'] {process.pid}"
                assert told(shared, f"variable {start} {worker}") == said
        wait_until(lambda: not any(map(alive, pids)), "workers are left")


def test_a_killed_agent_leaves_no_process_that_waits(forking, script, shared):  # type: ignore[no-untyped-def]
    path = script(FOREVER.replace("train(20", "train(10**9"))
    with job("-n", 2, "--max-restarts", 3, "--hang-seconds", 100, path, shared=shared, forking=forking) as process:
        wait_for_event(shared, "stepping")
        (shared / "go 0").write_text("x")
        wait_for_event(shared, "stepping", start=1)
        pids = [int(told(shared, f"pid 1 {worker}")) for worker in range(2)]
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=DEADLINE_SECONDS)
        wait_until(lambda: not any(map(alive, pids)), "workers are left")
