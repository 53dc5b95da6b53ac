#!/usr/bin/env bash
# Finding: a functional model of an `OrderedDict` exchanges its inputs, and a loaded copy of it does not.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, NumPy 2.3.5, Python 3.11.
# Behaviour: Keras flattens a dict by the order of its names, and an OrderedDict by the order of its entries. A model is
# given data by position after both were flattened. So a model whose inputs were declared as an OrderedDict, if that is
# not in alphabetical order, trains with its columns exchanged if `fit` gets a dict with the right names. Nothing is
# raised where the columns have the same shape and type. The loss is as low as ever, since layers learn each other's columns.
# `save` writes the inputs as a dict: the loaded model assigns them by name, and predicts something else. A call of a
# model of a dict, `model(data)`, exchanges the columns of an OrderedDict too; `predict` does not. Declare a dict.
# Output seen: y = 3 income + age: as a dict, weights of income 3.0, of age 1.0, loaded model off by 0.0; as an
# OrderedDict, weights of income 1.0, of age 3.0, loaded model off by 9.2; a called model of a dict: off by 9.2
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0 keras==3.15.1 numpy==2.3.5
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
from collections import OrderedDict

import keras
import numpy as np

random = np.random.default_rng(0)
columns = {name: random.normal(size=(1000, 1)).astype("float32") for name in ("income", "age")}
y = 3 * columns["income"] + columns["age"]


def trained(kind):
    """Return a model of the sum of two weighted columns, whose inputs are of this kind, and the weights by name."""
    keras.utils.set_random_seed(0)
    inputs = kind((name, keras.Input((1,), name=name)) for name in columns)
    layers = {name: keras.layers.Dense(1, use_bias=False) for name in columns}
    model = keras.Model(inputs, sum(layers[name](inputs[name]) for name in columns))
    model.compile(keras.optimizers.SGD(0.5), "mse")
    model.fit(columns, y, epochs=3, verbose=0)
    return model, {name: round(float(layer.kernel[0, 0]), 2) for name, layer in layers.items()}


def off(found):
    return float(np.abs(found - y).max())


said, seen = [], {}
for kind in (dict, OrderedDict):
    model, weights = trained(kind)
    model.save("model.keras")
    seen[kind] = weights, off(keras.models.load_model("model.keras").predict(columns, verbose=0))
    assert off(model.predict(columns, verbose=0)) < 1e-3
    words = ", ".join(f"of {name} {weight}" for name, weight in weights.items())
    article = "a dict" if kind is dict else "an OrderedDict"
    said.append(f"as {article}, weights {words}, loaded model off by {seen[kind][1]:.1f}")
called = off(trained(dict)[0](OrderedDict(columns)).numpy())
print("y = 3 income + age:", "; ".join(said), end="; ")
print(f"a called model of a dict: off by {called:.1f}")
assert seen[dict][0] == {"income": 3.0, "age": 1.0} and seen[dict][1] < 1e-3
assert seen[OrderedDict][0] == {"income": 1.0, "age": 3.0}, "the behaviour has changed"
assert seen[OrderedDict][1] > 5 and called > 5, "the behaviour has changed"
PROGRAM
