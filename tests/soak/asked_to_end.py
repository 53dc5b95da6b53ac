"""Send SIGTERM at a hundred moments of training, all before its last step: each time it saves and repeats no step.

One process ends with 143, and the next resumes, to the bits of an undisturbed run. With `--job` the signal goes to one
of two workers under `tfdist run --min-workers 1`. Both stop before the same step and save, and the other continues
alone until there are two again. Then the next signal follows. Each example must be trained on once in each epoch.

    python tests/soak/asked_to_end.py --times 100
    python tests/soak/asked_to_end.py --times 100 --job ring
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.integration.forks import forks
from tests.integration.light import python_path
from tfdist.data import write
from tfdist.monitor import fault_plan
from tfdist.testing import FaultPlan

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "tests" / "integration" / "cases" / "resumable.py")
ASKED_TO_END, GRACE_SECONDS = 143, 10.0
BATCH, STEPS, VALIDATION_STEPS = 4, 80, 2  # of an epoch
EPOCHS, OF_A_JOB = 2, 10  # of a process that is ended once; signals that a job gets
EPOCHS_OF_A_JOB = 25


def points(last: int) -> dict[str, Any]:
    """Return the points at which the signal may come, and the steps of each; None: when it is first reached.

    Args:
        last: the last step, counted from the start of the workers, validation too, before which it may come.
    """
    where = dict.fromkeys(("tracing", "validation", "epoch-end", "save-begin", "save-middle", "save-commit"), (None,))
    return {**where, "step": range(1, last + 1)}


def draw(chance: random.Random, last: int, **fault: Any) -> dict[str, Any]:
    """A moment; only worker 0 saves."""
    at = points(last)
    point = chance.choice(list(at))
    worker = {"worker": 0} if point.startswith("save") else {}
    return {"kind": "term", **fault, **worker, "at": point, "step": chance.choice(at[point])}


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TFDIST_", "TF_CONFIG"))}
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": python_path(ROOT)}
    return {**kept, **quiet, **more}


def processes(folder: Path, chance: random.Random, times: int, found: "Found") -> None:
    """One process after the other, each a fork of one that has imported TensorFlow."""
    sizes = {"EXAMPLES": str(BATCH * STEPS), "VALIDATION": str(BATCH * VALIDATION_STEPS), "ASYNCHRONOUS": "1"}
    with forks(folder, environment(**sizes)) as forking:

        def run(name: str, *fault: dict[str, Any]) -> int:
            result, backup = str(folder / f"{name}.json"), str(folder / f"backup {name}")
            return forking.run(SCRIPT, result, backup, "tfdist", "2", TFDIST_FAULTS=json.dumps(fault) if fault else "")

        assert run("undisturbed") == 0, forking.output
        expected = (folder / "undisturbed.json").read_text()
        for number in range(times):
            fault = draw(chance, EPOCHS * STEPS + VALIDATION_STEPS - 1, worker=0)
            begun = time.monotonic()
            code = run(str(number), fault)
            seconds = time.monotonic() - begun
            said = f"ended with {code}" if code != ASKED_TO_END else ""
            if not said and run(str(number)):
                said = "did not resume"
            if not said and (folder / f"{number}.json").read_text() != expected:
                said = "another result"
            found.add(fault, said and f"{said}\n{forking.output[-1500:]}", seconds)


def jobs(folder: Path, chance: random.Random, times: int, found: "Found", strategy: str) -> None:
    """Jobs of two workers; a worker is asked to leave, another one is started, and so on."""
    data = folder / "data"
    examples = BATCH * STEPS
    write({"x": np.arange(examples), "seen": np.ones(examples, "float32")}, data, processes=1)
    for number, first in enumerate(range(0, times, OF_A_JOB)):
        starts = range(0, 2 * min(OF_A_JOB, times - first), 2)  # every other one has two workers
        plan = [draw(chance, STEPS, worker=chance.randrange(2), restart=start) for start in starts]
        place = folder / str(number)
        place.mkdir()
        code, log, events = job(place, plan, data, strategy)
        said = _wrong(place / "result", code, events)
        halts = {
            event["start"]: event for event in events if event["event"] == "halted" and event["purpose"] == "leave"
        }
        again = {event["start"]: event for event in events if event["event"] == "stepping"}
        for fault in plan:
            start = fault["restart"]
            happened = [line for line in log if line.get("fault", {}).get("restart", 0) == start]
            if len(happened) != 1 or start not in halts or halts[start]["workers"] != 1:
                found.add(fault, "not all stopped together", None)
            elif start + 1 not in again or again[start + 1]["lost"]:
                found.add(fault, "did not go on, or repeated steps", None)
            else:
                found.add(fault, said, halts[start]["clock"] - happened[0]["clock"])
        if said:
            print((place / "output").read_text(errors="replace")[-3000:], flush=True)


def job(
    folder: Path, plan: list[dict[str, Any]], data: Path, strategy: str
) -> tuple[int, list[dict[str, Any]], list[dict[str, Any]]]:
    """Run one to its end; return its exit code, the faults that happened, and the events."""
    log, events, seen = folder / "faults", folder / "events", 0

    def read(path: Path) -> list[dict[str, Any]]:
        return fault_plan.lines(path.read_text()) if path.exists() else []

    options = ["--strategy", strategy, "-n", "2", "--min-workers", "1", "--max-workers", "2"]
    train = [__file__, "--train", str(folder / "result"), str(folder / "backup"), str(data)]
    deadline = time.monotonic() + 600
    with (folder / "output").open("wb") as output:
        agent = subprocess.Popen(
            [sys.executable, "-m", "tfdist", "run", *options, "--event-file", str(events), *train],
            env=environment(**FaultPlan.of(json.dumps(plan)).to_environment(), TFDIST_FAULTS_LOG=str(log)),
            stdout=output,
            stderr=output,
        )
        try:
            while agent.poll() is None and time.monotonic() < deadline:
                alone = [one for one in read(events) if one["event"] == "stepping" and one["workers"] == 1]
                if seen < len(alone) < len(plan):
                    seen = len(alone)
                    agent.send_signal(signal.SIGUSR1)  # one more
                time.sleep(0.02)
        finally:
            agent.terminate()
            agent.wait(60)
    return agent.returncode, read(log), read(events)


def _wrong(result: Path, code: int, events: list[dict[str, Any]]) -> str:
    """Return what is wrong with a job as a whole; empty if nothing is."""
    if code:
        return f"ended with {code}"
    failed = [event["text"] for event in events if event["event"] == "failed"]
    content = json.loads(result.read_text())
    counts = {round(count, 3) for count in content["counts"]}
    if failed or counts != {EPOCHS_OF_A_JOB} or content["steps"] != EPOCHS_OF_A_JOB * STEPS:
        return f"examples were seen {sorted(counts)} times, steps: {content['steps']}, failures: {failed}"
    return ""


def train(result: str, backup: str, data: str) -> None:
    """Train a model whose weights say how often each example was seen, whatever replica it was on."""
    import keras

    import tfdist

    strategy = tfdist.strategies.from_environment()
    x, seen = np.arange(BATCH * VALIDATION_STEPS), np.ones(BATCH * VALIDATION_STEPS, "float32")
    with strategy.scope():
        model = keras.Sequential([keras.Input((), dtype="int64"), keras.layers.Embedding(BATCH * STEPS, 1, "zeros")])
        model.compile(keras.optimizers.SGD(float(BATCH)), lambda seen, weight: -keras.ops.mean(weight, axis=-1))
    model.fit(
        tfdist.data.read(data, global_batch_size=BATCH, seed=3, label="seen"),
        epochs=EPOCHS_OF_A_JOB,
        verbose=0,
        validation_data=(x, seen),
        validation_batch_size=BATCH,
        callbacks=[tfdist.callbacks.BackupAndRestore(backup, save_freq=2)],
    )
    if tfdist.cluster.from_environment().is_chief:
        counts = model.get_weights()[0][:, 0].tolist()
        Path(result).write_text(json.dumps({"counts": counts, "steps": int(model.optimizer.iterations.numpy())}))


class Found:
    """The effects of all signals: counts by point, seconds, and failures."""

    def __init__(self) -> None:
        self.points, self.seconds, self.wrong = Counter[str](), list[float](), 0

    def add(self, fault: dict[str, Any], said: str, seconds: float | None) -> None:
        self.points[fault["at"]] += 1
        if said:
            self.wrong += 1
            print(fault, said, sep="\n", flush=True)
        elif seconds is not None:
            self.seconds.append(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=100, help="how often; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the moments; default: %(default)s")
    parser.add_argument(
        "--job", metavar="STRATEGY", help="two workers under tfdist run, of which one is asked to leave"
    )
    parser.add_argument("--train", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(*options.train)
        return
    chance, found = random.Random(options.seed), Found()
    with tempfile.TemporaryDirectory() as folder:
        if options.job:
            jobs(Path(folder), chance, options.times, found, options.job)
        else:
            processes(Path(folder), chance, options.times, found)
    print(f"{options.times} times SIGTERM, at {dict(found.points)}; load {os.getloadavg()[0]:.1f}")
    print(f"saved, and went on to the same result: {len(found.seconds)}; something else: {found.wrong}")
    late = sum(seconds > GRACE_SECONDS for seconds in found.seconds) if options.job else 0
    what = (
        "from the signal until all had saved and ended" if options.job else "a process that was ended, from its start"
    )
    if found.seconds:
        middle, most = statistics.median(found.seconds), max(found.seconds)
        print(f"{what}: {middle:.2f} s, {most:.2f} s at most; {late} above {GRACE_SECONDS:g} s")
    sys.exit(1 if found.wrong or late else 0)


if __name__ == "__main__":
    main()
