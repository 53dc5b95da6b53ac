"""Cases of a step that several workers trace: its reductions and their order; each returns JSON values."""

import os
from typing import Any

import keras
import numpy as np
import refusal_fields
import tensorflow as tf
from multi_worker_cases import RANK, STRATEGY, X, Y, model

import tfdist.strategies
from tfdist import errors
from tfdist.compat.tensorflow.steps.replica_services import services

REDUCTIONS = (
    *("CollectiveReduceV2", "HorovodGroupedAllreduce", "HorovodAllreduce", "TfdistAllReduce"),
    "TfdistReduceScatter",  # where each worker updates its part
)


class Seen(keras.Model):
    """Keeps the gradients of its step, by the layers that they are of."""

    def __init__(self) -> None:
        """Create the layers in another order than that of use."""
        super().__init__()
        names = ("last", "first", "second")
        self.layer_of = {name: keras.layers.Dense(16, use_bias=False, name=name) for name in names}
        for layer in self.layer_of.values():
            layer.build((None, 16))

    def train_step(self, data: Any) -> dict[str, Any]:
        """Take gradients in the order of creation, which is not that of use."""
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.gradients = {v.path.split("/")[-2]: g for v, g in zip(self.trainable_variables, gradients, strict=True)}
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}

    def call(self, x: Any, training: bool = False) -> Any:
        """Use them in theirs."""
        for name in ("first", "second", "last"):
            x = self.layer_of[name](x)
        return x


def before(operation: tf.Operation) -> set[tf.Operation]:
    """Return what an operation waits for."""
    found: set[tf.Operation] = set()
    ahead = [operation]
    while ahead:
        one = ahead.pop()
        for other in {*(value.op for value in one.inputs), *one.control_inputs} - found:
            found.add(other)
            ahead.append(other)
    return found


def reductions_of_a_step(engine: str | None) -> dict[str, Any]:
    """Trace a step in buckets of one gradient each."""
    options: dict[str, Any] = {} if engine is None else {"collectives": engine}
    strategy = tfdist.strategies.create(
        os.environ["TFDIST_STRATEGY"], bucket_bytes=1500, loss_reduction="mean", **options
    )
    with strategy.scope():
        network = Seen()
        network.compile(keras.optimizers.SGD(0.1), "mse")
    rows = np.ones((8, 16), np.float32)
    network.fit(rows, rows, batch_size=8, verbose=0)
    graph = next(iter(network.gradients.values())).graph
    made = {name: gradient.op for name, gradient in network.gradients.items()}
    reduced = [operation for operation in graph.get_operations() if operation.type in REDUCTIONS]
    behind = [before(operation) for operation in reduced]
    needs = [sorted(name for name, operation in made.items() if operation in waits) for waits in behind]
    sizes = [max(value.shape.num_elements() or 0 for value in operation.inputs) for operation in reduced]
    mine = [place for place, size in enumerate(sizes) if size == 16 * 16]
    leave = [
        [name for name in needs[place] if all(name not in needs[p] for p in mine[:number])]
        for number, place in enumerate(mine)
    ]
    return {
        "leave": leave,
        "needs": [needs[place] for place in mine],
        "waits": [[str(sizes[p]) for p, other in enumerate(reduced) if other in waits] for waits in behind],
        "others_need": [needs[place] for place in range(len(reduced)) if place not in mine],
    }


def measured_buckets() -> dict[str, Any]:
    """Let a strategy measure; and ask for buckets that there are not."""
    strategy = tfdist.strategies.create(os.environ["TFDIST_STRATEGY"], bucket_bytes="auto")
    try:
        tfdist.strategies.create(os.environ["TFDIST_STRATEGY"], bucket_bytes="large")
    except errors.ConfigError as error:
        return {"mebibytes": services(strategy).bucket_bytes >> 20, "refused": refusal_fields.fields(error)}
    return {}


def models_that_differ() -> str:
    """Train a model of which one worker has frozen a layer."""
    network = model()
    network.layers[0].trainable = RANK == 0
    with STRATEGY.scope():
        network.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    try:
        network.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    except errors.DisagreementError as error:
        return str(error)
    return "trained"
