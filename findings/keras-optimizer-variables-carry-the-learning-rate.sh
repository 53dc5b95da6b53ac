#!/usr/bin/env bash
# Finding: a Keras optimizer that takes over another's variables takes over its learning rate as well.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, Python 3.11.
# Behaviour: `optimizer.variables` has the step count first and the learning rate second, before the slots. Code that
# copies all variables (to clone a trial of population-based training, to restore a backup into a new compile) sets the
# old rate without a word, so a perturbed or a newly chosen rate is lost. With a schedule the second variable is the
# first slot instead, so an index into the list does not mean the same in both.
# Output seen: compiled with 0.1, restored: 0.01; variables: iteration, learning_rate; with a schedule: iteration, m_momentum
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow==2.21.0 keras==3.15.1
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" - <<'PROGRAM'
import keras


def built(rate):
    """Return an optimizer that has its slots."""
    optimizer = keras.optimizers.SGD(rate, momentum=0.9)
    optimizer.build([keras.Variable([0.0], name="m")])
    return optimizer


donor, clone = built(0.01), built(0.1)
for variable, value in zip(clone.variables, donor.variables, strict=True):
    variable.assign(value)
scheduled = built(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5))
rate, names = round(float(clone.learning_rate), 4), [one.name for one in clone.variables[:2]]
others = [one.name for one in scheduled.variables[:2]]
print(f"compiled with 0.1, restored: {rate}; variables: {', '.join(names)}; with a schedule: {', '.join(others)}")
assert rate == 0.01 and names == ["iteration", "learning_rate"] and "learning_rate" not in others
PROGRAM
