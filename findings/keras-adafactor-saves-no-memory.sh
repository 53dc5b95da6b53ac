#!/usr/bin/env bash
# Finding: Keras' Adafactor keeps a second moment for each weight, and `relative_step=False` does nothing.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, Python 3.11.
# Behaviour: Adafactor is chosen for its memory: it stores the second moments of a matrix as one number per row and
# column. Keras stores these, and a matrix of their products as well, which no later step reads. So the state is as
# large as that of RMSprop, in memory and in each checkpoint. Besides, the learning rate is limited to 1 / sqrt(step)
# whether `relative_step` is True or False, for schedules too. After 10,000 steps a rate of 0.1 acts as 0.01, and no
# decay that someone wrote into a schedule of larger rates takes place.
# Output seen: state of a 2048 x 2048 matrix: Adafactor 4,198,400 numbers, rows and columns 4,096, RMSprop 4,194,304;
# size of update 10,000 at a rate of 0.1: relative_step=True 0.010, False 0.010, schedule 0.010
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0 keras==3.15.1
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import keras
import numpy as np

SIDE, STEP, RATE = 2048, 10_000, 0.1
Adafactor, RMSprop = keras.optimizers.Adafactor, keras.optimizers.RMSprop


def numbers(optimizer):
    """Return how many numbers the optimizer keeps for a matrix, without its two scalars."""
    optimizer.build([keras.Variable(np.ones([SIDE, SIDE], "float32"))])
    return sum(int(np.prod(one.shape)) for one in optimizer.variables if len(one.shape))


def change(rate, **options):
    """Return the size of the update of a matrix of ones by gradients of one, after many steps."""
    matrix, optimizer = keras.Variable(np.ones([8, 8], "float32")), Adafactor(rate, **options)
    optimizer.build([matrix])
    optimizer.iterations.assign(STEP - 1)
    optimizer.apply([keras.ops.ones([8, 8])])
    return float(1 - np.mean(matrix))


factored, full = numbers(Adafactor(RATE)), numbers(RMSprop(RATE))
constant = keras.optimizers.schedules.PiecewiseConstantDecay([2 * STEP], [RATE, RATE])
sizes = [change(RATE, relative_step=True), change(RATE, relative_step=False), change(constant, relative_step=False)]
print(f"state of a {SIDE} x {SIDE} matrix: Adafactor {factored:,} numbers, ", end="")
print(f"rows and columns {2 * SIDE:,}, RMSprop {full:,}; ", end="")
print("size of update {:,} at a rate of {}: ".format(STEP, RATE), end="")
print("relative_step=True {:.3f}, False {:.3f}, schedule {:.3f}".format(*sizes))
assert full == SIDE**2 and factored == full + 2 * SIDE, "the behaviour has changed"
assert all(abs(size - 0.01) < 1e-4 for size in sizes), "the behaviour has changed"
PROGRAM
