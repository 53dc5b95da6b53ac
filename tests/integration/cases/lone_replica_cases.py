"""Training on a single replica per process, whose graph takes batches, against the same with batches from Python."""

from collections.abc import Iterator, Mapping
from typing import Any

import keras
import mirrored_cases
import numpy as np
import tensorflow as tf

import tfdist.strategies
from tfdist import cluster
from tfdist.monitor.observer import StepObserver
from tfdist.monitor.phases import Phase
from tfdist.monitor.process_clock import step_clock

WORKERS = cluster.from_environment().num_workers
STRATEGY = mirrored_cases.STRATEGY if WORKERS > 1 else tfdist.strategies.MirroredStrategy(["CPU:0"])
X, Y = mirrored_cases.X, mirrored_cases.Y


class Divides(StepObserver):
    """An observer for which Python takes the batches."""

    def on_step(self, step: int, spent: Mapping[Phase, int], now: int) -> None:
        pass


def _pieces() -> Iterator[tuple[Any, Any]]:
    """Batches of a number that nobody knows before, the last of them smaller."""
    for first in range(0, len(X), 8):
        yield X[first : first + 8], Y[first : first + 8]


def _trained(data: dict[str, Any], **compile_options: Any) -> dict[str, Any]:
    with STRATEGY.scope():
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        network = mirrored_cases.model(optimizer=optimizer, metrics=["mae"], **compile_options)
    history = network.fit(**data, epochs=2, shuffle=False, verbose=0, validation_data=(X[:9], Y[:9])).history
    return {
        "weights": np.concatenate([w.ravel() for w in network.get_weights()]).tolist(),
        "history": history,
        "steps": int(network.optimizer.iterations.numpy()),
        "in_a_graph": bool(network.train_function.source.run._single),
    }


def both_ways() -> dict[str, Any]:
    """Return results of fits whose graph takes batches, also if made ahead, and of fits with batches from Python."""
    pieces = tf.data.Dataset.from_generator(
        _pieces, output_signature=(tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1]))
    )
    inputs = {"arrays": {"x": X, "y": Y, "batch_size": 8}, "pieces": {"x": pieces}}
    seen: dict[str, Any] = {"graph": {name: _trained(data) for name, data in inputs.items()}}
    clock = step_clock()
    clock.stand_by = lambda prepare: prepare()  # type: ignore[method-assign]
    try:
        seen["made ahead"] = {"arrays": _trained(inputs["arrays"])}
    finally:
        del clock.stand_by
    observer = Divides()
    step_clock().attach(observer)
    try:
        seen["python"] = {name: _trained(data) for name, data in inputs.items()}
    finally:
        step_clock().detach(observer)
    return seen


def error_of_input() -> dict[str, Any]:
    """Return the type of error that `fit` raises if the input fails halfway, and the steps of a later `fit`."""

    def failing() -> Iterator[tuple[Any, Any]]:
        yield next(_pieces())
        yield next(_pieces())
        raise ValueError("the third disk is gone")

    with STRATEGY.scope():
        network = mirrored_cases.model()
    signature = (tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1]))
    data = tf.data.Dataset.from_generator(failing, output_signature=signature)
    try:
        network.fit(data.apply(tf.data.experimental.assert_cardinality(5)), verbose=0)
        raised = "none"
    except (tf.errors.OpError, ValueError) as found:
        raised = type(found).__name__
    in_a_graph = bool(network.train_function.source.run._single)
    return {"raised": raised, "in_a_graph": in_a_graph, "steps": _trained({"x": X, "y": Y, "batch_size": 8})["steps"]}
