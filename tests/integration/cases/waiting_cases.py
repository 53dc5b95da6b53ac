"""Stages that wait in the middle of a step for what another one must be able to do meanwhile."""

import time
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from pipeline_cases import RANK, X, Y, strategy

MICROBATCHES = 3
_DEADLINE_SECONDS = 60


class Waiting(keras.layers.Layer):
    """Lets its last forward or backward pass of a step wait for a file, and notes whether it came."""

    def __init__(self, kind: str, file: Path, notes: list[bool], **options: Any) -> None:
        super().__init__(**options)
        self.kind, self.file, self.note = kind, file, notes.append
        self.passes = 0

    def call(self, x: Any) -> Any:
        def through(kind: str, value: Any) -> Any:
            if kind != self.kind:
                return tf.identity(value)
            return tf.ensure_shape(tf.py_function(self._awaited, [value], value.dtype), value.shape)

        def passed(value: Any) -> Any:
            return through("forward", value), lambda gradient: through("backward", gradient)

        return tf.custom_gradient(passed)(x)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape

    def _awaited(self, value: Any) -> Any:
        self.passes += 1
        if self.passes == MICROBATCHES:
            deadline = time.monotonic() + _DEADLINE_SECONDS
            while not self.file.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            self.note(self.file.exists())
        return value


class Telling(keras.layers.Layer):
    """Makes a file when it computes."""

    def __init__(self, file: Path, **options: Any) -> None:
        super().__init__(**options)
        self.told = file.touch

    def call(self, x: Any) -> Any:
        return _telling(self.told, x)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


class TellingConstraint(keras.constraints.Constraint):
    """Makes a file when a weight has been updated."""

    def __init__(self, file: Path) -> None:
        self.told = file.touch

    def __call__(self, w: Any) -> Any:
        return _telling(self.told, w)


def drained(mesh: str, folder: str) -> list[bool]:
    """Train one step; return whether this process's last backward pass saw that the last stage has updated."""
    notes: list[bool] = []
    over = strategy(mesh, microbatches=MICROBATCHES, stages=("second",))
    last = RANK - over.stage + over.mesh.size_of("pipeline") - 1  # of this process's replica
    with over.scope():
        waiting = Waiting("backward", Path(folder, str(last)), notes)
        constraint = TellingConstraint(Path(folder, str(RANK)))
        model = _model(waiting, keras.layers.Dense(4, kernel_constraint=constraint, name="second"))
    model.fit(X[:12], Y[:12], batch_size=12, verbose=0)
    return notes


def sent(mesh: str, folder: str) -> dict[str, Any]:
    """Train one step; return whether the first stage's last forward pass saw that the next one has begun, and threads.

    With one thread a send may wait for all passes, or may not: that depends on what was ready when.
    """
    notes: list[bool] = []
    over = strategy(mesh, microbatches=MICROBATCHES, stages=("second",), schedule="gpipe")
    with over.scope():
        file = Path(folder, "begun")
        model = _model(Waiting("forward", file, notes), Telling(file, name="second"))
    model.fit(X[:12], Y[:12], batch_size=12, verbose=0)
    return {"saw": notes, "threads": tf.config.threading.get_inter_op_parallelism_threads()}


def _model(first: keras.layers.Layer, second: keras.layers.Layer) -> keras.Model:
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(6), first, second, keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    return model


def _telling(tell: Any, value: Any) -> Any:
    def told(value: Any) -> Any:
        tell()
        return value

    def passed(value: Any) -> Any:
        return tf.ensure_shape(tf.py_function(told, [value], value.dtype), value.shape), lambda gradient: gradient

    return tf.custom_gradient(passed)(value)
