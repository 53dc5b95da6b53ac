#!/usr/bin/env bash
# Finding: one trial that is pruned before it has drawn all its values ends Optuna's joint sampling of them.
#
# Versions: Optuna 5.0.0, NumPy 2.3.5, Python 3.11.
# Behaviour: since Optuna 5, TPE draws the values of a trial together by default, so it learns that two of them belong
# together. It does so for the values that all finished trials have, and pruned trials count as finished. An objective
# that draws the batch size, sees that it does not fit into memory, and raises TrialPruned, has no other values. After
# the first such trial the others are drawn one by one for the rest of the study, and nothing is said. Trials that fail
# do not count. Draw all values first, or let the trial fail: `study.optimize(..., catch=...)`.
# Output seen: of 100 trials none ended early; drawn together: batch, x, y
# trial 3 was pruned early; drawn together: batch
# trial 3 failed early; drawn together: batch, x, y
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check optuna==5.0.0 numpy==2.3.5
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import optuna

TRIALS = 100
optuna.logging.set_verbosity(optuna.logging.CRITICAL)


class TooLarge(Exception):
    """Stands for an error of memory."""


def drawn_together(early):
    """Return the names of the values that are drawn together after a study in which one trial has ended early."""

    def objective(trial):
        batch = trial.suggest_int("batch", 1, 8)
        if early and trial.number == 3:
            raise early
        x, y = trial.suggest_float("x", -10, 10), trial.suggest_float("y", -10, 10)
        return (x - y) ** 2 + batch

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=TRIALS, catch=TooLarge)
    return sorted(study.sampler.infer_relative_search_space(study, study.trials[-1]))


names = (f"of {TRIALS} trials none ended early", "trial 3 was pruned early", "trial 3 failed early")
found = dict(zip(names, map(drawn_together, (None, optuna.TrialPruned, TooLarge))))
for name, together in found.items():
    print(f"{name}; drawn together: {', '.join(together)}")
assert list(found.values()) == [["batch", "x", "y"], ["batch"], ["batch", "x", "y"]], "the behaviour has changed"
PROGRAM
