#!/usr/bin/env bash
# Finding: a Sequential model that Keras loads from its Orbax checkpoint has random weights, and nothing says so.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, orbax-checkpoint 0.12.8, JAX 0.10.2, Python 3.11.
# Behaviour: `OrbaxCheckpoint` saves variables by their paths, and loading assigns those whose path the model has; all
# others are skipped. `fit` names the kernel of a Sequential model sequential/dense/kernel, `load_model` dense/kernel.
# So the iterations of the optimizer come back, but no weight and no slot. `load_weights` skips as well: a second model
# of the same code in one process has dense_1 where the first one has dense, so it keeps its random weights, Sequential
# or not. Training goes on from there, and saves the result over the good checkpoint. Compare a weight after loading. A
# functional model is loaded right by `load_model`; `.keras` and `.weights.h5` files load both kinds right.
# Output seen: loss of the trained model 0.00, by load_model from Orbax 7.05 after 320 iterations, from .keras 0.00
# functional: by load_model from Orbax 0.00, by load_weights into a second model 4.51, from .weights.h5 0.00
# The script fails if that changes; the losses of random weights may differ.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0 keras==3.15.1 numpy==2.3.5 \
  orbax-checkpoint==0.12.8 jax==0.10.2
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import os

import keras
import numpy as np

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(512, 5)).astype("float32")
y = x.sum(axis=1, keepdims=True)


def compiled(model):
    model.compile(keras.optimizers.Adam(0.05), "mse")
    return model


def sequential():
    return compiled(keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)]))


def functional():
    inputs = keras.Input((5,))
    return compiled(keras.Model(inputs, keras.layers.Dense(1)(inputs)))


def loss(model):
    return model.evaluate(x, y, verbose=0)


def saved(model, name):
    """Train a model, and save it by Orbax and in Keras' own files."""
    orbax = keras.callbacks.OrbaxCheckpoint(os.path.abspath(name), save_on_background=False)
    model.fit(x, y, epochs=20, verbose=0, callbacks=[orbax])
    model.save(f"{name}.keras")
    model.save_weights(f"{name}.weights.h5")
    return loss(model)


trained = saved(sequential(), "sequential")
orbax = keras.saving.load_model(os.path.abspath("sequential"))
steps = int(orbax.optimizer.iterations.numpy())
lost, right = loss(orbax), loss(keras.saving.load_model("sequential.keras"))
print(f"loss of the trained model {trained:.2f}, by load_model from Orbax {lost:.2f} ", end="")
print(f"after {steps} iterations, from .keras {right:.2f}")
assert trained < 0.01 and right < 0.01 and lost > 0.5 and steps == 320, "the behaviour has changed"

saved(functional(), "functional")
loaded = loss(keras.saving.load_model(os.path.abspath("functional")))
second, third = functional(), functional()
second.load_weights(os.path.abspath("functional"))
third.load_weights("functional.weights.h5")
lost, right = loss(second), loss(third)
print(f"functional: by load_model from Orbax {loaded:.2f}, by load_weights into a second model {lost:.2f},", end=" ")
print(f"from .weights.h5 {right:.2f}")
assert loaded < 0.01 and right < 0.01 and lost > 0.5, "the behaviour has changed"
PROGRAM
