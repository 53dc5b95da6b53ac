#!/usr/bin/env bash
# Finding: EarlyStopping that restores the best weights throws the average of the weights away.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, Python 3.11.
# Behaviour: with use_ema=True an optimizer keeps an average of the weights, and fit puts it into the model at the end,
# before the callbacks' on_train_end. There EarlyStopping(restore_best_weights=True) puts the plain weights of an epoch
# in its place, whether training stopped early or not. So the model has no average, and nothing says so. Without this
# callback it has the average, but no metric of it was logged: val_loss, the best epoch and the files of ModelCheckpoint
# are of the plain weights.
# Output seen: plain weights 0.995, their average 0.876; fit leaves 0.876, and with EarlyStopping 0.995;
# val_loss of the last epoch 0.000022, of the model that fit leaves 0.015338
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

x = np.ones((32, 1))


def train(*callbacks, use_ema=True):
    """Return the weight that fit leaves, the last val_loss, and the loss of the model that fit leaves."""
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1,)), dense])
    model.compile(keras.optimizers.SGD(0.1, use_ema=use_ema, ema_momentum=0.9), "mse")
    logs = model.fit(x, x, batch_size=4, epochs=3, verbose=0, validation_data=(x, x), callbacks=list(callbacks)).history
    return dense.kernel.numpy().item(), logs["val_loss"][-1], model.evaluate(x, x, verbose=0)


def stopping():
    """Return a callback that never stops training, and restores the best epoch, which is the last one."""
    return keras.callbacks.EarlyStopping(patience=9, restore_best_weights=True)


# By hand: a step moves the weight by a fifth of its distance from 1, and the average begins with the first weight.
plain, average = 1 - 0.8**24, 0.2
for step in range(2, 25):
    average = 0.9 * average + 0.1 * (1 - 0.8**step)
left, logged, loss = train()
stopped = train(stopping())[0]
print(f"plain weights {plain:.3f}, their average {average:.3f}; fit leaves {left:.3f}, ", end="")
print(f"and with EarlyStopping {stopped:.3f};")
print(f"val_loss of the last epoch {logged:.6f}, of the model that fit leaves {loss:.6f}")
assert np.isclose(train(use_ema=False)[0], plain) and np.isclose(left, average)
assert np.isclose(stopped, plain), "the behaviour has changed"
assert np.isclose(logged, (1 - plain) ** 2) and np.isclose(loss, (1 - average) ** 2), "the behaviour has changed"
PROGRAM
