#!/usr/bin/env bash
# Finding: in attention, Keras' Muon orthogonalizes the biases, and trains the kernels by AdamW.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, NumPy 2.3.5, Python 3.11.
# Behaviour: Muon is for matrices, and takes every variable with two dimensions for one. MultiHeadAttention has its
# kernels with three, [inputs, heads, size], so AdamW trains them. Its biases of queries, keys and values have two,
# [heads, size], so Muon makes the rows of their updates orthogonal. Such an update has the same size for any gradient.
# The bias of keys has no gradient but rounding, because softmax ignores what all scores share, so Muon walks along
# noise at full speed. `exclude_layers=["bias"]` leaves biases to AdamW; nothing makes Muon train the kernels.
# Output seen: Muon trains query/bias, key/bias, value/bias, dense/kernel; AdamW trains query/kernel, key/kernel,
# value/kernel, attention_output/kernel, attention_output/bias, dense/bias
# largest gradient of key/bias 9e-10, of query/bias 4e-03; after 100 steps their norms are 0.051 and 0.049,
# and with exclude_layers=["bias"] 0.000 and 0.035
# The script fails if that changes; the norms may differ.
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

RATE = 0.001
PREFIX = "multi_head_attention/"
generator = np.random.default_rng(0)


def made(**arguments):
    """Return an attention with a dense layer behind it, and its variables by name."""
    keras.utils.set_random_seed(0)
    keras.backend.clear_session()
    inputs = keras.Input((16, 32))
    attended = keras.layers.MultiHeadAttention(4, 8)(inputs, inputs)
    model = keras.Model(inputs, keras.layers.Dense(32)(attended))
    optimizer = keras.optimizers.Muon(RATE, weight_decay=None, adam_weight_decay=None, **arguments)
    model.compile(optimizer, "mse", jit_compile=False)
    return model, {one.path.removeprefix(PREFIX): one for one in model.trainable_variables}


def rule(before, after):
    """Return whose first step this is: Adam's is the sign of the gradient, Muon's has similar singular values."""
    change = after - before
    if np.allclose(np.abs(change), RATE, rtol=1e-2):
        return "AdamW"
    strengths = np.linalg.svd(change, compute_uv=False) / (RATE * 0.2 * max(change.shape) ** 0.5)
    assert change.ndim == 2 and 0.5 < np.median(strengths) and strengths.max() < 1.5, "the behaviour has changed"
    return "Muon"


model, variables = made()
before = model.get_weights()
gradients = [generator.choice([-1, 1], size=one.shape) * generator.uniform(0.5, 1.5, size=one.shape) for one in before]
model.optimizer.apply([tf.constant(one, "float32") for one in gradients], model.trainable_variables)
rules = [rule(old, new) for old, new in zip(before, model.get_weights(), strict=True)]
found = {name: [path for path, one in zip(variables, rules, strict=True) if one == name] for name in ("Muon", "AdamW")}
print("; ".join(f"{name} trains {', '.join(paths)}" for name, paths in found.items()))
assert found["Muon"] == ["query/bias", "key/bias", "value/bias", "dense/kernel"], "the behaviour has changed"

x = generator.normal(size=(3200, 16, 32)).astype("float32")
y = np.tanh(x[:, ::-1] * x)


def trained(**arguments):
    """Return the largest gradients of the biases of keys and queries, and their norms after an epoch."""
    model, variables = made(**arguments)
    biases = [variables["key/bias"], variables["query/bias"]]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x[:32]) - y[:32]) ** 2)
    gradients = [float(tf.reduce_max(tf.abs(one))) for one in tape.gradient(loss, [one.value for one in biases])]
    model.fit(x, y, batch_size=32, verbose=0)
    return gradients, [float(np.linalg.norm(one.numpy())) for one in biases]


(noise, real), (walked, moved) = trained()
_, (still, other) = trained(exclude_layers=["bias"])
print(f"largest gradient of key/bias {noise:.0e}, of query/bias {real:.0e}; ", end="")
print(f"after 100 steps their norms are {walked:.3f} and {moved:.3f}, ", end="")
print(f'and with exclude_layers=["bias"] {still:.3f} and {other:.3f}')
assert noise < 1e-4 * real and walked > 0.1 * moved > 0, "the behaviour has changed"
assert still < 0.5 * walked, "the behaviour has changed"
PROGRAM
