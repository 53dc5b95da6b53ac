"""Helpers of cases with interrupted and saved trainings: the interruption, and distances between arrays."""

import contextlib
import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np


class Interrupt(keras.callbacks.Callback):
    """Interrupts a training before the batch that follows so many updates."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.model.optimizer.iterations == self.after:
            raise KeyboardInterrupt


class Killed(keras.callbacks.Callback):
    """Keeps the backup that would exist if all processes were killed before a step, and continues."""

    def __init__(self, step: int, backup: Path, kept: Path, *, keeps: bool) -> None:
        super().__init__()
        self.left, self.backup, self.kept, self.keeps = step, backup, kept, keeps

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left == -1 and self.keeps:
            shutil.copytree(self.backup, self.kept)


def far(ones: list[np.ndarray], others: list[np.ndarray]) -> float:
    """Return the largest difference of two elements."""
    return max(float(np.max(np.abs(one - other))) for one, other in zip(ones, others, strict=True))


def far_when_served(model: keras.Model, folder: str, x: np.ndarray, within: Any = None) -> float:
    """Export a model, in a scope, and return how far an exported model's answers are from the model's predictions."""
    with within or contextlib.nullcontext():
        model.export(folder)
    answers = keras.layers.TFSMLayer(folder, "serve")(x.astype(np.float32))
    return far([np.asarray(answers)], [model.predict(x, verbose=0)])
