#!/usr/bin/env bash
# Finding: Keras logs the validation's value as the training's for a metric whose result() is one of its variables.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, Python 3.11.
# Behaviour: a metric of one's own may return a variable from result(), as the example in Keras' documentation does. The
# logs of an epoch then hold the variable itself until the validation is over. It resets the metric, so History, the
# progress, CSVLogger and callbacks that monitor the training's value all get the validation's. A result() that computes
# anything from the variable is right, and so is training without validation data.
# Output seen: positives among 12 examples of training and 5 of validation, in each of 2 epochs: result() is the
# variable: training [5.0, 5.0], validation [5.0, 5.0]; the variable + 0: training [12.0, 12.0], validation [5.0, 5.0];
# the variable, without validation data: training [12.0, 12.0]
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow==2.21.0 keras==3.15.1
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import keras
import numpy as np


class Positives(keras.metrics.Metric):
    """Counts positive targets."""

    def __init__(self, name, result):
        super().__init__(name=name)
        self.count = self.add_variable(shape=(), initializer="zeros", name="count")
        self.of = result

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.count.assign_add(keras.ops.sum(keras.ops.cast(y_true > 0, "float32")))

    def result(self):
        return self.of(self.count)


def logged(**validation):
    """Return the history of a training with both metrics."""
    model = keras.Sequential([keras.layers.Dense(1)])
    metrics = [Positives("variable", lambda count: count), Positives("computed", lambda count: count + 0)]
    model.compile("sgd", "mse", metrics=metrics)
    ones = np.ones((12, 1), "float32")
    return model.fit(ones, ones, batch_size=4, epochs=2, verbose=0, **validation).history


five = np.ones((5, 1), "float32")
found, alone = logged(validation_data=(five, five)), logged()
print("positives among 12 examples of training and 5 of validation, in each of 2 epochs: result() is the variable: ", end="")
print(f"training {found['variable']}, validation {found['val_variable']}; ", end="")
print(f"the variable + 0: training {found['computed']}, validation {found['val_computed']}; ", end="")
print(f"the variable, without validation data: training {alone['variable']}")
assert found["variable"] == [5.0, 5.0], "the behaviour has changed"
assert found["computed"] == alone["variable"] == alone["computed"] == [12.0, 12.0], "the behaviour has changed"
assert found["val_variable"] == found["val_computed"] == [5.0, 5.0], "the behaviour has changed"
PROGRAM
