#!/usr/bin/env bash
# Finding: after a layer is frozen, the end of `fit` gives a trained layer the averaged weights of the frozen one.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, NumPy 2.3.5, Python 3.11.
# Behaviour: with `use_ema=True`, an optimizer overwrites weights by their moving averages at the end of `fit`, or at
# the end of every few steps. On TensorFlow it pairs the weights that are trained with its averages by their order. If a
# layer is frozen and the model compiled again with the same optimizer, as to fine-tune, the averages still begin with
# those of the frozen layer. A layer of the same shape takes them, and what it has learnt is lost. Layers of other
# shapes end in an error, after the whole training. `compile` with a new optimizer is right.
# Output seen: two layers of one shape, the first one frozen after an epoch, then an epoch with use_ema
# same optimizer: the second layer is 0.000 from the average of the first, 1.0 from its own weights
# new optimizer: 1.0 from the average of the first, 0.0 from its own weights
# The script fails if that changes; the distances from other weights may differ.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0 keras==3.15.1 numpy==2.3.5
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 KERAS_BACKEND=tensorflow "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
y = x[:, :1] * np.ones((1, 4), "float32")


def averaging():
    return keras.optimizers.SGD(0.001, use_ema=True, ema_momentum=0.5)


def distances(*, renewed):
    """Train, freeze the first layer, train on; return how far the second is from the first, and from its own before."""
    keras.utils.set_random_seed(0)
    first, second = (keras.layers.Dense(4, use_bias=False) for _ in range(2))
    model = keras.Sequential([keras.Input((4,)), first, second])
    model.compile(averaging(), "mse")
    model.fit(x, y, batch_size=8, verbose=0)
    first.trainable = False
    model.compile(averaging() if renewed else model.optimizer, "mse")
    before = second.kernel.numpy()
    model.fit(x, y, batch_size=8, verbose=0)  # 8 steps of 0.001
    after = second.kernel.numpy()
    return [float(np.abs(after - one).max()) for one in (first.kernel.numpy(), before)]


print("two layers of one shape, the first one frozen after an epoch, then an epoch with use_ema")
kept, renewed = distances(renewed=False), distances(renewed=True)
print(f"same optimizer: the second layer is {kept[0]:.3f} from the average of the first, ", end="")
print(f"{kept[1]:.1f} from its own weights")
print(f"new optimizer: {renewed[0]:.1f} from the average of the first, {renewed[1]:.1f} from its own weights")
assert kept[0] < 1e-3 and kept[1] > 0.3, "the behaviour has changed"
assert renewed[0] > 0.3 and renewed[1] < 0.1, "the behaviour has changed"
PROGRAM
