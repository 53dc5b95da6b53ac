#!/usr/bin/env bash
# Finding: the first update of Keras' Ftrl replaces the weights that it is given, instead of changing them.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, NumPy 2.3.5, Python 3.11.
# Behaviour: the algorithm computes weights from sums of gradients alone, and assumes that they began at zero. With the
# default `initial_accumulator_value=0.1`, a weight w with the gradient g becomes about w * g**2 / 0.2, whatever the
# rate is; without a gradient it becomes 0. So a pretrained model, or weights that were loaded without the optimizer's
# state, are gone after one step, and so are the values of an initializer. Adagrad, which is the same algorithm without
# regularization, keeps them. Where each round begins with a new optimizer, as in federated learning, nothing is
# learned.
# Output seen: loss of a trained model 0.0001, after one step at a rate of 1e-06: Ftrl 0.98, Adagrad 0.0001; of the
# kernel Ftrl keeps 0.01%, Adagrad 100.00%
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0 keras==3.15.1 numpy==2.3.5
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import keras
import numpy as np

RATE = 1e-6
generator = np.random.default_rng(0)
true = generator.normal(size=(20, 1)).astype("float32")
true /= np.linalg.norm(true)
x = generator.normal(size=(1024, 20)).astype("float32")
y = x @ true + 0.01 * generator.normal(size=(1024, 1)).astype("float32")
trained = np.linalg.lstsq(x, y, rcond=None)[0]


def tuned(optimizer):
    """Return the loss after one step from the trained weights, and how much of them is left."""
    model = keras.Sequential([keras.Input([20]), keras.layers.Dense(1, use_bias=False)])
    model.set_weights([trained])
    model.compile(optimizer, "mse")
    before = model.evaluate(x, y, verbose=0)
    model.train_on_batch(x[:32], y[:32])
    (kernel,) = model.get_weights()
    return before, model.evaluate(x, y, verbose=0), float(np.linalg.norm(kernel) / np.linalg.norm(trained))


before, ftrl, left = tuned(keras.optimizers.Ftrl(RATE))
_, adagrad, kept = tuned(keras.optimizers.Adagrad(RATE))
print(f"loss of a trained model {before:.4f}, after one step at a rate of {RATE:.0e}: ", end="")
print(f"Ftrl {ftrl:.2f}, Adagrad {adagrad:.4f}; of the kernel Ftrl keeps {left:.2%}, Adagrad {kept:.2%}")
assert before < 2e-4 and abs(adagrad - before) < 1e-5 and abs(kept - 1) < 1e-3
assert ftrl > 0.9 and left < 0.01, "the behaviour has changed"
PROGRAM
