#!/usr/bin/env bash
# Finding: on a CPU the gradient of a bias in mixed_bfloat16 stops growing at 256 rows.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, Python 3.11, x86-64 Linux.
# Behaviour: BiasAddGrad adds the rows of a batch, and their positions, in bfloat16, one after the other. Such a sum
# has 8 bits: 256 + 1 is 256. Kernels and norms get right gradients, mixed_float16 gets right ones too, because its
# sum is kept in float32, and so does XLA. The longer a sequence or the larger a batch, the more is lost: with noise
# around a small mean, as gradients are, the vector is wrong by 40 % for 65,536 rows. Nothing is raised.
# Output seen: of 4000 ones: kernel 4000, bias 256; float16: 4000; XLA: 4000; 65,536 rows of noise: wrong by 42 %
# The script fails if that changes; the last number may differ.
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


def gradients(policy, jit_compile=False):
    """Return the gradients of a sum over 4000 rows of ones: 4000 for the kernel, and 4000 for the bias."""
    layer = keras.layers.Dense(8, dtype=policy)
    layer.build((None, 1))

    @tf.function(jit_compile=jit_compile, autograph=False)
    def step(rows, weights):
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(tf.cast(layer(rows), tf.float32) * weights)
        return tape.gradient(total, [variable.value for variable in layer.trainable_variables])

    found = step(tf.ones((4000, 1)), tf.ones((4000, 8)))
    return [float(gradient.numpy().ravel()[0]) for gradient in found]


kernel, bias = gradients("mixed_bfloat16")
_, half = gradients("mixed_float16")
_, compiled = gradients("mixed_bfloat16", jit_compile=True)
noise = tf.cast(np.random.default_rng(0).normal(0.05, 1, (65536, 64)), tf.bfloat16)
right = noise.numpy().astype("float64").sum(axis=0)
added = tf.raw_ops.BiasAddGrad(out_backprop=noise).numpy().astype("float64")
wrong = np.linalg.norm(added - right) / np.linalg.norm(right)
print(f"of 4000 ones: kernel {kernel:.0f}, bias {bias:.0f}; float16: {half:.0f}; XLA: {compiled:.0f}; ", end="")
print(f"65,536 rows of noise: wrong by {wrong:.0%}")
assert (kernel, half, compiled) == (4000, 4000, 4000) and bias <= 1024 and wrong > 0.1, "the behaviour has changed"
PROGRAM
