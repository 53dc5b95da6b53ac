#!/usr/bin/env bash
# Finding: with gradient accumulation the moving average of Keras' optimizers forgets k times as fast.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, Python 3.11.
# Behaviour: gradients are clipped, weights decayed and iterations counted once per update. The average of use_ema
# moves at every micro-batch, although the weights have not: with k micro-batches in an update the momentum m acts as
# m**k. A user who accumulates to keep a recipe's batch size gets an average over a k-th of its updates: 0.999 with 32
# micro-batches remembers some 31 updates, not 1000. Nothing in the configuration or in the logs shows it.
# Output seen: 8 updates that add 1: average 3.30, with 4 micro-batches each 5.52; by hand, per micro-batch: 5.52
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow==2.21.0 keras==3.15.1
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import keras
import tensorflow as tf


def average(micro_batches):
    """Return the moving average of a weight to which eight updates add 1 each."""
    weight = keras.Variable([0.0])
    steps = micro_batches if micro_batches > 1 else None
    optimizer = keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.9, gradient_accumulation_steps=steps)
    for _ in range(8 * micro_batches):
        optimizer.apply([tf.constant([-1.0])], [weight])
    assert float(weight.numpy()[0]) == 8.0
    optimizer.finalize_variable_values([weight])  # as at the end of `fit`: the weight becomes its average
    return round(float(weight.numpy()[0]), 2)


def oracle(weights):
    """Return the average of weights that come one after the other; it begins at the first."""
    value = weights[0]
    for weight in weights[1:]:
        value = 0.9 * value + 0.1 * weight
    return round(value, 2)


seen = [float(update) for update in range(1, 9)]  # the weight after each update
seen_by_micro_batches = [weight for weight in seen[:-1] for _ in range(4)] + seen[-1:]  # it waits for the next update
plain, accumulated, per_micro_batch = average(1), average(4), oracle(seen_by_micro_batches)
print(f"8 updates that add 1: average {plain:.2f}, with 4 micro-batches each {accumulated:.2f}; ", end="")
print(f"by hand, per micro-batch: {per_micro_batch:.2f}")
assert plain == oracle(seen) and accumulated == per_micro_batch != plain, "the behaviour has changed"
PROGRAM
