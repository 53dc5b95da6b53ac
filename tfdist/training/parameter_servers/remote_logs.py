"""Logs of a worker's step, computed by the chief from metrics over all parts of a batch."""

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras import metric_weights as keras_metrics
from tfdist.compat.tensorflow import replay as tf_replay
from tfdist.gradients.reduction import replica_sums
from tfdist.training.replica import current_step


class Logs:
    """What a step has asked metrics for, and what it has logged.

    A worker's metrics have counted a part of a batch, from zero. So results are only marked there, and what is made of
    them for the logs is made again by the chief, of its own metrics. What else is logged is a mean over the parts.
    """

    def __init__(self) -> None:
        self._results: list[tuple[keras.Metric, int, tf.Tensor]] = []
        self._structure: Any = None
        self._leaves: list[tf.Tensor | None] = []
        self._sent: list[tf.Tensor] = []
        self._replay: tf_replay.Replay | None = None

    def result(self, metric: keras.Metric) -> Any:
        """Return the result of a metric of this part, marked."""
        found = keras_metrics.own_result(metric)
        marked = [tf.identity(value) for value in tf.nest.flatten(found)]
        self._results += [(metric, place, value) for place, value in enumerate(marked)]
        return tf.nest.pack_sequence_as(found, marked)

    def take(self, logs: Any, current: current_step.Step) -> Iterator[tf.Tensor]:
        """Take what the step has logged; yield this part's share of what `put` will be given the sums of over parts."""
        self._structure = logs
        self._leaves = [None if leaf is None else tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(logs)]
        marked = {id(value) for _, _, value in self._results}
        if not tf.executing_eagerly():
            self._replay = tf_replay.Replay(self._symbolic(), [value for _, _, value in self._results])
            if any(not _averages(tensor) for tensor in self._replay.given):
                self._replay = None
        replayed = self._replay.depends if self._replay else [False] * len(self._leaves)
        scalars = [leaf for leaf in self._symbolic() if _averages(leaf) and leaf.shape.rank == 0]
        weights = {id(leaf): current.weight_of("log", leaf) for leaf in scalars}
        again = {id(leaf) for leaf, made in zip(self._symbolic(), replayed, strict=False) if made} | marked
        self._sent = [leaf for leaf in scalars if id(leaf) not in again]
        self._sent += self._replay.given if self._replay else []
        for tensor in self._sent:
            yield replica_sums.weighted(tensor, weights.get(id(tensor), current.share))

    def _symbolic(self) -> list[tf.Tensor]:
        return [leaf for leaf in self._leaves if leaf is not None]

    def put(self, means: list[tf.Tensor]) -> Any:
        """Return the logs, made of the chief's metrics and the means of what `take` gave; None for what has no mean."""
        values = {id(tensor): mean for tensor, mean in zip(self._sent, means, strict=True)}
        answers: dict[int, list[Any]] = {}
        for metric, place, value in self._results:
            if id(metric) not in answers:
                answers[id(metric)] = tf.nest.flatten(keras_metrics.own_result(metric))
            values[id(value)] = tf.convert_to_tensor(answers[id(metric)][place])
        if self._replay is not None:
            sources = [values[id(value)] for _, _, value in self._results]
            made = self._replay(sources, [values[id(tensor)] for tensor in self._replay.given])
            values |= {id(leaf): value for leaf, value in zip(self._symbolic(), made, strict=True) if value is not None}
        return tf.nest.pack_sequence_as(
            self._structure, [None if leaf is None else values.get(id(leaf)) for leaf in self._leaves]
        )


def _averages(tensor: tf.Tensor) -> bool:
    return bool(tensor.dtype.is_floating)
