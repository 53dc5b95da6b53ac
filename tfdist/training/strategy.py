"""What a `tf.distribute.Strategy` needs for Keras' `fit` to be right under it: a mix-in for tfdist's strategies."""

import secrets
from typing import Any

import tensorflow as tf

from tfdist.compat import keras_model, tf_strategies
from tfdist.training import callbacks, step
from tfdist.training import model as models
from tfdist.training.data import Input, Source
from tfdist.training.workers import Workers


class KerasTraining:
    """Adopts the Keras models that train under the strategy; to be listed before TensorFlow's strategy class.

    A subclass sets `_workers` before the first model trains.
    """

    _workers: Workers

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas over all workers; 1 inside a Keras step, which is computed as on one device."""
        return 1 if step.current() is not None else super().num_replicas_in_sync  # type: ignore[misc]

    @property
    def workers(self) -> Workers:
        """The worker processes of this strategy, and how they agree."""
        return self._workers

    @property
    def is_chief(self) -> bool:
        """Whether this process is the one that writes files and shows progress."""
        return self._workers.is_chief

    def scope(self) -> Any:
        """Return a context in which variables are created on every replica.

        Example:
            >>> with strategy.scope():                       # doctest: +SKIP
            ...     model = keras.Sequential([keras.layers.Dense(1)])
            ...     model.compile("sgd", "mse")
        """
        self._adopt_caller()
        return super().scope()  # type: ignore[misc]

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """Return the dataset distributed over the replicas; for a loop of your own as TensorFlow does it."""
        epoch_iterator = keras_model.calling_epoch_iterator()
        caller = None if epoch_iterator is None else self._adopt_caller()
        if epoch_iterator is None or caller is None:
            return super().experimental_distribute_dataset(dataset, options)  # type: ignore[misc]
        callbacks.quiet(caller, self._workers)
        batches = keras_model.batches_of(epoch_iterator)
        distributed = Input(
            dataset,
            batches=batches,
            local_replicas=self._slices,
            workers=self._workers,
            expect=lambda batches: keras_model.expect_batches(epoch_iterator, batches),
        )
        if distributed.source is Source.OWN:
            keras_model.set_batches(epoch_iterator, distributed.batches)
        return distributed

    def reduce(self, reduce_op: Any, value: Any, axis: Any) -> Any:
        """Reduce a value over replicas, as TensorFlow does.

        Example:
            >>> strategy.reduce("SUM", strategy.run(step), axis=None)    # doctest: +SKIP
        """
        # Keras takes the mean of a nest of per-replica batches to see their shapes, which may differ.
        if isinstance(value, (tuple, list, dict)) and keras_model.asks_for_shapes():
            return tf_strategies.first_local_value(value)
        return super().reduce(reduce_op, value, axis)  # type: ignore[misc]

    def on_variable(self) -> None:
        """Adopt the model whose `compile` is creating a variable, if one is: it may save before it trains."""
        compiling = keras_model.compiling_model(self)
        if compiling is not None:
            self._adopt(compiling)

    @property
    def _slices(self) -> int:
        """Into how many slices this process's part of a batch is cut."""
        return len(self.extended.worker_devices)  # type: ignore[attr-defined]

    def _adopt(self, model: Any) -> None:
        models.adopt(model, self, self._workers)

    def _adopt_caller(self) -> Any:
        caller = keras_model.calling_model(self)
        if caller is not None:
            self._adopt(caller)
        return caller


def agree_on_seed(workers: Workers) -> None:
    """Give workers that have set no seed the chief's, so that unseeded shuffles draw alike on all of them."""
    mine = tf_strategies.global_seed()
    drawn = secrets.randbits(48)
    seen = workers.gather([mine is not None, drawn])
    if not seen[:, 0].any():
        tf.random.set_seed(int(seen[0, 1]))
