#!/usr/bin/env bash
# Finding: Adam and AdamW never change a bfloat16 weight, and Nadam makes it NaN.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, Python 3.11.
# Behaviour: a model whose policy is "bfloat16", and not "mixed_bfloat16", has weights of bfloat16, which take half the
# memory. Adam computes its bias correction in the type of the weight. There beta_2 = 0.999 is rounded to 1, so the
# factor sqrt(1 - beta_2 ** step) is 0, and so is each update. fit runs, and the loss remains constant. Nadam divides by
# this 0. SGD, RMSprop, Adamax, Lion and Adafactor learn. Adam learns with beta_2=0.99, and under a mixed policy, whose
# weights are float32.
# Output seen: largest change of a weight in 20 steps of 0.1: Adam 0.00, AdamW 0.00, Nadam nan;
# Adam with beta_2=0.99 above 1: True; Adam in mixed_bfloat16 above 1: True; SGD above 1: True
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

keras.utils.set_random_seed(0)


def change(optimizer, policy="bfloat16"):
    """Return the largest change of a weight in 20 steps towards targets that are far away."""
    dense = keras.layers.Dense(4, dtype=policy)
    model = keras.Sequential([keras.Input((4,)), dense])
    before = np.array(dense.kernel, "float32")
    model.compile(optimizer, "mse")
    model.fit(np.ones((32, 4)), np.full((32, 4), 10.0), batch_size=32, epochs=20, verbose=0)
    return np.abs(np.array(dense.kernel, "float32") - before).max()


still = {name: change(getattr(keras.optimizers, name)(0.1)) for name in ("Adam", "AdamW", "Nadam")}
learn = {
    "Adam with beta_2=0.99": change(keras.optimizers.Adam(0.1, beta_2=0.99)),
    "Adam in mixed_bfloat16": change(keras.optimizers.Adam(0.1), "mixed_bfloat16"),
    "SGD": change(keras.optimizers.SGD(0.1)),
}
print("largest change of a weight in 20 steps of 0.1:", ", ".join(f"{n} {v:.2f}" for n, v in still.items()), end=";\n")
print("; ".join(f"{name} above 1: {value > 1}" for name, value in learn.items()))
assert still["Adam"] == still["AdamW"] == 0 and np.isnan(still["Nadam"]), "the behaviour has changed"
assert all(value > 1 for value in learn.values())
PROGRAM
