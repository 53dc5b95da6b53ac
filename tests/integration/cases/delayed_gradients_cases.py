"""Pipelines that update weights after each micro-batch, beside a simulation of delayed gradients on one device."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from pipeline_cases import BATCH, ROWS, X, Y

from tests.integration.cases.resuming import far
from tfdist.strategies import PipelineStrategy


class Canary(keras.layers.Layer):
    """Multiplies by a weight, and notes which one its forward and its backward passes have."""

    def __init__(self, notes: list[tuple[str, float]], **options: Any) -> None:
        super().__init__(**options)
        self.note = notes.append

    def build(self, shape: Any) -> None:
        self.weight = self.add_weight(shape=(1,), initializer="ones")

    def call(self, x: Any) -> Any:
        def noted(kind: str, weight: Any) -> Any:
            def add(value: Any) -> Any:
                self.note((kind, float(value[0])))
                return value

            return tf.ensure_shape(tf.py_function(add, [weight], weight.dtype), [1])

        @tf.custom_gradient
        def product(x: Any, weight: Any) -> Any:
            def back(gradient: Any) -> Any:
                return gradient * noted("B", weight), tf.reshape(tf.reduce_sum(gradient * x), [1])

            return x * noted("F", weight), back

        return product(x, tf.convert_to_tensor(self.weight.value))

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def without_a_flush(mesh: str, schedule: str, recompute: bool) -> dict[str, Any]:
    """Train with updates after each micro-batch; return how far that is from a simulation, and the canary's notes."""
    notes: list[tuple[str, float]] = []
    over = PipelineStrategy(mesh=mesh, schedule=schedule, microbatches=4, recompute=recompute, stages=["third"])
    keras.utils.set_random_seed(7)
    with over.scope():
        model = _with_canary(notes)
    losses = model.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history["loss"]
    ours, told = model.get_weights(), list(notes)
    keras.utils.set_random_seed(7)
    one = _with_canary(notes)
    on_first = {id(weight) for layer in one.layers[:2] for weight in layer.weights}
    stages = [0 if id(weight) in on_first else 1 for weight in one.weights]
    wanted = _simulated(one, stages, predicts=schedule == "spectrain")
    return {
        "far": max(far(ours, one.get_weights()), float(np.max(np.abs(np.subtract(losses, wanted))))),
        "forward": [value for kind, value in told if kind == "F"],
        "backward": [value for kind, value in told if kind == "B"],
    }


def _with_canary(notes: list[tuple[str, float]]) -> keras.Model:
    layers = keras.layers
    inside = [layers.Dense(5, "tanh", kernel_regularizer="l2"), Canary(notes), layers.Dense(4, "tanh", name="third")]
    model = keras.Sequential([keras.Input((6,)), *inside, layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


def _simulated(model: keras.Model, stages: list[int], *, predicts: bool) -> list[float]:
    """Train on one device by delayed gradients, in two stages; return the losses of epochs.

    The first stage's pass of micro-batch m has the weights after m - 1 updates, the second stage's after m.
    """
    velocities, losses = [np.zeros(one.shape) for one in model.get_weights()], []
    for _ in range(2):
        total = 0.0
        for first in range(0, ROWS, BATCH):
            x, y = X[first : first + BATCH], Y[first : first + BATCH]
            count = min(4, len(x))
            bounds = [len(x) * number // count for number in range(count + 1)]
            versions = [(model.get_weights(), velocities)]
            for m in range(count):
                rows = slice(bounds[m], bounds[m + 1])
                used = []
                for place, stage in enumerate(stages):
                    version = m if stage == 1 else max(0, m - 1)
                    ahead = (m - version) * versions[version][1][place] if predicts else 0.0
                    used.append(versions[version][0][place] + ahead)
                model.set_weights(used)
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((y[rows] - model(x[rows], training=True)) ** 2) + sum(model.losses)
                gradients = tape.gradient(loss, [one.value for one in model.trainable_weights])
                total += float(loss) * (rows.stop - rows.start)
                newest = versions[m]
                velocities = [0.9 * v - 0.1 * g.numpy() for v, g in zip(newest[1], gradients, strict=True)]
                versions.append(([w + v for w, v in zip(newest[0], velocities, strict=True)], velocities))
            model.set_weights(versions[-1][0])
        losses.append(total / ROWS)
    return losses
