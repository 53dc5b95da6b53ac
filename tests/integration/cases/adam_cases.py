"""Keras' Adam by calls of one function and by operations of its own, in a worker process with two logical CPUs."""

from typing import Any

import keras
import numpy as np
from mirrored_cases import STRATEGY, X, Y, model

from tfdist.compat.keras import called_updates


class OperationByOperation(keras.optimizers.Adam):
    """Keras' updates, in a class of its own."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        keras.optimizers.Adam.update_step(self, gradient, variable, learning_rate)


def bits_of_all_variables(dtype: str, **options: Any) -> list[dict[str, Any]]:
    """The values of both after five steps on two replicas, and how many updates were calls in a trace of the step."""
    return [_trained(kind, dtype, **options) for kind in (keras.optimizers.Adam, OperationByOperation)]


def _trained(kind: type, dtype: str, **options: Any) -> dict[str, Any]:
    calls: list[bool] = []
    known, floatx = called_updates._called, keras.config.floatx()

    def counted(*given: Any) -> bool:
        calls.append(known(*given))
        return calls[-1]

    keras.config.set_floatx(dtype)
    called_updates._called = counted
    try:
        rate = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
        with STRATEGY.scope():
            ours = model(optimizer=kind(rate, **options))
        ours.fit(X.astype(dtype), Y.astype(dtype), batch_size=8, shuffle=False, verbose=0)
    finally:
        called_updates._called = known
        keras.config.set_floatx(floatx)
    variables = [*ours.variables, *ours.optimizer.variables]
    copies = [copy for one in variables for copy in getattr(one.value, "values", [one.value])]
    return {"calls": sum(calls), "values": [np.asarray(copy.numpy()).tobytes().hex() for copy in copies]}
