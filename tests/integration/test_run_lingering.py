"""Wherever a script has code of its own, the agent does not take it for a step that does not go on.

What the page says there decides it, by a pure function, so that nobody has to wait: `tests/soak/linger.py` does.
"""

import json
from pathlib import Path

import pytest

from tests.integration.forks import Forks
from tfdist.launch.supervision.hangs import INPUT_SECONDS, Patience, allowed_seconds
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
        assert set(one["within"]) == OF_A_STEP[kind], "a step that is under way is known to be"
