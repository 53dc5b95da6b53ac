"""`tfdist run --max-restarts`: workers that die or hang at any step are started again, and every step is done once.

No TensorFlow: the workers step together through a socket, and faults happen where a plan says.
"""

import contextlib
import os
import re
import signal
from pathlib import Path

import psutil
import pytest

from tests.integration.agents import DEADLINE_SECONDS, agent, alive, environment, finished, says, told, wait_until
from tests.integration.steppers import STEPPER, done, fault, happened, job, options, wait_for_event

pytestmark = pytest.mark.quick
STEPS = 40
HANG = ("--hang-seconds", 2)  # a busy machine may hold a step up for a large part of a second


def kinds(shared):  # type: ignore[no-untyped-def]
    return [one["event"] for one in happened(shared)]


def ended(process):  # type: ignore[no-untyped-def]
    out, err = process.communicate(timeout=DEADLINE_SECONDS)
    return process.returncode, (out or b"").decode(), err.decode()


@pytest.mark.parametrize("worker", [0, 1])
@pytest.mark.parametrize("kind", ["kill", "exit", "exception"])
def test_a_worker_that_fails(kind, worker, script, shared):  # type: ignore[no-untyped-def]
    path = script(STEPPER + f"train({STEPS})")
    with job("-n", 2, "--max-restarts", 1, path, shared=shared, faults=[fault(kind, worker, 7)]) as process:
        code, _, err = ended(process)
    assert (code, done(shared, 0), done(shared, 1)) == (0, list(range(STEPS)), list(range(STEPS)))
    failed, again = happened(shared)[2], happened(shared)[4]
    assert (failed["event"], failed["tick"], failed["restarts_left"]) == ("failed", 7, 0)
    if kind != "exit":  # which says nothing, and the other one may be heard before its end is seen
        assert (failed["worker"], failed["cause"]) == (worker, {"kill": "signal"}.get(kind, kind))
        assert f"worker {worker} failed" in err
    assert (again["event"], again["start"], again["resumed"]) == ("stepping", 1, 7)
    assert again["seconds"] > 0
    assert (again["source"], again["lost"], again["workers"]) == ("memory", 0, 2)
    assert says(err, "2 workers step again", " s ", "step 7 (memory)", "0 steps")
    assert says(err.splitlines()[-1], "code 0", "1 of 1 restarts", "0 steps repeated")


def test_a_kill_at_every_step(script, shared):  # type: ignore[no-untyped-def]
    plan = [fault("kill", start % 2, 1 if start else 0, start) for start in range(12)]
    path = script(STEPPER + "train(12)")
    with job("-n", 2, "--max-restarts", 12, path, shared=shared, faults=plan) as process:
        code, _, err = ended(process)
    assert (code, done(shared)) == (0, list(range(12))), err
    assert kinds(shared).count("failed") == 12


def test_two_workers_at_once(script, shared):  # type: ignore[no-untyped-def]
    plan = [fault("kill", 0, 5), fault("kill", 1, 5), fault("kill", 2, 5)]
    path = script(STEPPER + f"train({STEPS})")
    with job("-n", 3, "--max-restarts", 1, path, shared=shared, faults=plan) as process:
        code, _, _ = ended(process)
    assert (code, done(shared), kinds(shared).count("failed")) == (0, list(range(STEPS)), 1)


@pytest.mark.parametrize(("kind", "culprit"), [("stop", 1), ("hang", None)])
def test_workers_that_hang(kind, culprit, script, shared):  # type: ignore[no-untyped-def]
    path = script(STEPPER + f"train({STEPS})")
    arguments = ("-n", 2, "--max-restarts", 1, *HANG, path)
    with job(*arguments, shared=shared, faults=[fault(kind, 1, 9)]) as process:
        code, _, err = ended(process)
    (failed,) = (one for one in happened(shared) if one["event"] == "failed")
    assert (failed["cause"], failed["worker"]) == ("hang", culprit)
    stacks = {
        one["task"]: one for event in happened(shared) if event["event"] == "stacks" for one in event["processes"]
    }
    assert sorted(stacks) == ([] if kind == "stop" else ["worker 0", "worker 1"])
    if stacks:  # one waits for the other, which is where the fault holds it
        assert stacks["worker 0"]["threads"][0]["frames"][0].startswith("meet (")
        assert "faults.py" in stacks["worker 1"]["threads"][0]["frames"][0]
        assert "meet (" in err
    assert (code, done(shared)) == (0, list(range(STEPS)))
    assert ("worker 1 hangs" if kind == "stop" else "worker 0 and worker 1 hang") in err


def test_a_worker_that_hangs_before_its_step_is_named(script, shared):  # type: ignore[no-untyped-def]
    path = script(
        STEPPER + f"train({STEPS}, before=lambda tick: time.sleep(1000) if (ME, tick, START) == (0, 9, 0) else 0)"
    )
    arguments = ("-n", 2, "--max-restarts", 1, *HANG, "--stall-seconds", 4, path)
    with job(*arguments, shared=shared) as process:
        code, _, err = ended(process)
    assert (code, [one["worker"] for one in happened(shared) if one["event"] == "failed"]) == (0, [0])
    assert says(err, "worker 0 hangs", "script's own code", " 9 steps")
    seconds = re.search(r" for ([\d.]+) s", err)
    assert seconds is not None
    assert float(seconds[1]) >= 4, "that bound, and not the one of a step"


def test_a_worker_that_hangs_last_ends_the_job(script, shared):  # type: ignore[no-untyped-def]
    plan = [fault("stop", 1, 9), fault("stop", 1, 4, 1)]
    path = script(STEPPER + f"train({STEPS})")
    arguments = ("-n", 2, "--max-restarts", 1, *HANG, path)
    with job(*arguments, shared=shared, faults=plan) as process:
        code, _, err = ended(process)
    assert code == 1
    assert "1 of 1 times (--max-restarts)" in err


def test_a_process_that_is_stopped_before_it_steps(script, shared):  # type: ignore[no-untyped-def]
    path = script(STEPPER + "if (START, ME) == (0, 1): os.kill(os.getpid(), signal.SIGSTOP)\ntrain(5)")
    with job("-n", 2, "--max-restarts", 1, *HANG, path, shared=shared) as process:
        code, _, err = ended(process)
    assert code == 0
    assert says(err, "worker 1 hangs", "SIGSTOP")


def test_the_same_failure_at_the_same_step_ends_the_job(script, shared):  # type: ignore[no-untyped-def]
    plan = [{"kind": "exception", "worker": 0, "at": "step", "restart": None, "step": 0}]
    path = script(STEPPER + "train(5)")
    with job("-n", 2, "--max-restarts", 50, path, shared=shared, faults=plan) as process:
        code, _, err = ended(process)
    assert (code, kinds(shared).count("failed")) == (1, 3)
    assert "3 times in a row" in err
    assert "worker 0 of 2 failed first" in err
    assert "RuntimeError" in err.splitlines()[-2] + err.splitlines()[-1]


def test_the_budget_is_used_up(script, shared):  # type: ignore[no-untyped-def]
    plan = [fault("kill", 1, 2 + start, start) for start in range(9)]
    path = script(STEPPER + f"train({STEPS})")
    with job("-n", 2, "--max-restarts", 2, "--grace-seconds", 0.3, path, shared=shared, faults=plan) as process:
        code, _, err = ended(process)
    assert (code, kinds(shared).count("started")) == (128 + signal.SIGKILL, 3)
    assert "2 of 2 times (--max-restarts)" in err
    assert "worker 1 of 2 failed first" in err


def test_without_restarts_nothing_is_started_again(script, shared):  # type: ignore[no-untyped-def]
    path = script(STEPPER + f"train({STEPS})")
    with job("-n", 2, path, shared=shared, faults=[fault("kill", 1, 7)]) as process:
        code, _, err = ended(process)
    assert (code, kinds(shared)) == (137, ["started", "stepping", "failed", "ended"])
    assert "worker 1 of 2 failed first" in err
    assert "again" not in err


def test_a_script_that_says_nothing_is_started_again(script, shared):  # type: ignore[no-untyped-def]
    path = script("""
        start = int(os.environ["TFDIST_RESTARTS"])
        if start < 4 and ME == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        print("start", start)
    """)
    code, out, _ = finished("-n", 2, "--max-restarts", 9, path, **options(shared))
    assert code == 0
    assert {"[worker 0] start 4", "[worker 1] start 4"} <= set(out.splitlines())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("restarts", [0, 3])
def test_a_signal_lets_all_save_before_the_same_step(number, restarts, script, shared):  # type: ignore[no-untyped-def]
    path = script(STEPPER + "train(10**9)")
    with job("-n", 2, "--max-restarts", restarts, path, shared=shared) as process:
        wait_for_event(shared, "stepping")
        process.send_signal(number)
        code, _, err = ended(process)
    assert code == 128 + number
    assert told(shared, "halted 0 0") == told(shared, "halted 0 1")
    assert "stop after this step" in err
    assert "failed first" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("steps", [True, False])
def test_a_signal_to_every_process_at_once(number, steps, script, shared):  # type: ignore[no-untyped-def]
    path = script(STEPPER + ("train(10**9)" if steps else "tell(f'up {ME}'); signal.pause()"))
    with job("-n", 2, "--max-restarts", 3, path, shared=shared) as process:
        if steps:
            wait_for_event(shared, "stepping")
        for worker in () if steps else range(2):
            told(shared, f"up {worker}")
        others = [one.pid for one in psutil.Process(process.pid).children(recursive=True)]
        process.send_signal(signal.SIGSTOP)  # on a busy machine, the loop may take longer than the agent waits
        for pid in (*others, process.pid):  # the agent is last, after its workers and the guardian
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        process.send_signal(signal.SIGCONT)
        code, _, err = ended(process)
    assert code == 128 + number
    assert "failed" not in err
    if steps and number == signal.SIGTERM:
        assert told(shared, "halted 0 0") == told(shared, "halted 0 1")


def test_a_guardian_that_was_killed_is_no_failure(script, shared):  # type: ignore[no-untyped-def]
    path = script("tell(f'up {ME}'); wait_told('enough')")
    with agent("-n", 2, path, shared=shared) as process:
        told(shared, "up 0")
        (guardian,) = (c for c in psutil.Process(process.pid).children() if "guardian.py" in " ".join(c.cmdline()))
        guardian.kill()
        (shared / "enough").write_text("x")
        assert ended(process)[0] == 0


def test_a_signal_when_a_worker_never_comes_to_a_step(script, shared):  # type: ignore[no-untyped-def]
    path = script(
        STEPPER
        + """
def before(tick):
    if (ME, tick) == (1, 9):
        tell("late")
        time.sleep(1000)
train(10**9, before=before)
"""
    )
    arguments = ("-n", 2, "--max-restarts", 1, "--hang-seconds", 1000, "--grace-seconds", 0.5, path)
    with job(*arguments, shared=shared) as process:
        told(shared, "late")
        wait_for_event(shared, "stepping")
        process.send_signal(signal.SIGTERM)
        code, _, err = ended(process)
    assert code == 143
    assert "killing 2 workers" in err


def test_a_signal_during_a_restart(script, shared):  # type: ignore[no-untyped-def]
    path = script(STEPPER + "if START: tell(f'again {ME}'); wait_told('never')\ntrain(10**9)")
    with job("-n", 2, "--max-restarts", 3, path, shared=shared, faults=[fault("kill", 0, 3)]) as process:
        for worker in range(2):
            told(shared, f"again {worker}")
        process.send_signal(signal.SIGTERM)
        code, _, _ = ended(process)
    assert code == 143


def test_a_killed_agent_leaves_nothing(script, shared):  # type: ignore[no-untyped-def]
    path = script(STEPPER + "tell(f'memory {ME}', os.environ['TFDIST_MEMORY_DIR'])\ntrain(10**9)")
    arguments = ("-n", 2, "--max-restarts", 3, "--max-workers", 3, path)
    with job(*arguments, shared=shared, faults=[fault("kill", 0, 3)]) as process:
        wait_for_event(shared, "stepping", start=1)
        pids = [int(told(shared, f"pid 1 {worker}")) for worker in range(2)]
        process.kill()
        process.wait(timeout=DEADLINE_SECONDS)
        wait_until(lambda: not any(map(alive, pids)), "processes are left")
        memory = os.path.dirname(told(shared, "memory 0"))
        wait_until(lambda: not os.path.exists(memory), "memory is left")
        wait_until(lambda: not list((shared / "cache").glob("jobs/*")), "a socket is left")


GENERATES = """
import importlib.util, tempfile
with tempfile.NamedTemporaryFile(prefix="__autograph_generated_file", suffix=".py", delete=False) as file:
    file.write(b"x = 1")
spec = importlib.util.spec_from_file_location("generated", file.name)
spec.loader.exec_module(importlib.util.module_from_spec(spec))
assert pathlib.Path(importlib.util.cache_from_source(file.name)).exists()
"""


def test_files_that_autograph_has_made_go_with_a_worker_that_is_killed(script, shared):  # type: ignore[no-untyped-def]
    path = script(STEPPER + GENERATES + f"tell(f'made {{START}} {{ME}}', file.name)\ntrain({STEPS})")
    with job("-n", 2, "--max-restarts", 1, path, shared=shared, faults=[fault("kill", 0, 3)]) as process:
        code, _, err = ended(process)
        assert code == 0, err
        made = [told(shared, f"made {start} {worker}") for start in range(2) for worker in range(2)]
        assert len({os.path.dirname(one) for one in made} | {str(shared.parent / "tmp")}) == 1
        assert not any(map(os.path.exists, made))  # nor the folder of what was compiled of them: `job` sees to it


def test_what_is_left_when_all_are_killed_at_once_goes_at_the_next_start(script, shared):  # type: ignore[no-untyped-def]
    path = script(STEPPER + GENERATES + "tell(f'made {ME}', file.name)\ntrain(10**9)")
    folders = [shared.parent / "tmp", Path("/dev/shm")]
    with job("-n", 2, "--max-restarts", 1, path, shared=shared) as process:
        wait_for_event(shared, "stepping")
        everybody = [*psutil.Process(process.pid).children(recursive=True), process]
        for one in everybody:
            one.send_signal(signal.SIGSTOP)
        for one in everybody:
            one.send_signal(signal.SIGKILL)
        process.wait(timeout=DEADLINE_SECONDS)
        wait_until(lambda: not any(alive(one.pid) for one in everybody), "processes are left")
        ours = f"tfdist-job-{happened(shared)[0]['job']}*"
        assert [len(list(folder.glob(ours))) for folder in folders] == [1, 1]
        assert finished("-n", 1, script("print('next')"), shared=shared, env=environment(shared))[0] == 0
        assert [len(list(folder.glob(ours))) for folder in folders] == [0, 0]
        assert not any(os.path.exists(told(shared, f"made {worker}")) for worker in range(2))


def test_a_closed_output_lets_all_save(script, shared):  # type: ignore[no-untyped-def]
    path = script(STEPPER + "train(10**9, inside=lambda tick: print('x' * 1000))")
    with job("-n", 2, "--max-restarts", 3, path, shared=shared) as process:
        wait_for_event(shared, "stepping")
        process.stdout.close()
        process.stdout = None
        code, _, _ = ended(process)
    assert code == 128 + signal.SIGPIPE
    assert told(shared, "halted 0 0") == told(shared, "halted 0 1")
