"""SIGTERM at a hundred moments of a training, all before its last step: each time it saves, and no step is repeated.

One process ends with 143, and the next goes on to the bits of an undisturbed run. With `--job` the signal goes to one
of two workers under `tfdist run --min-workers 1`: both stop before the same step and save, and the other goes on alone,
to the numbers of an undisturbed run of two.

    python tests/soak/asked_to_end.py --times 100
    python tests/soak/asked_to_end.py --times 100 --job ring
"""

import argparse
import contextlib
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.integration.forks import forks
from tests.integration.light import python_path
from tfdist.launch import faults
from tfdist.testing import chaos

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "tests" / "integration" / "cases" / "resumable.py")
ASKED_TO_END, GRACE_SECONDS = 143, 10.0
BATCH, EPOCHS, STEPS, VALIDATION_STEPS = 4, 2, 80, 2  # STEPS, of both kinds: of one epoch
TOLERANCE = 5e-3  # of sums in another order from the first step on, which Adam makes larger

Run = Callable[[str, dict[str, Any] | None], tuple[str, float | None]]


class Training:
    """How long it is, and where the signal may come.

    Args:
        steps: of an epoch.
        latest: the last step, of all, before which the signal may come.
    """

    def __init__(self, steps: int, latest: int) -> None:
        self.points = {
            "tracing": (0,),
            "step": range(1, latest + VALIDATION_STEPS + 1),
            "validation": (steps,),
            "epoch-end": (steps,),
            "save-middle": (None,),
            "save-commit": (None,),
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TFDIST_", "TF_CONFIG"))}
        sizes = {"EXAMPLES": str(BATCH * steps), "VALIDATION": str(BATCH * VALIDATION_STEPS), "ASYNCHRONOUS": "1"}
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": python_path(ROOT)}
        self.environment = {**kept, **sizes, **quiet}

    def draw(self, chance: random.Random, workers: int) -> dict[str, Any]:
        """A moment, and to whom; worker 0 is the one that saves."""
        point = chance.choice(list(self.points))
        worker = 0 if point.startswith("save") else chance.randrange(workers)
        return {"kind": "term", "worker": worker, "at": point, "step": chance.choice(self.points[point])}


def arguments(folder: Path, name: str) -> list[str]:
    return [SCRIPT, str(folder / f"{name}.json"), str(folder / f"backup {name}"), "tfdist", "2"]


def alone(folder: Path, training: Training, stack: contextlib.ExitStack) -> Run:
    """One process, and another one that goes on; each is a fork of one that has imported TensorFlow."""
    forking = stack.enter_context(forks(folder, training.environment))

    def run(name: str, fault: dict[str, Any] | None) -> tuple[str, float | None]:
        plan = json.dumps([fault]) if fault else ""
        begun = time.monotonic()
        code = forking.run(*arguments(folder, name), TFDIST_FAULTS=plan)
        seconds = time.monotonic() - begun
        if fault is None:
            return ("" if code == 0 else f"exit code {code}\n{forking.output[-2000:]}"), None
        if code != ASKED_TO_END:
            return f"exit code {code}\n{forking.output[-2000:]}", None
        return run(name, None)[0], seconds

    return run


def job(folder: Path, training: Training, strategy: str) -> Run:
    """Two workers, of which one is asked to leave."""
    log, events, output = folder / "faults", folder / "events", folder / "output"
    options = ["--strategy", strategy, "-n", "2", "--min-workers", "1", "--event-file", str(events)]

    def run(name: str, fault: dict[str, Any] | None) -> tuple[str, float | None]:
        for path in (log, events):
            path.unlink(missing_ok=True)
        plan = {"TFDIST_FAULTS": json.dumps([fault]), faults.LOG: str(log)} if fault else {}
        with output.open("wb") as file:
            code = subprocess.run(
                [sys.executable, "-m", "tfdist", "run", *options, *arguments(folder, name)],
                env={**training.environment, **plan, "ANY_WORKERS": "1", "TF_NUM_INTRAOP_THREADS": "1"},
                stdout=file,
                stderr=file,
                timeout=300,
                check=False,
            ).returncode
        if code:
            return f"exit code {code}\n{output.read_text(errors='replace')[-2000:]}", None
        if fault is None:
            return "", None
        happened, found = chaos.lines(log.read_text()) if log.exists() else [], chaos.lines(events.read_text())
        halts = [event for event in found if event["event"] == "halted"]
        steps = [event for event in found if event["event"] == "stepping"]
        if len(happened) != 1 or len(halts) != 1 or [event["workers"] for event in steps] != [2, 1]:
            return f"not stopped together once\n{json.dumps(found, indent=1)}", None
        if any(event["event"] == "failed" for event in found) or steps[1]["lost"]:
            return f"a failure, or a step that was repeated\n{json.dumps(found, indent=1)}", None
        return "", halts[0]["clock"] - happened[0]["clock"]

    return run


def differ(ours: Any, theirs: Any, *, bits: bool) -> bool:
    """Whether two results differ: at all, or in numbers by more than what the order of sums does."""
    if bits:
        return bool(ours != theirs)
    logs = ours["history"], theirs["history"]
    near = all(
        math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        for name in logs[1]
        for one, other in zip(logs[0][name], logs[1][name], strict=True)
    )
    return not near or any(ours[name] != theirs[name] for name in ("seen", "epochs"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=100, help="how often; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the moments; default: %(default)s")
    parser.add_argument(
        "--job", metavar="STRATEGY", help="two workers under tfdist run, of which one is asked to leave"
    )
    options = parser.parse_args()
    chance = random.Random(options.seed)
    # A process ends before its next step; workers of a job do a few more until the agent has seen it.
    training = Training(steps=STEPS, latest=EPOCHS * STEPS - (STEPS if options.job else 1))
    points, seconds, bad = Counter[str](), list[float](), 0
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch)
        run = job(folder, training, options.job) if options.job else alone(folder, training, stack)
        said, _ = run("undisturbed", None)
        assert not said, said
        expected = json.loads((folder / "undisturbed.json").read_text())
        for number in range(options.times):
            fault = training.draw(chance, 2 if options.job else 1)
            points[fault["at"]] += 1
            said, took = run(str(number), fault)
            if not said and differ(json.loads((folder / f"{number}.json").read_text()), expected, bits=not options.job):
                said = "another result"
            if said:
                bad += 1
                print(number, fault, said, sep="\n", flush=True)
            elif took is not None:
                seconds.append(took)
    late = sum(one > GRACE_SECONDS for one in seconds) if options.job else 0
    print(f"{options.times} times SIGTERM, at {dict(points)}; load {os.getloadavg()[0]:.1f}")
    print(f"saved, and went on to the same result: {options.times - bad}; something else: {bad}")
    what = (
        "from the signal until all had saved and ended" if options.job else "a process that was ended, from its start"
    )
    if seconds:
        middle, most = statistics.median(seconds), max(seconds)
        print(f"{what}: {middle:.2f} s, {most:.2f} s at most; {late} above {GRACE_SECONDS:g} s")
    sys.exit(1 if bad or late else 0)


if __name__ == "__main__":
    main()
