#!/usr/bin/env bash
# Finding: `layer(x, training=False)` in a functional model is overridden by `fit`, and `training=True` by `predict`.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, NumPy 2.3.5, Python 3.11.
# Behaviour: the argument is part of the graph of a functional model. When the model runs, a `training` that is not None
# replaces it in every layer that takes the argument, nested models included. `fit` passes True, `predict` and
# `evaluate` pass False. So a base model that was called with training=False, as guides on fine-tuning do to protect its
# statistics, changes its moving means as soon as it is made trainable. Dropout with training=True, for many predictions
# of one example, drops nothing in `predict`; it drops when the model is called without the argument. A subclassed model
# keeps what its `call` says. To protect statistics, set `trainable = False` of each BatchNormalization.
# Output seen: a base with training=False: moving mean 0.0 before fit, after it 0.096 in a functional model, 0.0 in a
# subclassed one; dropout with training=True: 39 of 100 are dropped in a call, 0 in predict
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

rows = np.ones((40, 1), "float32")


def base():
    return keras.Sequential([keras.Input((1,)), keras.layers.BatchNormalization()])


class Subclassed(keras.Model):
    """The base in inference mode, and a layer to train."""

    def __init__(self):
        super().__init__()
        self.base, self.top = base(), keras.layers.Dense(1)

    def call(self, x):
        return self.top(self.base(x, training=False))


def moving_mean(model, of):
    model.compile("sgd", "mse")
    before = float(of.layers[-1].moving_mean[0])
    model.fit(rows, rows, batch_size=4, verbose=0)
    return before, float(of.layers[-1].moving_mean[0])


keras.utils.set_random_seed(0)
inputs, inner, subclassed = keras.Input((1,)), base(), Subclassed()
functional = keras.Model(inputs, keras.layers.Dense(1)(inner(inputs, training=False)))
before, after = moving_mean(functional, inner)
_, kept = moving_mean(subclassed, subclassed.base)
wide = keras.Input((100,))
dropping = keras.Model(wide, keras.layers.Dropout(0.5)(wide, training=True))
ones = np.ones((1, 100), "float32")
called, predicted = (int((found == 0).sum()) for found in (dropping(ones).numpy(), dropping.predict_on_batch(ones)))
print(f"a base with training=False: moving mean {before} before fit, after it {after:.3f} in a functional model,", end=" ")
print(f"{kept} in a subclassed one; dropout with training=True: {called} of 100 are dropped in a call,", end=" ")
print(f"{predicted} in predict")
assert before == kept == 0 and 0.05 < after < 0.2, "the behaviour has changed"
assert 20 < called < 80 and predicted == 0, "the behaviour has changed"
assert (dropping.predict(ones, verbose=0) == 0).sum() == 0, "the behaviour has changed"
assert (dropping(ones, training=False).numpy() == 0).sum() == 0, "the behaviour has changed"
PROGRAM
