#!/usr/bin/env bash
# Finding: Hyperband of keras-tuner continues with a trial's weights, but with a new optimizer and schedule.
#
# Versions: keras-tuner 1.4.8, Keras 3.15.1, TensorFlow 2.21.0, Python 3.11.
# Behaviour: a promising trial is trained for more epochs, from the weights of the previous trial, and the count of
# epochs continues. The weights are loaded before the optimizer has variables, so Keras skips the optimizer's variables
# in the file, with a warning about their number. Moments restart at zero, and a schedule at its first step. With a
# cosine over three epochs, the best trial of the first epoch restarts at the full rate and ends at a quarter of it. A
# trial without interruption, as the winner is trained later, ends at zero. So candidates are ranked by a schedule that
# no training uses.
# Output seen: second epoch: iterations begin at 0 instead of 10, the rate at 0.1000 instead of 0.0750;
# after the third the rate is 0.0250, in one go 0.0000
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    tensorflow==2.21.0 keras==3.15.1 keras-tuner==1.4.8
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import keras
import keras_tuner
import numpy as np

STEPS = 10  # per epoch
inputs = np.random.default_rng(0).normal(size=(10 * STEPS, 4)).astype("float32")
targets = inputs.sum(axis=1, keepdims=True)
schedule = keras.optimizers.schedules.CosineDecay(0.1, 3 * STEPS)
runs = []  # of each training: its first epoch, the iterations and the rate at its beginning, and the rate at its end


class Watch(keras.callbacks.Callback):
    """Record where each training begins and ends; trials share it."""

    def __deepcopy__(self, memo):
        return self

    def _state(self):
        optimizer = self.model.optimizer
        return int(optimizer.iterations.numpy()), round(float(optimizer.learning_rate), 4)

    def on_train_begin(self, logs=None):
        self.begin = self._state()
        self.first = None

    def on_epoch_begin(self, epoch, logs=None):
        self.first = epoch if self.first is None else self.first

    def on_train_end(self, logs=None):
        runs.append((self.first, *self.begin, self._state()[1]))


def build(parameters):
    """Return a model with a schedule for three epochs."""
    parameters.Int("unused", 1, 1000)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(schedule), "mse")
    return model


tuner = keras_tuner.Hyperband(build, "val_loss", max_epochs=3, seed=0, directory="trials", project_name="one")
tuner.search(inputs, targets, batch_size=10, validation_data=(inputs, targets), callbacks=[Watch()], verbose=0)
continued = [run for run in runs if run[0] == 1]
whole = [run for run in runs if run[0] == 0 and run[3] < 0.01]
_, iterations, rate, last = continued[0]
print(f"second epoch: iterations begin at {iterations} instead of {STEPS}, ", end="")
print(f"the rate at {rate:.4f} instead of {float(schedule(STEPS)):.4f};")
print(f"after the third the rate is {last:.4f}, in one go {whole[0][3]:.4f}")
assert set(continued) == {(1, 0, 0.1, 0.025)}, "the behaviour has changed"
assert set(whole) == {(0, 0, 0.1, 0.0)}, "the behaviour has changed"
PROGRAM
