"""Steps that look at the whole batch or at their own gradients, beside one device."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist.strategies

STRATEGY = tfdist.strategies.from_environment()
# batches of 8, 8 and 5 examples
X = np.random.RandomState(0).normal(size=(21, 4)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)
BATCH = 8

Step = Callable[[Any, Any], dict[str, Any]]


class Own(keras.Model):
    """A model with two networks and a step that is given to it."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.net = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(3)]
        )
        self.step = step

    def call(self, inputs: Any) -> Any:
        return self.net(inputs)

    def train_step(self, data: Any) -> dict[str, Any]:
        return self.step(self, data)


@contextlib.contextmanager
def _said() -> Iterator[list[str]]:
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tfdist").addHandler(handler)
    try:
        yield said
    finally:
        logging.getLogger("tfdist").removeHandler(handler)


def _both(step: Step, *, rows: int = len(X), rate: float = 0.05, **options: Any) -> dict[str, Any]:
    """Return how far weights and logs are from those of one device, and what is said."""

    def run(scope: Any) -> list[Any]:
        keras.utils.set_random_seed(3)
        with scope:
            model = Own(step)
            model.build((None, 4))
            model.compile(keras.optimizers.SGD(rate), **options)
        history = model.fit(X[:rows], Y[:rows], batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
        return [*model.get_weights(), *map(np.array, history.values())]

    with _said() as said:
        under = run(STRATEGY.scope())
    one = run(contextlib.nullcontext())
    return {"apart": max(float(np.abs(a - b).max()) for a, b in zip(under, one, strict=True)), "said": said}


def _contrast(reduce: Callable[[Any], Any], axis: int) -> Step:
    def step(model: Own, data: Any) -> dict[str, Any]:
        replica = tf.distribute.get_replica_context()
        number = replica.replica_id_in_sync_group
        owners = replica.all_gather(tf.fill(tf.shape(data[0])[:1], number), axis=0)
        places = tf.where(tf.equal(owners, number))[:, 0]
        with tf.GradientTape() as tape:
            queries, keys = model.net(data[0]), model.net(data[0] + 0.1 * data[1])
            keys = keys if axis == 0 else tf.transpose(keys)
            candidates = replica.all_gather({"keys": keys}, axis=axis)["keys"]
            similar = 3.0 * tf.matmul(queries, candidates, transpose_b=axis == 0)
            places = places[: tf.shape(queries)[0]]  # a replica without examples computes one, and has no place
            similar = similar[: tf.shape(places)[0]]
            loss = reduce(tf.nn.sparse_softmax_cross_entropy_with_logits(places, similar))
        model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return {"contrast": loss}

    return step


def contrast() -> dict[str, Any]:
    """A contrastive loss with candidates from all replicas, of uneven batches and of one that leaves replicas empty."""
    return {
        "mean": _both(_contrast(tf.reduce_mean, 0)),
        "columns": _both(_contrast(tf.reduce_mean, 1), steps_per_execution=3),
        "empty": _both(_contrast(tf.reduce_mean, 0), rows=BATCH + 1),
        "eagerly": _both(_contrast(tf.reduce_mean, 0), rows=BATCH + 5, run_eagerly=True),
    }
