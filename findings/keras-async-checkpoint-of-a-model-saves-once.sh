#!/usr/bin/env bash
# Finding: TensorFlow's asynchronous checkpoint saves a Keras 3 model once; each later save raises.
#
# Versions: TensorFlow 2.21.0, Keras 3.15.1, NumPy 2.3.5, Python 3.11.
# Behaviour: `tf.train.Checkpoint(model=model)` saves a Keras 3 model as often as one likes, and with
# `CheckpointOptions(enable_async=True)` the first save works, too. The second raises ValueError: Keras answers the
# request for a copy with a new tf.Variable each time, and TensorFlow asks within a tf.function. A training that is
# tried with one save passes, and fails at its second, an hour later. A new Checkpoint for each save works.
# Output seen: not asynchronous: 3 of 3 saves; asynchronous: 1 of 3 saves, then ValueError; a new one each time: 3 of
# 3 saves
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
import tensorflow as tf

ROUNDS = 3


def saves(name, asynchronous, renew=False):
    """Return how many saves of a training succeed, and the error that ends them."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.optimizer.build(model.trainable_variables)
    checkpoint = tf.train.Checkpoint(model=model)
    options = tf.train.CheckpointOptions(enable_async=asynchronous)
    for number in range(ROUNDS):
        model.fit(np.ones((8, 2)), np.ones(8), verbose=0)
        expected = model.get_weights()[0]
        if renew:
            checkpoint = tf.train.Checkpoint(model=model)
        try:
            path = checkpoint.save(f"{name}/checkpoint{number}", options=options)
        except ValueError as error:
            return number, type(error).__name__
        checkpoint.sync()
        reader = tf.train.load_checkpoint(path)
        shapes = reader.get_variable_to_shape_map()
        assert any(np.array_equal(reader.get_tensor(name), expected) for name in shapes if shapes[name] == [2, 1])
    return ROUNDS, None


found = {
    "not asynchronous": saves("plain", False),
    "asynchronous": saves("once", True),
    "a new one each time": saves("new", True, renew=True),
}
for name, (count, error) in found.items():
    print(f"{name}: {count} of {ROUNDS} saves{f', then {error}' if error else ''}")
assert list(found.values()) == [(ROUNDS, None), (1, "ValueError"), (ROUNDS, None)], "the behaviour has changed"
PROGRAM
