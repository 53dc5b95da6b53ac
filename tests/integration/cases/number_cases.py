"""Conversions by which users look at a number that was made in a strategy's scope."""

from typing import Any

import keras
import numpy as np

EXPECTED = {
    "during": ["2 0.125"],
    "rate": [0.125, 0.125],
    "iterations": [2, 2, True],
    "arrays": [0.125, [[0.0]]],
    "metric": [12.0, 12.0, 12],
    "numpy": 0.125,
}


def not_as_expected(strategy: Any) -> dict[str, Any]:
    """Return what a learning rate, iterations and a metric's total are converted to, where it is something else.

    Args:
        strategy: in whose scope a model of one weight trains for two steps of six examples.
    """
    during = []

    class Looks(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            optimizer = self.model.optimizer
            during.append(f"{int(optimizer.iterations)} {float(optimizer.learning_rate):.3f}")

    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
        model.compile(keras.optimizers.Adam(0.125), "mse")
    model.fit(np.zeros((12, 1)), np.ones((12, 1)), batch_size=6, verbose=0, callbacks=[Looks()])
    optimizer, (total, count) = model.optimizer, model.metrics[0].variables
    seen = {
        "during": during,
        "rate": [float(optimizer.learning_rate), float(optimizer.learning_rate.value)],
        "iterations": [int(optimizer.iterations), int(optimizer.iterations.value), bool(optimizer.iterations.value)],
        "arrays": [np.array(optimizer.learning_rate).tolist(), np.asarray(model.weights[0].value, "float64").tolist()],
        "metric": [float(total), np.asarray(total).tolist(), int(count)],
        "numpy": optimizer.learning_rate.numpy().item(),
    }
    return {name: value for name, value in seen.items() if value != EXPECTED[name]}
