#!/usr/bin/env bash
# Finding: a training that Keras' BackupAndRestore resumes overwrites its best checkpoint with a worse one.
#
# Versions: Keras 3.15.1, TensorFlow 2.21.0, Python 3.11.
# Behaviour: BackupAndRestore saves the model, the optimizer and the epoch. What other callbacks have counted begins anew
# in the new process: ModelCheckpoint(save_best_only=True) takes the first epoch after the interruption for the best one
# so far, and overwrites the file; EarlyStopping has its whole patience again and restores the best weights since the
# interruption. Weights and losses of the resumed epochs are those of an undisturbed training, so a test of resumption
# that compares these passes.
# Output seen: the weight kept as the best of all epochs (0.0400 is perfect): undisturbed 0.0400 after 5 epochs;
# interrupted before epoch 4 and resumed 0.0001 after 9 epochs; EarlyStopping returns 0.0400 and 0.0001
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow==2.21.0 keras==3.15.1
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import tempfile
from pathlib import Path

import keras
import numpy as np


class Interrupted(Exception):
    pass


class Interruption(keras.callbacks.Callback):
    """Ends the training before an epoch, as the end of a machine would."""

    def __init__(self, before):
        super().__init__()
        self.before = before

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.before:
            raise Interrupted


def train(folder, before=None):
    """Train a weight, which is multiplied by -0.2 in every epoch; the best one is that of the second epoch, 0.04."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.6), "mse")
    best = str(folder / "best.weights.h5")
    callbacks = [
        keras.callbacks.BackupAndRestore(folder / "backup"),
        keras.callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(best, "val_loss", save_best_only=True, save_weights_only=True),
        Interruption(before),
    ]
    ones = np.ones((4, 1), "float32")
    try:
        history = model.fit(
            ones, 0 * ones, epochs=30, batch_size=4, validation_data=(ones, 0.04 * ones), verbose=0, callbacks=callbacks
        )
    except Interrupted:
        return None
    returned = float(model.get_weights()[0].item())
    model.load_weights(best)
    return history.epoch[-1] + 1, returned, float(model.get_weights()[0].item())


with tempfile.TemporaryDirectory() as folder:
    epochs, returned, kept = train(Path(folder))
with tempfile.TemporaryDirectory() as folder:
    assert train(Path(folder), before=4) is None
    resumed_epochs, resumed_returned, resumed_kept = train(Path(folder))
print("the weight kept as the best of all epochs (0.0400 is perfect): ", end="")
print(f"undisturbed {kept:.4f} after {epochs} epochs; ", end="")
print(f"interrupted before epoch 4 and resumed {resumed_kept:.4f} after {resumed_epochs} epochs; ", end="")
print(f"EarlyStopping returns {returned:.4f} and {resumed_returned:.4f}")
assert (epochs, f"{returned:.4f}", f"{kept:.4f}") == (5, "0.0400", "0.0400")
assert resumed_epochs > epochs, "the behaviour has changed"
assert resumed_returned < 0.01 and resumed_kept < 0.01, "the behaviour has changed"
PROGRAM
