"""Estimate, during training, the batch size beyond which a larger batch stops paying."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import validation
from tfdist.callbacks.noise_scale_math import Averages, Norms, verdict
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat.keras import keras_trainer, stateless_scope
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.gradients.reduction import replica_sums
from tfdist.monitor.phases import Activity
from tfdist.monitor.process_clock import step_clock
from tfdist.training.replica import batch_rows, current_step

__all__ = ["GradientNoiseScale"]

_PARTS = 8
_untraced = tf.autograph.experimental.do_not_convert


class GradientNoiseScale(keras.callbacks.Callback):
    """A callback that measures the gradient noise scale: the batch size up to which a larger batch saves steps.

    With G the gradient of the loss over all data and S the covariance of the gradient of one example,

        E |G_B|^2 = |G|^2 + tr(S) / B        for the gradient G_B of B examples
        noise scale = tr(S) / |G|^2          in examples (the paper's B_simple)

    Every ``every`` batches, B examples are taken from ``data``, in ``parts`` small batches of B / parts. Each replica
    computes the gradients of its small batches with the present weights, as in a training step; the mean of all is the
    gradient of B. Both give unbiased estimates of |G|^2 and tr(S), which are averaged separately.

    Guaranteed: training is the same with it and without: no weight, slot, metric, moving statistic or random state
    changes. It works on one device and in every scope of tfdist. On any number of replicas the estimates are those of
    one device, up to rounding, where the model's output for an example does not depend on others or on chance.

    The logs of every epoch get ``noise_scale``, for later callbacks and History. At the end of training a sentence says
    which batch is too large to pay off.

    Args:
        data: examples like those of the training, the same on every worker: a tuple of arrays, or nests of them,
            ``(inputs, targets)`` or ``(inputs, targets, weights)``, from which examples are drawn at random; or a
            `tf.data.Dataset` of batches of at least ``batch_size`` examples, which restarts when it ends.
        batch_size: B, the number of examples of a measurement. The global batch of the training is a good choice; a
            batch much smaller than the noise scale needs more measurements.
        every: the number of training batches between measurements, each of which costs about a step of B examples.
        parts: the number of small batches, a multiple of the number of replicas that divides B; None: about 8.
        decay: the decay of the moving averages, per measurement.
        seed: the seed of the random choice of examples.
        verbose: whether to print the sentence at the end.

    Attributes:
        averages: `tfdist.callbacks.noise_scale_math.Averages`, with the estimates of |G|^2 and tr(S) too.

    Raises:
        ConfigError: a number is out of its range; in `fit`: ``parts`` does not suit replicas and ``batch_size``, a
            batch of the data is too small, or the model is not compiled with a loss.
        ConfigTypeError: ``data`` has another type.

    Example:
        >>> from tfdist.callbacks import GradientNoiseScale
        >>> import numpy as np
        >>> random = np.random.default_rng(0)
        >>> x, y = random.normal(size=(64, 4)), random.normal(size=64)
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> scale = GradientNoiseScale((x, y), batch_size=16, every=2, verbose=False)
        >>> history = model.fit(x, y, batch_size=16, epochs=3, callbacks=[scale], verbose=0)
        >>> len(history.history["noise_scale"])
        3

    Source: S. McCandlish, J. Kaplan, D. Amodei et al., "An Empirical Model of Large-Batch Training", 2018, appendix
    A.1. There the small batch is a replica's batch, in the training step itself; here it is measured separately, so
    that it does not depend on the number of replicas. With mixed float16 gradients are not scaled, so small ones may be
    lost.
    """

    def __init__(
        self,
        data: Any,
        *,
        batch_size: int,
        every: int = 100,
        parts: int | None = None,
        decay: float = 0.95,
        seed: int = 0,
        verbose: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(data, (tuple, tf.data.Dataset)) or (isinstance(data, tuple) and len(data) not in (2, 3)):
            required = "a tuple of arrays, (inputs, targets[, weights]), or a tf.data.Dataset of batches."
            raise validation.mismatch("data", data, required, kind=ConfigTypeError)
        self.batch_size = validation.integer("batch_size", batch_size, minimum=2)
        self.every = validation.integer("every", every, minimum=1)
        self.parts = None if parts is None else validation.integer("parts", parts, minimum=2)
        self.seed = validation.integer("seed", seed, minimum=0)
        self.verbose = validation.boolean("verbose", verbose)
        self.averages = Averages(decay)
        self._data = data
        self._batches: Iterator[Any] | None = None
        self._seen = 0
        self._measure: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Check that the numbers suit the replicas."""
        self._strategy = self.model.distribute_strategy or tf.distribute.get_strategy()
        if keras_trainer.has_own_train_step(self.model) or self.model.loss is None:
            raise ConfigError(
                f"the model {self.model.name!r} has a train_step of its own, or no loss; the gradient noise scale is "
                "that of the loss given to compile(). Compile it with one.",
                name=self.model.name,
            )
        self._parts = _parts(self.parts, self.batch_size, tf_strategies.replica_count(self._strategy))
        self._unseeded = keras_trainer.global_seed_generator()

        def on_replicas(batch: Any) -> tf.Tensor:
            return tf_strategies.first_local_value(self._strategy.run(_untraced(self._on_replica), args=(batch,)))

        self._measure = tf.function(_untraced(on_replicas))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Measure when a measurement is due."""
        if self._seen % self.every == 0:
            self.averages.add(self._norms())
        self._seen += 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Log the noise scale."""
        if logs is not None:
            logs["noise_scale"] = self.averages.noise_scale

    def on_train_end(self, logs: Any = None) -> None:
        """Print which batch size is too large."""
        if self.verbose and getattr(self._strategy, "is_chief", True):
            sys.stdout.write(f"{verdict(self.averages, self.batch_size)}\n")
            sys.stdout.flush()

    def get_state(self) -> dict[str, Any]:
        """Return the state that `BackupAndRestore` keeps."""
        return {"seen": self._seen, **self.averages.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Resume from a state."""
        self._seen = int(state["seen"])
        self.averages.set_state(state)

    def _norms(self) -> Norms:
        workers = getattr(self._strategy, "workers", None)
        with contextlib.ExitStack() as stack:
            stack.enter_context(step_clock().doing(Activity.BETWEEN))
            if isinstance(workers, Workers):
                stack.enter_context(workers.waiting("the gradient noise scale"))
            small, big = self._measure(self._examples()).numpy().tolist()
        return Norms(small_batch=self.batch_size // self._parts, big_batch=self.batch_size, small=small, big=big)

    def _examples(self) -> Any:
        if isinstance(self._data, tuple):
            rows = len(tf.nest.flatten(self._data)[0])
            # With replacement, so that examples are independent; from the measurement's number, so that a training that
            # continues from a backup draws what it would have drawn, and all workers draw the same.
            chosen = np.random.default_rng([self.seed, self._seen]).integers(rows, size=self.batch_size)
            return tf.nest.map_structure(lambda array: tf.convert_to_tensor(np.asarray(array)[chosen]), self._data)
        batch = next(self._batches, None) if self._batches is not None else None
        if batch is None:
            self._batches = iter(self._data)
            batch = next(self._batches, None)
        batch = None if batch is None else batch_rows.with_whole(batch, getattr(self._strategy, "whole_inputs", ()))
        rows = 0 if batch is None else int(batch_rows.rows_of(batch))
        if rows < self.batch_size:
            raise ConfigError(
                f"a batch of data has {rows} examples; GradientNoiseScale(batch_size={self.batch_size}) needs as many "
                f"in each. Make it with .batch({self.batch_size}, drop_remainder=True).",
                name="data",
                received=rows,
            )
        return batch_rows.slice_rows(batch, tf.constant(0), tf.constant(self.batch_size))

    def _on_replica(self, batch: Any) -> tf.Tensor:
        """Return the mean of the small batches' squared norms, and the squared norm of their mean, float64 ``[2]``."""
        keras_trainer.use_global_seed_generator(self._unseeded)
        variables = [variable.value for variable in self.model.trainable_variables]
        rows, mine = self.batch_size // self._parts, self._parts // tf_strategies.replica_count(self._strategy)
        first = mine * tf_strategies.replica_index()
        squares = tf.zeros([], tf.float64)
        sums = [tf.zeros(variable.shape, variable.dtype) for variable in variables]
        # One scope for all parts: nothing is changed outside, and each part draws other random numbers.
        with stateless_scope.CapturedUpdates([]):
            for part in range(first, first + mine):
                gradients = self._gradients(
                    batch_rows.slice_rows(batch, part * rows, (part + 1) * rows), rows, variables
                )
                squares += _squared_norm(gradients)
                sums = [total + gradient for total, gradient in zip(sums, gradients, strict=True)]
        labels = ["gradient noise"] * (len(sums) + 1)
        squares, *sums = replica_sums.sum_over_replicas([squares, *sums], labels=labels)
        return tf.stack([squares / self._parts, _squared_norm(sums) / self._parts**2])

    def _gradients(self, part: Any, rows: int, variables: list[Any]) -> list[tf.Tensor]:
        """Return the gradients of a small batch, as if it were trained on alone."""
        x, y, weights = keras.utils.unpack_x_y_sample_weight(batch_rows.plain(part))
        alone = current_step.Step(rows=tf.constant(rows), global_rows=tf.constant(rows), all_reduce=list)
        with alone, tf.GradientTape() as tape:
            loss = self.model.compute_loss(x, y, self.model(x, training=True), weights, training=True)
        found = tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return [tf.convert_to_tensor(gradient) for gradient in found]


def _squared_norm(tensors: list[tf.Tensor]) -> tf.Tensor:
    return tf.add_n([tf.reduce_sum(tf.square(tf.cast(tensor, tf.float64))) for tensor in tensors])


def _parts(parts: int | None, batch_size: int, replicas: int) -> int:
    """Return the number of small batches.

    Example:
        >>> _parts(None, 48, 3)
        6
    """
    suits = [n for n in range(max(2, replicas), batch_size + 1) if batch_size % n == 0 and n % replicas == 0]
    if parts is None and suits:
        return min(suits, key=lambda n: (abs(n - _PARTS), n))
    if parts is None or parts not in suits:
        hint = f"Take one of {suits}." if suits else "Take another batch_size."
        raise ConfigError(
            f"parts is {parts} with batch_size={batch_size} on {validation.counted(replicas, 'replica')}; it must be "
            f"at least 2, a multiple of the replicas, and divide the batch. {hint}",
            name="parts",
            received=parts,
        )
    return parts
