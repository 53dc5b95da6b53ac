"""Code of the script's own is not taken for a step that hangs; a process that stays after its script is ended.

Of the first, what the page says there decides, by a pure function, so that nobody has to wait: `tests/soak/linger.py`
does.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.agents import another_host, finished
from tests.integration.forks import Forks
from tfdist.jobs.supervision.hangs import INPUT_SECONDS, Patience, allowed_seconds
from tfdist.monitor.phases import Activity

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests" / "integration" / "cases" / "lingering.py"
WHATS = ("train", "test", "predict")
METHODS = ["on_epoch_begin", "on_epoch_end"]
METHODS += [f"on_{what}_{when}" for what in WHATS for when in ("begin", "end", "batch_begin", "batch_end")]
CALLS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")
FLAGS = {
    "no scope": (),
    "multi-worker": ("--strategy", "multi-worker", "-n", "2"),
    "parameter-server": ("--strategy", "parameter-server", "-n", "1", "--parameter-servers", "1"),
}
OF_A_STEP = {"no scope": {"TRACING", "INPUT"}, "multi-worker": {"TRACING", "STEPPING"}, "parameter-server": set()}


@pytest.mark.parametrize("kind", list(FLAGS))
def test_nobody_is_blamed_for_the_time_of_the_user(kind: str, forking: Forks, tmp_path: Path) -> None:
    command = [
        "tfdist",
        "run",
        "--max-restarts",
        "1",
        "--hang-seconds",
        "60",
        *FLAGS[kind],
        str(SCRIPT),
        str(tmp_path),
        "0",
        "all",
    ]
    assert forking.run(*command) == 0, forking.output[-4000:]
    told = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("places *.json"))]
    assert len(told) == 1 + (kind == "multi-worker")
    for one in told:
        expected = {f"1: {method}" for method in METHODS} | {f"2: after {call}" for call in CALLS}
        expected |= {"3: training traced twice", "after fit was left by an exception"}
        assert expected <= set(one["places"])
        impatient = {
            place: phase
            for place, phase in one["places"].items()
            # a thread of its own makes batches ahead, perhaps beside a step; who waits for one says INPUT
            if place != "a batch is made" and allowed_seconds(Activity[phase], [0.1] * 3, Patience()) < INPUT_SECONDS
        }
        assert impatient == {}
        # where an execution has several steps, the process looks only now and then, so it may still say INPUT
        late = {"INPUT"} if kind == "multi-worker" else set()
        assert set(one["within"]) - late == OF_A_STEP[kind], "a step that is under way is known to be"


# what is left to Python's end: it holds its lock and waits, as a library's thread may
STAYS = """
import ctypes
class Stays:
    def __del__(self, pause=ctypes.PyDLL(None).pause):
        pause()
sys.modules["stays"] = Stays()
"""
# a function that Python calls at the end, and that does not return
UPLOADS = """
import atexit
atexit.register(signal.pause)
"""


@pytest.mark.parametrize(
    ("body", "code", "place", "hosts"),
    [
        (STAYS, 0, "pause", False),
        (STAYS, 3, "pause", False),
        (UPLOADS, 0, "--exit-seconds", False),
        (STAYS, 0, "", True),
    ],
    ids=["a library", "a library, and a code", "a function of atexit", "on another host"],
)
def test_a_process_that_stays_after_its_script_is_told_and_ended(
    body: str, code: int, place: str, hosts: bool, script: Callable[[str], Path], shared: Path
) -> None:
    where = ("--hosts", "one=127.0.0.2:2", "--ssh-command", f"'{another_host(shared)}'") if hosts else ("-n", 2)
    path = script(body + f"tell(f'script {{ME}}')\nsys.exit({code})\n")
    ended, _, said = finished(*where, "--exit-seconds", 0.5, path, shared=shared)
    assert ended == code, said
    assert {path.name for path in shared.glob("script *")} == {"script 0", "script 1"}
    # a failure ends the job, which is before the other worker is told if its script ended later
    told = [f"worker {worker} does not end" in said for worker in range(2)]
    assert any(told) if code else all(told)
    assert f"exit code {code}" in said
    assert place in said


def test_what_a_script_does_at_its_end_may_take_its_time(script: Callable[[str], Path], shared: Path) -> None:
    last = script("""
        import atexit, threading
        def upload():
            wait_told("go on")
            print("uploaded", flush=True)
        atexit.register(upload)
        threading.Thread(target=lambda: (time.sleep(1.5), tell("go on"))).start()
    """)
    ended, written, said = finished(last, shared=shared)
    assert (ended, written) == (0, "uploaded\n"), said
    assert "does not end" not in said
