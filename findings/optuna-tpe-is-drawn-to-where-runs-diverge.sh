#!/usr/bin/env bash
# Finding: Optuna's TPE is drawn to where training diverges, because it forgets trials that return NaN.
#
# Versions: optuna 5.0.0, NumPy 2.3.5, Python 3.11.
# Behaviour: a trial whose objective is NaN has failed, and the sampler learns from completed trials alone. Where runs
# diverge it has seen nothing, and what is unseen looks more promising to it than what is known: once ten trials have
# completed, all others diverge. With infinity in place of NaN the same search avoids the region. Half of the range
# diverges here. Even random search wastes less.
# Output seen: of 60 trials diverge: NaN 50, 50, 50; infinity 17, 17, 16; at random 33, 26, 26
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check optuna==5.0.0 numpy==2.3.5
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import math

import optuna

optuna.logging.set_verbosity(optuna.logging.CRITICAL)


def diverged(sampler, result):
    """Return how many of 60 trials had a rate above 10**-2.5, where the objective has this result."""
    study = optuna.create_study(sampler=sampler)

    def objective(trial):
        exponent = trial.suggest_float("exponent", -5, 0)
        return result if exponent > -2.5 else abs(exponent + 3)

    study.optimize(objective, 60)
    return sum(trial.params["exponent"] > -2.5 for trial in study.trials)


seeds = range(3)
nan = [diverged(optuna.samplers.TPESampler(seed=seed), math.nan) for seed in seeds]
infinity = [diverged(optuna.samplers.TPESampler(seed=seed), math.inf) for seed in seeds]
random = [diverged(optuna.samplers.RandomSampler(seed=seed), math.nan) for seed in seeds]
shown = [", ".join(map(str, counts)) for counts in (nan, infinity, random)]
print("of 60 trials diverge: NaN {}; infinity {}; at random {}".format(*shown))
assert min(nan) > max(random) > max(infinity), "the behaviour has changed"
PROGRAM
