"""A model whose layers sleep, and record the begin and end of each forward and backward pass."""

import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.strategies import PipelineStrategy

#: kind ("forward" or "backward"), micro-batch, part of the model, begin and end in seconds of the host's clock
Note = tuple[str, int, int, float, float]


class Sleeping(keras.layers.Layer):
    """A layer that passes its input on after some time, forward and backward."""

    def __init__(self, part: int, seconds: tuple[float, float], note: Callable[[Note], None], **options: Any) -> None:
        super().__init__(**options)
        self._part, self._seconds, self._tell = part, seconds, note

    def build(self, shape: Any) -> None:
        """Create a weight, without which there would be no backward pass."""
        self._weight = self.add_weight(shape=(1,), initializer="zeros")

    def call(self, x: Any) -> Any:
        @tf.custom_gradient
        def passed(x: Any, weight: Any) -> Any:
            def back(gradient: Any) -> Any:
                return self._slept("backward", x, gradient), tf.zeros_like(weight)

            return self._slept("forward", x, x), back

        return passed(x, tf.convert_to_tensor(self._weight.value))

    def compute_output_shape(self, shape: Any) -> Any:
        return shape

    def _slept(self, kind: str, numbers: Any, value: Any) -> Any:
        """Return a value after some time; every element of a micro-batch is the micro-batch's number."""

        def sleep(numbers: Any, value: Any) -> Any:
            begin = time.monotonic()
            time.sleep(self._seconds[kind == "backward"])
            microbatch = round(float(numbers[0, 0]))
            self._tell((kind, microbatch, self._part, begin, time.monotonic()))
            return value

        return tf.ensure_shape(tf.py_function(sleep, [numbers, value], value.dtype), value.shape)


def step(schedule: str, stages: int, microbatches: int, chunks: int, forward: float, backward: float) -> list[Note]:
    """Run two steps in every process of a job at once; return this process's record of the second."""
    notes: list[Note] = []
    strategy = PipelineStrategy(
        stages=stages, microbatches=microbatches, schedule=schedule, chunks=chunks, timeout_seconds=120
    )
    with strategy.scope():
        layers = [Sleeping(part, (forward, backward), notes.append) for part in range(stages * chunks)]
        model = keras.Sequential([keras.Input((1,)), *layers])
        model.compile(keras.optimizers.SGD(1e-9, momentum=0.9), "mse")
    numbers = np.arange(microbatches, dtype="float32")[:, None]
    for _ in range(2):  # the first waits for what the others still trace
        notes.clear()
        model.fit(numbers, numbers, batch_size=microbatches, shuffle=False, verbose=0)
    return notes
