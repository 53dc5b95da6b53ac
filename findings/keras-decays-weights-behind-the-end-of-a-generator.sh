#!/usr/bin/env bash
# Finding: on TensorFlow, a Keras epoch over data of unknown length counts a step, and decays weights, once too often.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, Python 3.11.
# Behaviour: the graph of a step asks the iterator for its batch. Where the number of batches is not known, as of a
# generator, `fit` learns of the end by a graph that finds no batch. What needs no batch runs in it all the same: the
# optimizer's step count grows, so a schedule and Adam's bias correction are ahead by one step per epoch, and AdamW
# decays the weights. The same batches of known number give other weights. Where a model has several outputs, the loss
# that is logged for each of them is a mean that counts the graph without a batch, too. Gradients, the whole loss and
# metrics are not affected.
# Output seen: 3 epochs of 5 batches: known number: 15 steps, weight 0.20589; generator: 18 steps, weight 0.15009;
# loss of an output: known number: 16.00; generator: 13.33
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
import tensorflow as tf

X, Y = np.ones((40, 4), "float32"), np.zeros((40, 1), "float32")


def batches():
    """Give the five batches one by one."""
    for first in range(0, 40, 8):
        yield X[first : first + 8], Y[first : first + 8]


def trained(data):
    """Train where only the decay moves the weight; return the steps that were counted, and the weight."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.compile(keras.optimizers.AdamW(1e-9, weight_decay=1e8), "mse")
    model.fit(data, epochs=3, verbose=0)
    return int(model.optimizer.iterations.numpy()), round(float(model.layers[0].kernel.numpy()[0, 0]), 5)


def loss_of_an_output(data):
    """Return the loss that an epoch logs for one of two equal outputs, whose weights stay ones."""
    inputs = keras.Input((4,))
    outputs = [keras.layers.Dense(1, kernel_initializer="ones", name=name)(inputs) for name in ("first", "second")]
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.0), ["mse", "mse"])
    history = model.fit(data.map(lambda x, y: (x, (y, y))), verbose=0).history
    assert history["loss"] == [32.0]
    return round(history["first_loss"][0], 2)


signature = (tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1]))
counted = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
generated = tf.data.Dataset.from_generator(batches, output_signature=signature)
known, unknown = trained(counted), trained(generated)
print(f"3 epochs of 5 batches: known number: {known[0]} steps, weight {known[1]}; ", end="")
print(f"generator: {unknown[0]} steps, weight {unknown[1]};")
losses = loss_of_an_output(counted), loss_of_an_output(generated)
print(f"loss of an output: known number: {losses[0]:.2f}; generator: {losses[1]:.2f}")
assert known == (15, 0.20589) and unknown == (18, 0.15009) and losses == (16.0, 13.33), "the behaviour has changed"
PROGRAM
