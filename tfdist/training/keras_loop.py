"""The functions that Keras calls to train, test and predict, for any source of steps: replicas, or a chief."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import keras
import tensorflow as tf

from tfdist.compat.keras import keras_trainer, keras_variables
from tfdist.compat.keras.metrics import metric_resets
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compat.tensorflow import tf_data
from tfdist.compat.tensorflow.steps.traced_call import garbage_kept
from tfdist.errors import ConfigError, TfdistError, UnsupportedError
from tfdist.monitor.phases import Kind, Phase
from tfdist.monitor.process_clock import step_clock
from tfdist.training.epoch import Epoch
from tfdist.training.replica import batch_rows, replica_layers, replica_optimizers


class StepSource(Protocol):
    """A source of steps of training or of testing."""

    training: bool

    def running(self, iterator: Any) -> AbstractContextManager[None]:
        """Enclose the steps of one call of Keras."""

    def several(self, batches: Epoch, left: int) -> tuple[int, int, Any] | None:
        """Run steps in one graph; return None if the next step has to run alone.

        Returns:
            The number of steps that were begun, the number of batches for them, and the logs of the last step.
        """

    def step(self, element: Any, *, whole: bool) -> Any:
        """Run one step, on a `Batch` or on an element from a Keras loop for one batch; return its logs."""

    def drain(self) -> None:
        """Wait for steps that are under way, in the middle of an epoch."""


class Steps:
    """A function for Keras that runs `steps_per_execution` steps of an iterator and returns the logs of the last."""

    def __init__(self, model: keras.Model, source: StepSource) -> None:
        self.source = source
        self._model = model
        #: the logs that Keras was given last
        self.told: Any = None

    def __call__(self, iterator: Iterator[Any]) -> Any:
        batches, clock = iter(iterator), step_clock()
        whole = not isinstance(iterator, tf.distribute.DistributedIterator)
        logs, left = None, self._model.steps_per_execution
        metric_resets.note_steps(self._model)
        with self.source.running(iterator):
            try:
                clock.begin(Kind.TRAIN if self.source.training else Kind.TEST)
                while left:
                    if isinstance(batches, Epoch) and (several := self.source.several(batches, left)) is not None:
                        begun, taken, last = several
                        logs, left = (last if taken else logs), left - taken
                        if taken < begun:
                            break
                        continue
                    clock.enter(Phase.INPUT)
                    element = next(batches, None)
                    if element is None:
                        break
                    logs, left = self.source.step(element, whole=whole), left - 1
            finally:
                clock.end()
        if logs is None:
            raise StopIteration
        self.told = logs
        metric_resets.note_logs(self._model, logs)
        return logs

    def drain(self) -> None:
        """Wait for steps that are under way; a backup asks for it."""
        self.source.drain()


class Predictions:
    """A function for Keras that takes `steps_per_execution` batches, or their places, and returns all rows."""

    def __init__(
        self, rows_of: Callable[[list[Any]], list[Any]], running: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._rows_of = rows_of
        self._running = running

    def __call__(self, given: list[Any]) -> Any:
        with self._running():
            try:
                step_clock().begin(Kind.PREDICT)
                found = self._rows_of(given)
            finally:
                step_clock().end()
        if not found:
            raise StopIteration
        return found[0] if len(found) == 1 else tf.nest.map_structure(tf_data.joined, *found, expand_composites=False)


def build(model: keras.Model, iterator: Any = None, data_batch: Any = None) -> None:
    """Build unbuilt parts of a model from shapes and dtypes; no batch is taken from the input."""
    if keras_trainer.is_built(model):
        return
    replica_layers.require_no_state_of_rows(model)
    if model.optimizer is not None and not model.optimizer.built:
        strategy = model.distribute_strategy
        replica_optimizers.require_scope(model.optimizer, strategy)
        require_scope(model.trainable_weights, strategy)
    if iterator is not None:
        data_batch = keras_trainer.input_of(iterator).element_spec
    try:
        with garbage_kept(), metric_resets.first_values_kept(model):
            keras_trainer.symbolic_build(model, data_batch)
    except RuntimeError as error:  # Keras' advice on building models, with our message quoted in it
        if isinstance(error.__context__, TfdistError):
            raise error.__context__ from None
        raise


def batch_of(element: Any, strategy: Any) -> Any:
    """Return a single batch as tensors, with `Whole` inputs where the strategy names some."""
    return batch_rows.with_whole(tensors(element), strategy.whole_inputs)


def require_whole(whole: bool) -> None:
    if not whole:
        raise UnsupportedError(
            "the input was distributed by another way than fit's, and a pipeline has to know its sizes. Pass arrays or "
            "a tf.data.Dataset to fit, evaluate and predict."
        )


def tensors(element: Any) -> Any:
    """Return the nest with arrays as tensors, so that new values do not trace the step again."""
    keep = (tf.Tensor, tf.SparseTensor, tf.RaggedTensor, tf.distribute.DistributedValues, type(None))
    return tf.nest.map_structure(
        lambda leaf: leaf if isinstance(leaf, keep) else tf.convert_to_tensor(leaf), element, expand_composites=False
    )


def require_scope(weights: Sequence[Any], strategy: Any) -> None:
    """Raise if a weight that is trained was created outside the scope: replicas would wait for each other."""
    for variable in weights:
        if not tf_strategies.created_under(keras_variables.value_of(variable), strategy):
            path = getattr(variable, "path", variable.name)  # a `tf.Variable` has none
            raise ConfigError(
                f"the weight {path!r} was created outside the scope of {type(strategy).__name__}; it must be "
                "created inside, so that it exists on every replica. Build every layer that trains under "
                "`with strategy.scope():`, or freeze it (trainable=False).",
                name=path,
            )


def require_no_other_distribution(strategy: tf.distribute.Strategy) -> None:
    """Raise if Keras was asked to distribute training otherwise: its backend for TensorFlow would ignore that."""
    distribution = keras.distribution.distribution()
    heeds = getattr(strategy, "heeds", None)
    if distribution is None or (heeds is not None and heeds(distribution)):
        return
    replicas = sorted(name.lower().rsplit("device:", 1)[-1] for name in strategy.extended.worker_devices)
    asked = sorted(str(device).lower() for device in distribution.device_mesh.devices.flatten())
    if isinstance(distribution, keras.distribution.DataParallel) and asked == replicas:
        return
    raise UnsupportedError(
        f"keras.distribution.set_distribution was given {type(distribution).__name__} over {', '.join(asked)}, which "
        f"Keras ignores on TensorFlow, and {type(strategy).__name__} trains on {', '.join(replicas)}. Make the "
        "strategy by tfdist.strategies.from_distribution(), or take the distribution back: "
        "keras.distribution.set_distribution(None).",
        name="keras.distribution.set_distribution",
        received=f"{type(distribution).__name__} over {', '.join(asked)}",
    )
