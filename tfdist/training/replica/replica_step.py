"""The step of one replica: the frame around the user's code, for any destination of its gradients and results.

A sink takes the results. Two are for training: `OwnVariables`, where a replica applies the reduced gradients itself,
and `gradient_push.ToChief`, where a worker of parameter servers changes nothing. A third, in `tried_step`, only looks.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras import keras_trainer
from tfdist.training.replica import (
    across,
    batch_rows,
    current_step,
    replica_layers,
    replica_losses,
    replica_metrics,
    replica_optimizers,
    states,
    xla_step,
)


class ReplicaStep:
    """A `train_step` or `test_step`, run on one replica."""

    def __init__(
        self,
        model: keras.Model,
        user_step: Callable[[Any], Any],
        unseeded: Any,
        *,
        training: bool,
        is_compiled: bool = False,
    ) -> None:
        self._model = model
        self._user_step = _within(user_step)
        self._unseeded = unseeded
        self._is_compiled = is_compiled
        self._weighs_loss = training and not keras_trainer.has_own_train_step(model)

    def __call__(self, data: Any, sink: current_step.Sink, **shares: Any) -> Any:
        adapt(self._model, self._unseeded)
        given, data = data, batch_rows.plain(data)
        with (
            current_step.Step(weighs_loss=self._weighs_loss, sink=sink, **shares) as current,
            across.exchanging(current),
        ):
            current.counts_by_whole = batch_rows.whole_first_input(given) is not None
            if tf.executing_eagerly():
                current.meeting = functools.partial(keras_trainer.added_losses_kept, self._model)
            sink.begin(current, asks=not keras_trainer.logs_by_itself(self._model, self._user_step))
            logs = xla_step.run(self._user_step, data, current) if self._is_compiled else self._user_step(data)
            current.result_of = None
            return sink.end(logs)


def _within(user_step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a step that is traced within the graph of the replica, also if it is a `tf.function`.

    In a graph of its own it would hold what replicas put together after it, such as gradients.
    """
    if not isinstance(user_step, tf.types.experimental.PolymorphicFunction):
        return user_step
    function = user_step.python_function
    try:
        return tf.autograph.to_graph(function)
    except Exception:  # noqa: BLE001 - there is no source to convert, and perhaps nothing to convert
        return function


class OwnVariables:
    """The sink of a replica that changes its own variables, like all other replicas."""

    def __init__(self, model: keras.Model, *, training: bool) -> None:
        self._model = model
        self._training = training

    def begin(self, current: current_step.Step, *, asks: bool) -> None:
        """Record the metrics' former counts, and the initial states of sums of changes."""
        self._current = current
        self._states = states.before(self._model, current) if self._training else {}
        self._totals = replica_metrics.Totals(self._model, replica_metrics.snapshot(self._model), current)
        current.result_of = self._totals.result if asks else None

    #: applies the gradients of the global batch
    apply = staticmethod(replica_optimizers.apply_here)

    def end(self, logs: Any) -> Any:
        return replica_metrics.synchronise(
            self._model, logs, self._totals, self._current, before=self._states, training=self._training
        )


def predict(model: keras.Model, unseeded: Any, data: Any, current: current_step.Step) -> Any:
    """Return the model's outputs for a part of a batch.

    Rows of padding are dropped; the model decides the number of output rows for each example.
    """
    keras_trainer.use_global_seed_generator(unseeded)
    replica_layers.adapt(model, unseeded)
    data = batch_rows.plain(data)
    with current:
        outputs = xla_step.program(lambda: model.predict_step(data)) if model.jit_compile else model.predict_step(data)
        return batch_rows.slice_rows(outputs, tf.constant(0), tf.where(current.rows > 0, tf.int32.max, 0))


def adapt(model: keras.Model, unseeded: Any) -> None:
    keras_trainer.use_global_seed_generator(unseeded)
    replica_layers.adapt(model, unseeded)
    replica_metrics.adapt(model)
    replica_losses.adapt(model)
    states.adapt(model)
