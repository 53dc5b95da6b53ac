#!/usr/bin/env bash
# Finding: Keras' load_weights leaves a LoRA adapter that can never learn again.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, Python 3.11.
# Behaviour: save_weights stores the kernel with the adapter merged into it, and load_weights sets both matrices of
# the adapter to zero. Predictions are those of the saved model, so a check of the metrics finds nothing. But the
# gradient of each matrix is a product with the other, so both stay zero: `fit` runs, the loss does not move, and
# nothing is raised. Only the momentum of an optimizer that is restored as well moves them, and then training goes on
# from another state.
# Output seen: trained on: 6.3 -> 4.38; loaded: 6.44 -> 6.44, largest element of the adapter 0.0
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

random = np.random.default_rng(0)
X = random.normal(size=(64, 8)).astype("float32")
Y = X @ random.normal(size=(8, 4)).astype("float32")


def adapted():
    """Return a compiled model of one layer with an adapter of rank 2."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4, use_bias=False)])
    model.layers[0].enable_lora(2)
    model.compile(keras.optimizers.Adam(0.05), "mse")
    return model


def losses(model):
    """Return the first and the last loss of five epochs."""
    history = model.fit(X, Y, epochs=5, shuffle=False, verbose=0).history["loss"]
    return round(history[0], 2), round(history[-1], 2)


trained, loaded = adapted(), adapted()
losses(trained)
trained.save_weights("adapted.weights.h5")
loaded.load_weights("adapted.weights.h5")
same = np.allclose(trained.predict(X, verbose=0), loaded.predict(X, verbose=0), atol=1e-5)
on, dead = losses(trained), losses(loaded)
largest = max(float(abs(variable.numpy()).max()) for variable in loaded.trainable_variables)
print("trained on: {} -> {}; loaded: {} -> {}, ".format(*on, *dead) + f"largest element of the adapter {largest}")
assert same and on[1] < on[0] and dead[0] == dead[1] and largest == 0.0, "the behaviour has changed"
PROGRAM
