#!/usr/bin/env bash
# Finding: keras.remat computes the gradient of dropout with another mask than the one of the forward pass.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, Python 3.11.
# Behaviour: on TensorFlow the layers are called a second time for the backward pass. A seed generator has advanced by
# then, so the recomputed dropout has a mask of its own: half of the elements that were dropped get gradients, and
# half of those that were kept get none. BatchNormalization moves its statistics twice in a step. Nothing is raised.
# PyTorch's checkpoint keeps the state of its generator for this reason, so one expects the same here.
# Output seen: gradient differs from the output's mask in 0 of 1000 elements, with remat in 512; moving mean 0.5, 0.75
# The script fails if that changes; the number of elements is only required to be large.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow==2.21.0 keras==3.15.1
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import keras
import tensorflow as tf

found = []
for wrapped in (lambda function: function, keras.remat):
    dropout = keras.layers.Dropout(0.5, seed=1)
    normalization = keras.layers.BatchNormalization(momentum=0.5)
    normalization.build((None, 1))
    drop = wrapped(lambda x: dropout(x, training=True))
    normalize = wrapped(lambda x: normalization(x, training=True))
    ones, two = tf.Variable(tf.ones(1000)), tf.Variable([[0.0], [2.0]])

    @tf.function(autograph=False)
    def step():
        """Return what dropout gives for ones, and the gradient of its sum: each is 0 or 2, and they must be equal."""
        with tf.GradientTape(persistent=True) as tape:
            output, normalized = drop(ones), normalize(two)
        tape.gradient(normalized, two)
        return output, tape.gradient(output, ones)

    output, gradient = step()
    unlike = int(tf.reduce_sum(tf.cast(output != gradient, tf.int32)))
    found.append((unlike, float(normalization.moving_mean.numpy()[0])))
(plain, plain_mean), (remat, remat_mean) = found
print(f"gradient differs from the output's mask in {plain} of 1000 elements, with remat in {remat}; ", end="")
print(f"moving mean {plain_mean}, {remat_mean}")
assert plain == 0 and remat > 300 and (plain_mean, remat_mean) == (0.5, 0.75), "the behaviour has changed"
PROGRAM
