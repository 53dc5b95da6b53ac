"""The rate of verdicts that name the right worker and cause, when one worker is late by a part of a step.

For each strategy one job measures the step, and another has an epoch for each injection: nowhere, or in the input, the
forward pass, the backward pass or the update of worker 0 or 1, by each share of a step. An input is late if it takes
longer than the step during which it is read, so its share is added to a step. The program prints every verdict, and the
totals.

    python tests/soak/verdicts.py
    python tests/soak/verdicts.py --asleep          # passes sleep, for a machine with other work
    python tests/soak/verdicts.py --strategies ring --shares 0.25 --steps 200 --width 2048
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tfdist.monitor.verdict.job_bound import Bound, judge, read_folder
from tfdist.monitor.verdict.step_parts import Part, Timeline, timeline

ROOT = Path(__file__).parents[2]
CASE = ROOT / "tests" / "integration" / "cases" / "monitored.py"
WHERE = ("input", "forward", "backward", "update")
DEADLINE_SECONDS = 1800


def recorded(strategy: str, plan: list[list[object]], steps: int, width: int) -> list[Timeline]:
    """Run a job with this plan; return the steps of each epoch but the first, in which functions are traced."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tfdist", "run", "--monitor", "-n", "2", "--strategy", strategy, str(CASE)]
        plan = [["nowhere", 0, 0.0], *plan]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "WIDTH": str(width)}
        command += [folder, str(steps), json.dumps(plan)]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=DEADLINE_SECONDS)
        found = timeline(read_folder(Path(folder)))
    epochs = (found.steps - found.steps.min()) // steps if len(found.steps) else found.steps
    last = int(epochs.max()) if len(epochs) else 0
    # counted from the end: of the first epoch steps are missing, which were traced
    return [found.only(epochs == last - back) for back in reversed(range(len(plan) - 1))]


def main() -> None:
    """Run all injections under each strategy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", nargs="+", default=["multi-worker", "ring"])
    parser.add_argument("--shares", nargs="+", type=float, default=[0.25, 0.5])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--asleep", action="store_true", help="passes sleep instead of computing")
    options = parser.parse_args()
    if options.asleep:
        os.environ["PASSES"] = json.dumps({"forward": 0.06, "backward": 0.1, "update": 0.02})
    for strategy in options.strategies:
        (plain,) = recorded(strategy, [["nowhere", 0, 0.0]], options.steps, options.width)
        step = float(np.median(plain.step))
        print(f"{strategy}: a step takes {1e3 * step:.1f} ms", flush=True)
        cases = [("nowhere", 0, 0.0), *itertools.product(WHERE, (0, 1), options.shares), ("nowhere", 0, 0.0)]
        plan = [[where, worker, step * (share + (where == "input"))] for where, worker, share in cases]
        right = 0
        for (where, worker, share), epoch in zip(
            cases, recorded(strategy, plan, options.steps, options.width), strict=True
        ):
            verdict = judge(epoch)
            if where == "nowhere":
                is_right = verdict.rank is None
            else:
                named = verdict.bound, verdict.rank, verdict.part
                is_right = named == (Bound.STRAGGLER, worker, Part[where.upper()])
            right += is_right
            part = "-" if verdict.part is None else verdict.part.label
            told = f"{verdict.bound.name.lower()} {verdict.rank} {part}"
            print(f"  {where:9}{worker}  {share:4.0%}  {'right' if is_right else 'WRONG'}  {told}  "
                  f"{1e3 * verdict.step_seconds:.1f} ms, won {verdict.won:.0%}", flush=True)  # fmt: skip
        print(f"{strategy}: {right} of {len(cases)} right", flush=True)


if __name__ == "__main__":
    main()
