"""A client's training and evaluation: one model and one graph for all rounds and clients of a process.

Arrays run through a graph that loops over the batches of a training. Data or models without such a graph (a dataset, a
strategy, a `fit` of the user's) are trained by `fit`, in the same order of examples.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfdist.compat.keras import keras_trainer
from tfdist.compression import Codec
from tfdist.federated.algorithms.algorithm import CONTROL, Algorithm
from tfdist.federated.client_update import Arrays, Update
from tfdist.federated.clients.client_data import Local, LocalArrays, LocalDataset
from tfdist.federated.clients.local_model import LocalModel, value_of
from tfdist.federated.clients.update_codec import UpdateCodec

EVALUATION_BATCH = 256


@dataclass(frozen=True)
class TrainTask:
    """A server's request to a client for one training; `seed` decides its order of examples and its dropout.

    `arrays` are the weights of the round and the server's control variates.
    """

    round: int
    attempt: int
    client: str
    seed: int
    arrays: Arrays
    counted: tuple[int, int] | None = None  # round and attempt of the client's last update that was used


class LocalTrainer:
    """A trainer and evaluator for one client after another."""

    def __init__(
        self,
        make_model: Callable[[], keras.Model],
        algorithm: Algorithm,
        personal: Sequence[str],
        compression: str | Codec | None = None,
    ) -> None:
        self.local = LocalModel(make_model, personal, algorithm)
        self.algorithm = algorithm
        self.codec = UpdateCodec(compression, self.local.weights())
        self.keeps_state = algorithm.has_controls or bool(self.local.personal) or self.codec.has_memory
        self._run: Any = None
        self._sent = dict[str, tuple[NDArray[Any], Any]]()  # the weights of a round, as tensors
        self._test: Any = None

    @property
    def model(self) -> keras.Model:
        return self.local.model

    def train(self, task: TrainTask, data: Local, state: Arrays) -> tuple[Update, Arrays]:
        """Train for a client whose state is ``state``; return its update and its new state."""
        controls = {
            name: np.asarray(array, np.float64) - state.get(name, 0.0)
            for name, array in task.arrays.items()
            if name.startswith(CONTROL)
        }
        corrections = {name.removeprefix(CONTROL): array for name, array in controls.items()}
        weights = {**task.arrays, **state}
        orders = orders_of(task.seed, data.examples, self.algorithm.epochs)
        if isinstance(data, LocalArrays) and self._has_graph():
            changes, metrics, steps = self._by_graph(weights, corrections, data, orders, task.seed)
        else:
            changes, metrics, steps = self._by_fit(weights, corrections, data, orders, task.seed)
        arrays = {name: changes[name] for name in self.local.shared}
        new_state = {name: value_of(variable) for name, variable in self.local.personal.items()}
        if self.algorithm.has_controls:
            metrics.pop("loss", None)  # has the correction in it
            scale = steps * float(self.local.model.optimizer.learning_rate)
            for name, control in controls.items():
                new_state[name] = -control - np.asarray(arrays[name.removeprefix(CONTROL)], np.float64) / scale
                arrays[name] = new_state[name] - state.get(name, 0.0)
        return Update(arrays, data.examples, metrics), new_state

    def evaluate(self, weights: Arrays, data: Local, state: Arrays) -> tuple[int, dict[str, float]]:
        """Evaluate weights on the data of a client whose state is ``state``; return the number of examples as well."""
        self.local.set_for_evaluation({**weights, **state})
        if isinstance(data, LocalDataset):
            found = self.model.evaluate(data.make(EVALUATION_BATCH, 0), verbose=0, return_dict=True)
            return data.examples, {name: float(value) for name, value in found.items()}
        if not self._has_graph():
            found = self.model.evaluate(*data.nest, batch_size=EVALUATION_BATCH, verbose=0, return_dict=True)
            return data.examples, {name: float(value) for name, value in found.items()}
        self._build(data)
        arguments = (_tensors(data), np.arange(data.examples, dtype=np.int32)[np.newaxis])
        if self._test is None:
            self._test = _traced(self._evaluation, (), arguments)
        return data.examples, _numbers(self._test(*arguments))

    # --- one graph for a training -------------------------------------------------------------------------------------
    def _has_graph(self) -> bool:
        model = self.model
        is_plain = model.distribute_strategy is tf.distribute.get_strategy() and not tf.distribute.has_strategy()
        return is_plain and type(model).fit is keras.Model.fit and not model.run_eagerly

    def _build(self, data: LocalArrays) -> None:
        if not keras_trainer.is_built(self.model):
            keras_trainer.symbolic_build(
                self.model, keras.tree.map_structure(lambda one: tf.constant(one[:1]), data.nest)
            )

    def _by_graph(
        self, weights: Arrays, corrections: Arrays, data: LocalArrays, orders: NDArray[np.int32], seed: int
    ) -> tuple[dict[str, NDArray[Any]], dict[str, float], int]:
        self._build(data)
        local = self.local
        given = self._tensors_of({name: weights[name] for name in local.shared})
        kept = {name: weights.get(name, local.initial[name]) for name in local.personal}
        types = {name: variable.dtype for name, variable in local.corrections.items()}
        corrected = {name: corrections[name].astype(dtype.as_numpy_dtype) for name, dtype in types.items()}
        fixed = (given, kept, corrected, local.seed_states(seed))
        if self._run is None:
            self._run = _traced(self._training, fixed, (_tensors(data), orders))
        changes, logs = self._run(*fixed, _tensors(data), orders)
        size = self.algorithm.batch_size or data.examples
        steps = len(orders) * -(-data.examples // size)
        return {name: change.numpy() for name, change in changes.items()}, _numbers(logs), steps

    def _tensors_of(self, arrays: Arrays) -> dict[str, Any]:
        """Return the arrays as tensors; those of the same round are converted once for all clients."""
        for name, array in arrays.items():
            if name not in self._sent or self._sent[name][0] is not array:
                self._sent[name] = (array, tf.convert_to_tensor(array))
        return {name: self._sent[name][1] for name in arrays}

    @tf.autograph.experimental.do_not_convert
    def _training(self, weights: Any, kept: Any, corrections: Any, seeds: Any, data: Any, orders: Any) -> Any:
        self.local.begin({**weights, **kept}, corrections, seeds)
        self._loop(self.model.train_step, data, orders, self.algorithm.batch_size)
        changes = {name: _difference(variable, weights[name]) for name, variable in self.local.shared.items()}
        return changes, self.model.get_metrics_result()

    @tf.autograph.experimental.do_not_convert
    def _evaluation(self, data: Any, order: Any) -> Any:
        self._loop(self.model.test_step, data, order, EVALUATION_BATCH)
        return self.model.get_metrics_result()

    def _loop(self, step: Callable[[Any], Any], data: Any, orders: Any, batch_size: int | None) -> None:
        """Run a step on each batch of each epoch; the metrics are those of the last epoch, as in the logs of `fit`."""
        epochs, rows = tf.unstack(tf.shape(orders))
        size = tf.constant(batch_size) if batch_size else rows
        steps = (rows + size - 1) // size

        def reset() -> Any:
            self.model.reset_metrics()
            return tf.constant(0)

        def body(index: Any) -> Any:
            epoch, begin = index // steps, index % steps * size
            tf.cond(tf.equal(begin, 0), reset, lambda: tf.constant(0))
            chosen = orders[epoch, begin : begin + size]
            step(keras.tree.map_structure(lambda array: tf.gather(array, chosen), data))
            return index + 1

        tf.while_loop(lambda index: index < epochs * steps, body, [tf.constant(0)])

    # --- fit ----------------------------------------------------------------------------------------------------------
    def _by_fit(
        self, weights: Arrays, corrections: Arrays, data: Local, orders: NDArray[np.int32], seed: int
    ) -> tuple[dict[str, NDArray[Any]], dict[str, float], int]:
        local = self.local
        local.begin(weights, corrections, local.seed_states(seed))
        history: Mapping[str, Sequence[float]] = {}
        if isinstance(data, LocalDataset):
            dataset = data.make(self.algorithm.batch_size, seed)
            history = self.model.fit(dataset, epochs=self.algorithm.epochs, shuffle=False, verbose=0).history
        else:
            for order in orders:
                rows = keras.tree.map_structure(lambda array, order=order: array[order], data.nest)
                size = self.algorithm.batch_size or data.examples
                history = self.model.fit(*rows, batch_size=size, shuffle=False, verbose=0).history
        changes = {name: _difference(variable, weights[name]).numpy() for name, variable in local.shared.items()}
        logs = {name: float(values[-1]) for name, values in history.items()}
        return changes, logs, int(self.model.optimizer.iterations)


def orders_of(seed: int, examples: int, epochs: int) -> NDArray[np.int32]:
    """Return the order of a client's examples in each epoch of a training."""
    generator = np.random.default_rng(seed)
    return np.stack([generator.permutation(examples) for _ in range(epochs)]).astype(np.int32)


def _difference(variable: Any, before: Any) -> Any:
    after = tf.convert_to_tensor(variable.value)
    wide = tf.float64 if after.dtype == tf.float64 else tf.float32
    return tf.cast(after, wide) - tf.cast(before, wide)


def _traced(function: Callable[..., Any], fixed: Any, varying: Any) -> Any:
    """Return the function as a graph, traced once for clients with any numbers of examples."""

    def spec(array: Any, *, is_fixed: bool) -> tf.TensorSpec:
        # an order has a row for each epoch, and all else a row for each example
        shape = array.shape if is_fixed else [None, None] if array is varying[-1] else [None, *array.shape[1:]]
        return tf.TensorSpec(shape, array.dtype)

    traced = tf.function(function, reduce_retracing=True)
    traced.get_concrete_function(
        *keras.tree.map_structure(lambda one: spec(one, is_fixed=True), fixed),
        *keras.tree.map_structure(lambda one: spec(one, is_fixed=False), varying),
    )
    return traced


def _tensors(data: LocalArrays) -> Any:
    return keras.tree.map_structure(tf.convert_to_tensor, data.nest)


def _numbers(logs: Any) -> dict[str, float]:
    return {name: float(value) for name, value in logs.items()}
