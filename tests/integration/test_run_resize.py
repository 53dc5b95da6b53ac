"""The number of workers of a job that runs: `tfdist resize`, signals, and workers that are asked to leave."""

import os
import signal
import subprocess
import sys

import pytest

from tests.integration.agents import DEADLINE_SECONDS, environment, says, told
from tests.integration.steppers import STEPPER, done, fault, happened, job, wait_for_event

pytestmark = pytest.mark.quick
# workers train until somebody tells that it is enough; the list of the steps is checked at the end
FOREVER = STEPPER + "\ntrain(math.inf)\n"


def resize(shared, workers, job_id=""):  # type: ignore[no-untyped-def]
    command = [sys.executable, "-m", "tfdist", "resize", "--timeout-seconds", "400", job_id, str(workers)]
    env = environment(shared, TFDIST_CACHE_DIR=str(shared / "cache"))
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
    return ended.returncode, ended.stdout, ended.stderr


def sizes(shared):  # type: ignore[no-untyped-def]
    return [one["workers"] for one in happened(shared) if one["event"] == "stepping"]


def halts(shared, start, workers):  # type: ignore[no-untyped-def]
    return {told(shared, f"halted {start} {worker}") for worker in range(workers)}


def test_more_and_fewer(script, shared):  # type: ignore[no-untyped-def]
    path = script(FOREVER)
    with job("-n", 2, "--min-workers", 1, "--max-workers", 3, path, shared=shared) as process:
        wait_for_event(shared, "stepping")
        for workers in (3, 1, 2):
            code, out, err = resize(shared, workers)
            assert code == 0, err
            assert "again" in out
        assert resize(shared, 2)[0] == 0, "what is there already"
        (shared / "enough").write_text("x")
        _, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert (process.returncode, sizes(shared)) == (0, [2, 3, 1, 2])
    steps = done(shared)
    assert steps == list(range(len(steps)))
    for start, workers in enumerate((2, 3, 1)):
        assert len(halts(shared, start, workers)) == 1, "they stopped before different steps"
    assert b"after 0 of 0 restarts and 3 changes of the number of workers" in err


def test_requests_that_cannot_be(script, shared):  # type: ignore[no-untyped-def]
    code, _, err = resize(shared, 2, "abc")
    assert (code, "None runs" in err) == (2, True)
    path = script(FOREVER)
    with job("-n", 2, "--max-workers", 3, path, shared=shared) as process:
        wait_for_event(shared, "stepping")
        process.send_signal(signal.SIGUSR2)  # one fewer is too few; what is asked next is answered after that
        code, _, err = resize(shared, 4)
        assert code == 1
        assert says(err, "--min-workers 2", "--max-workers 3")
        code, _, err = resize(shared, 3, "no such id")
        assert (code, "'no such id'" in err) == (2, True)
        (shared / "enough").write_text("x")
        _, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert (process.returncode, sizes(shared)) == (0, [2])
    assert b"Nothing is changed" in err


def test_signals(script, shared):  # type: ignore[no-untyped-def]
    path = script(FOREVER)
    with job("-n", 1, "--max-workers", 2, path, shared=shared) as process:
        wait_for_event(shared, "stepping")
        process.send_signal(signal.SIGUSR1)
        wait_for_event(shared, "stepping", workers=2)
        process.send_signal(signal.SIGUSR2)
        wait_for_event(shared, "stepping", workers=1, start=2)
        (shared / "enough").write_text("x")
        process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0


def test_a_worker_is_asked_to_leave(script, shared):  # type: ignore[no-untyped-def]
    path = script(FOREVER)
    with job("-n", 3, "--min-workers", 2, path, shared=shared) as process:
        wait_for_event(shared, "stepping")
        os.kill(int(told(shared, "pid 0 1")), signal.SIGTERM)
        wait_for_event(shared, "stepping", workers=2)
        os.kill(int(told(shared, "pid 1 0")), signal.SIGTERM)
        _, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 128 + signal.SIGTERM
    assert b"1 worker would be left, and --min-workers is 2: the job ends" in err
    assert (len(halts(shared, 0, 3)), len(halts(shared, 1, 2))) == (1, 1)


@pytest.mark.parametrize("arguments", [(), ("--max-restarts", 2, "--min-workers", 1)])
def test_all_workers_are_asked_to_leave_at_once(arguments, script, shared):  # type: ignore[no-untyped-def]
    path = script(FOREVER)
    with job("-n", 2, *arguments, path, shared=shared) as process:
        wait_for_event(shared, "stepping")
        for worker in range(2):
            os.kill(int(told(shared, f"pid 0 {worker}")), signal.SIGTERM)
        process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode in (143, 0) if arguments else process.returncode == 143
    assert len(halts(shared, 0, 2)) == 1


@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_dies_while_others_hold(victim, script, shared):  # type: ignore[no-untyped-def]
    # worker 1 does not come to step 5; worker 0 has been asked to hold before it
    path = script(
        STEPPER
        + """
def before(tick):
    if (START, ME, tick) == (0, 1, 5):
        tell("late")
        reporter.phase(Phase.BETWEEN)
        wait_told("never")
train(60, before=before)
"""
    )
    with job("-n", 2, "--min-workers", 1, "--max-restarts", 1, path, shared=shared) as process:
        told(shared, "late")
        process.send_signal(signal.SIGUSR2)
        os.kill(int(told(shared, f"pid 0 {victim}")), signal.SIGKILL)
        _, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0, err
    assert done(shared) == list(range(60))
    assert sizes(shared)[-1] == 1, "what was asked for still holds"


def test_workers_that_have_saved_and_do_not_end(script, shared):  # type: ignore[no-untyped-def]
    path = script("import atexit\natexit.register(lambda: START or time.sleep(1000))\n" + FOREVER)
    with job("-n", 2, "--max-workers", 3, path, shared=shared) as process:
        wait_for_event(shared, "stepping")
        assert resize(shared, 3)[0] == 0
        (shared / "enough").write_text("x")
        process.communicate(timeout=DEADLINE_SECONDS)
    steps = done(shared)
    assert (process.returncode, steps) == (0, list(range(len(steps))))
    assert len(halts(shared, 0, 2)) == 1


def test_resize_during_a_restart(script, shared):  # type: ignore[no-untyped-def]
    path = script(FOREVER.replace("\ntrain(", "\nif START == 1: tell(f'again {ME}'); wait_told('go')\ntrain("))
    arguments = ("-n", 2, "--max-restarts", 1, "--max-workers", 3, path)
    with job(*arguments, shared=shared, faults=[fault("kill", 1, 6)]) as process:
        told(shared, "again 0")
        process.send_signal(signal.SIGUSR1)
        (shared / "go").write_text("x")
        wait_for_event(shared, "stepping", workers=3, start=2)
        (shared / "enough").write_text("x")
        process.communicate(timeout=DEADLINE_SECONDS)
    steps = done(shared)
    assert (process.returncode, steps) == (0, list(range(len(steps))))
