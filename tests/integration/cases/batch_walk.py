"""The files of tfdist that a batch crosses from `fit` to the step of a replica."""

import inspect
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist.strategies

PACKAGE = Path(tfdist.__file__).parent
WIDTH = 17  # by which features are recognized, whatever holds them
ARGUMENTS = inspect.CO_VARARGS, inspect.CO_VARKEYWORDS


class Model(keras.Model):
    """Notes that a replica's step begins."""

    has_begun = threading.Event()

    def train_step(self, data: Any) -> Any:
        """Train as Keras does."""
        self.has_begun.set()
        return super().train_step(data)


def holds(value: Any) -> bool:
    """Whether a value has the features of a batch within it."""
    if isinstance(value, tf.Tensor | np.ndarray):
        return tuple(value.shape)[1:] == (WIDTH,)
    if isinstance(value, tf.distribute.DistributedValues):
        return holds(value.values)
    if type(value) is dict:
        return any(map(holds, value.values()))
    return (type(value) is list or isinstance(value, tuple)) and any(map(holds, value))


def files() -> list[str]:
    """Train a step under a mirrored strategy; return the files whose functions are given the batch, or get it back."""
    tfdist.strategies.use_logical_cpus(2)
    strategy = tfdist.strategies.MirroredStrategy()
    with strategy.scope():
        inputs = keras.Input((WIDTH,))
        network = Model(inputs, keras.layers.Dense(1)(inputs))
        network.compile(keras.optimizers.SGD(0.1), "mse")
    strategy.loss_reduction = "mean"  # or the step would be tried before
    crossed: set[Path] = set()
    network.has_begun.clear()

    def note(frame: FrameType, event: str, value: Any) -> None:
        if network.has_begun.is_set() or event not in ("call", "return"):
            return
        code = frame.f_code
        count = code.co_argcount + code.co_kwonlyargcount + sum(bool(code.co_flags & flag) for flag in ARGUMENTS)
        given = [frame.f_locals.get(name) for name in code.co_varnames[:count]]
        where, held = (frame, given) if event == "call" else (frame.f_back, value)
        if where is not None and Path(where.f_code.co_filename).is_relative_to(PACKAGE) and holds(held):
            crossed.add(Path(where.f_code.co_filename))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        network.fit(np.ones((8, WIDTH), np.float32), np.ones((8, 1), np.float32), batch_size=4, verbose=0)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return sorted(str(one.relative_to(PACKAGE)) for one in crossed)
