#!/usr/bin/env bash
# Finding: Ray Tune's ASHA never stops a trial whose metric is NaN, and stops none if each is better than those before.
#
# Versions: ray 2.60.0, Python 3.11.
# Behaviour: at a rung the scheduler stops a trial whose score is below the cutoff of those that were there before. NaN is
# not below it, so a trial that diverged runs to the end, with mode max and min, while sound ones are stopped. Trials that
# come in rising order all run to the end as well; the number of trials times the shortest run is no bound of the cost.
# Output seen: NaN: 9 steps, beside 9, 1, 1, 1; rising: 9, 9, 9, 9, 9, 9, 9, 9, 9; falling: 9, 1, 1, 1, 1, 1, 1, 1, 1
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'ray[tune]==2.60.0'
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import math
import warnings
from types import SimpleNamespace

from ray.tune.schedulers import ASHAScheduler

warnings.simplefilter("ignore")


def steps(scores):
    """Return how many steps each trial takes of at most nine, one trial after the other, each with one score."""
    scheduler = ASHAScheduler(time_attr="t", metric="score", mode="max", max_t=9, grace_period=1, reduction_factor=3)
    taken = []
    for number, score in enumerate(scores):
        trial = SimpleNamespace(trial_id=str(number), is_saving=False)
        scheduler.on_trial_add(None, trial)
        for step in range(1, 10):
            if scheduler.on_trial_result(None, trial, {"t": step, "score": score}) == ASHAScheduler.STOP:
                break
        taken.append(step)
    return taken


first, diverged, *others = steps([9.0, math.nan, 8.0, 7.0, 6.0])
rising, falling = steps(range(1, 10)), steps(range(9, 0, -1))
print(f"NaN: {diverged} steps, beside {', '.join(map(str, [first, *others]))}; ", end="")
print(f"rising: {', '.join(map(str, rising))}; falling: {', '.join(map(str, falling))}")
assert (diverged, others) == (9, [1, 1, 1]) and rising == [9] * 9 and falling == [9] + [1] * 8
PROGRAM
