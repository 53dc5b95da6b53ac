"""Cases of multi-worker training: each runs in every worker at once and returns JSON values."""

import contextlib
import gc
import logging
import os
import sys
import weakref
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import number_cases
import numpy as np
import pytest
import refusal_fields
import tensorflow as tf
from hearing import heard

import tfdist.strategies
from tfdist import errors
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.optimizers import DistributedOptimizer
from tfdist.training import chief_saving

STRATEGY = tfdist.strategies.from_environment()
RANK = int(os.environ["TFDIST_WORKER_INDEX"])
X = np.random.RandomState(0).normal(size=(40, 4)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


def model(seed: int = 0) -> keras.Model:
    """Return a compiled model whose initial weights come from a seed; unseeded shuffles then draw alike again."""
    with STRATEGY.scope():
        keras.utils.set_random_seed(seed)
        network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
        keras.utils.set_random_seed(0)
        network.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    return network


def weights(network: keras.Model) -> list[float]:
    return np.concatenate([w.ravel() for w in network.get_weights()]).tolist()


def seeds_that_differ() -> dict[str, Any]:
    network = model(seed=RANK)
    began = weights(network)
    network.fit(X, Y, batch_size=8, verbose=0)
    with STRATEGY.scope():  # what policies, quantization and layers of one's own make
        own = [tf.Variable(tf.cast([RANK, 100 + RANK], dtype)) for dtype in SMALL]
    return {"began": began, "ended": weights(network), "small": [one.numpy().astype(float).tolist() for one in own]}


SMALL = ("bfloat16", "float16", "int8", "uint8", "int16", "uint16", "uint32", "int64", "uint64", "complex64")


def data_that_differs(rows: list[int], shift: list[float]) -> str:
    try:
        model().fit(X[: rows[RANK]] + shift[RANK], Y[: rows[RANK]], batch_size=8, shuffle=False, verbose=0)
    except errors.DisagreementError as error:
        return str(error)
    return "trained"


def variables_that_differ(kind: str) -> list[str]:
    """Make a model that is another on the last worker, then one that is alike; return what became of both."""
    odd = int(os.environ["TFDIST_LOCAL_WORKERS"]) - 1 == RANK and kind
    said = []
    for is_odd in (odd, ""):
        shape = (4, 3) if is_odd == "transposed" else (3, 4)
        layers = [
            keras.layers.Dense(12, name="a"),
            keras.layers.Reshape(shape),
            keras.layers.Dense(5 if is_odd == "size" else 4, name="c"),
            keras.layers.Dense(1, name="b", dtype="float64" if is_odd == "dtype" else None),
        ]
        try:
            with STRATEGY.scope():
                network = keras.Sequential([keras.Input((4,)), *layers])
                network.compile("sgd", "mse")
            network.fit(X[:8], np.ones((8, shape[0], 1), np.float32), batch_size=8, verbose=0)
        except errors.DisagreementError as error:
            said.append(str(error))
        else:
            said.append("trained")
    return said


def generators_that_differ() -> str:
    def batches() -> Any:
        for i in range(0, 40 if RANK == 0 else 24, 8):
            yield X[i : i + 8], Y[i : i + 8]

    try:
        model().fit(batches(), verbose=0)
    except errors.DisagreementError as error:
        return str(error)
    return "trained"


def data_of_their_own(each: list[list[int]]) -> dict[str, Any]:
    """Each worker its own rows, of another number in each training; every example must count exactly once."""
    seen = keras.metrics.Sum(name="seen")
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF

    def dataset(rows: int) -> tf.data.Dataset:
        mine = (X[:rows], np.full((rows, 1), 1.0 + RANK, np.float32))
        return tf.data.Dataset.from_tensor_slices(mine).batch(6).with_options(options)

    class Counts(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            seen.update_state(data[1])
            return super().train_step(data) | {"seen": seen.result()}

        @property
        def metrics(self) -> list[keras.Metric]:
            return [*super().metrics, seen]

    with STRATEGY.scope():
        seen = keras.metrics.Sum(name="seen")
        network = Counts([keras.Input((4,)), keras.layers.Dense(1)])
        network.compile(keras.optimizers.SGD(0.01), "mse")
    return {
        "seen": [network.fit(dataset(rows[RANK]), epochs=2, verbose=0).history["seen"] for rows in each],
        "weights": weights(network),
        "steps": int(network.optimizer.iterations.numpy()),
    }


def callbacks_that_write(folder: str) -> dict[str, Any]:
    network = model()
    kinds, orbax = keras.callbacks, mock.MagicMock()
    sys.modules["orbax.checkpoint"] = orbax
    network.fit(
        X,
        Y,
        batch_size=8,
        epochs=3,
        verbose=2,
        validation_split=0.25,
        callbacks=[
            kinds.ModelCheckpoint(f"{folder}/whole.keras"),
            kinds.ModelCheckpoint(f"{folder}/part.weights.h5", save_weights_only=True, save_freq=2),
            kinds.CSVLogger(f"{folder}/log.csv"),
            kinds.TensorBoard(f"{folder}/board"),
            kinds.OrbaxCheckpoint(f"{folder}/orbax"),
        ],
    )
    network.save(f"{folder}/last.keras")
    again = keras.models.load_model(f"{folder}/last.keras")
    return {
        "same": all(np.array_equal(a, b) for a, b in zip(network.get_weights(), again.get_weights(), strict=True)),
        "orbax": orbax.v1.training.Checkpointer.return_value.save_checkpointables_async.call_count,
    }


def losses_counted_apart() -> dict[str, Any]:
    """Train on a sum, counted by a metric in `compute_loss`, beside one device; the model lists that metric alone."""

    class Sums(keras.Sequential):
        def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any, training: bool = True) -> Any:
            losses = tf.reduce_sum(tf.square(y - y_pred), axis=-1)
            self.counted.update_state(losses, sample_weight=sample_weight)
            return tf.reduce_sum(losses)

        def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
            return {"loss": self.counted.result()}

        @property
        def metrics(self) -> list[keras.Metric]:
            return [self.counted]

    def trained(scope: Any, **options: Any) -> tuple[list[float], list[float]]:
        with scope:
            keras.utils.set_random_seed(0)
            network = Sums([keras.Input((4,)), keras.layers.Dense(1)])
            network.counted = keras.metrics.Mean()
            network.compile(keras.optimizers.SGD(0.001), **options)
        history = network.fit(X, Y, batch_size=8, shuffle=False, verbose=0).history
        return weights(network), history["loss"]

    with heard() as said:
        found = trained(STRATEGY.scope())
    return {"found": found, "one": trained(contextlib.nullcontext(), run_eagerly=True), "said": said}


def loops_of_ones_own() -> dict[str, Any]:
    """Apply gradients of each worker's own, with and without `strategy.run`, and to a weight from outside the scope."""
    with STRATEGY.scope():
        weight = keras.Variable([1.0])
    outside = tf.Variable([1.0], name="outside")

    def told(kind: str, loop: Any, updated: Any = weight) -> list[str]:
        with STRATEGY.scope():
            optimizer = keras.optimizers.SGD(0.1, name=kind)
            optimizer.build([updated])
        with heard() as said:
            for _ in range(2):
                loop(lambda: optimizer.apply([tf.constant([1.0 + RANK])], [updated]))
        return said

    alone = [told("alone", lambda apply: apply()), told("alone_traced", lambda apply: tf.function(apply)())]
    together = [told("run", STRATEGY.run), told("run_traced", lambda apply: tf.function(lambda: STRATEGY.run(apply))())]
    with STRATEGY.scope():
        unbuilt = keras.optimizers.Adam(name="unbuilt")
    loops = [lambda: told("alone", lambda apply: apply(), outside), lambda: unbuilt.apply([tf.ones([1])], [weight])]
    refused = [refusal_fields.met(loop, errors.ConfigError) for loop in loops]
    return {"alone": alone, "together": together, "refused": refused}


def chief_saves_alone(folder: str) -> list[str]:
    """Save in the scope, where what Keras makes to save must not wait for other workers."""
    network = model()
    network.fit(X, Y, verbose=0)
    with STRATEGY.scope():
        if STRATEGY.is_chief:
            network.save(f"{folder}/chief.keras")
    network.fit(X, Y, verbose=0)
    return sorted(os.listdir(folder))


def saves_to_paths_of_their_own(folder: str) -> bool:
    """Save where no other worker does, as TensorFlow's guide has it; a worker that waits for the chief waits long."""
    network, own = model(), Path(folder) / str(RANK)
    own.mkdir()
    before, same = network.get_weights(), []
    for path in (own / "a.weights.h5", Path(folder) / f"worker{RANK}.weights.h5"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chief_saving, "_PATIENCE_SECONDS", 3600)
            network.save_weights(path)
        network.set_weights([weight + 1 for weight in before])
        network.load_weights(path)
        same += [np.array_equal(a, b) for a, b in zip(network.get_weights(), before, strict=True)]
    return all(same)


def waits_for_a_slow_chief(folder: str) -> list[bool]:
    """Save a file that the chief writes for as long as others wait for it to begin; return which workers wrote."""
    network, wrote, write = model(), [False], chief_saving._write_whole
    network.fit(X, Y, verbose=0)
    notes = network.save.args[1].notes
    wait = notes.wait_for_note

    def write_slowly(*args: Any) -> None:
        wrote[0] = True
        assert RANK or wait("test/waits-for-the-end", 60) is not None
        write(*args)

    def wait_and_tell(key: str, seconds: float) -> str | None:
        if seconds > chief_saving._PATIENCE_SECONDS:
            notes.leave_note("test/waits-for-the-end", "")
        return wait(key, seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chief_saving, "_write_whole", write_slowly)
        patch.setattr(notes, "wait_for_note", wait_and_tell, raising=False)
        network.save(f"{folder}/slow.keras")
    return wrote


def saved_in_an_accumulation(folder: str) -> dict[str, Any]:
    """Save after one micro-batch of two, and after both; return what was said, and the sums saved and loaded."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tfdist").addHandler(handler)
    path, sums, x = (
        f"{folder}/ü.keras",
        [],
        np.ones((8, 4), np.float32),
    )  # all examples, so all workers' sums, are alike
    with STRATEGY.scope():
        network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        network.compile(DistributedOptimizer("sgd", accumulate_steps=2), "mse")
    try:
        for _ in range(2):
            network.fit(x, np.zeros((8, 1)), batch_size=8, verbose=0)
            network.save(path)
            with STRATEGY.scope():
                both = [network, keras.models.load_model(path)]
            for each in both:
                [own] = tf_strategies.copies(each.optimizer.sharded_state()[0].variables[0].value)
                sums.append(own.numpy().ravel().tolist())
    finally:
        logging.getLogger("tfdist").removeHandler(handler)
    return {"said": said, "sums": sums}


def one_worker_stops(at_batch: int) -> dict[str, Any]:
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if RANK == 1 and batch == at_batch:
                self.model.stop_training = True

    network = model()
    network.fit(X, Y, batch_size=8, epochs=3, verbose=0, callbacks=[Stop()])
    return {"steps": int(network.optimizer.iterations.numpy()), "weights": weights(network)}


def agreements() -> dict[str, int]:
    """Count the agreements of workers in a `fit` of five batches, for callbacks of each batch by what they could do."""
    seen: list[int] = []

    class Watches(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(batch)

    class Asks(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(self.model.optimizer.iterations.numpy())

    network, workers, counts = model(), STRATEGY.workers, {}
    network.fit(X, Y, batch_size=8, verbose=0)  # workers compare what is traced
    gather = workers.gather
    for name, callbacks in (("nothing", []), ("watch", [Watches()]), ("ask", [Asks()])):
        calls: list[Any] = []

        def counted(values: list[int], calls: list[Any] = calls) -> np.ndarray:
            calls.append(values)
            return gather(values)

        workers.gather = counted
        try:
            network.fit(X, Y, batch_size=8, verbose=0, callbacks=callbacks)
        finally:
            del workers.gather
        counts[name] = len(calls)
    assert len(seen) == 10
    return counts


def chief_sets_the_rate() -> dict[str, Any]:
    class Rate(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if RANK == 0:
                self.model.optimizer.learning_rate = 0.01

    network = model()
    network.fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=[Rate()])
    return {"rate": float(network.optimizer.learning_rate.numpy()), "weights": weights(network)}


def backup_and_restore(folder: str) -> dict[str, Any]:
    class Fail(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                raise RuntimeError("as planned")

    first = model()
    with contextlib.suppress(RuntimeError):
        first.fit(X, Y, batch_size=8, epochs=5, verbose=0, callbacks=[keras.callbacks.BackupAndRestore(folder), Fail()])
    second = model(seed=RANK + 7)
    history = second.fit(X, Y, batch_size=8, epochs=5, verbose=0, callbacks=[keras.callbacks.BackupAndRestore(folder)])
    steps = int(second.optimizer.iterations.numpy())
    return {"epochs": history.epoch, "steps": steps, "weights": weights(second)}


def predictions(counts: list[int]) -> dict[int, Any]:
    network, found = model(), {}
    first, first_bias, last, last_bias = network.get_weights()
    for rows in counts:
        got = network.predict(X[:rows], batch_size=8, verbose=0)
        want = np.tanh(X[:rows] @ first + first_bias) @ last + last_bias
        found[rows] = {"shape": list(got.shape), "error": float(np.abs(got - want).max())}
    return found


def predictions_of_kinds() -> dict[str, Any]:
    """Return what predict gives for outputs that collectives do not carry, and what it says to those it refuses."""
    seen: dict[str, Any] = {}
    for name, function in {
        "bool": lambda v: v[:, :1] > 0.0,
        "uint8": lambda v: tf.cast(tf.abs(v[:, :1]) * 100.0, tf.uint8),
        "complex128": lambda v: tf.cast(tf.complex(v[:, :2], v[:, :2]), tf.complex128),
        "string": lambda v: tf.strings.as_string(v[:, :2]) + tf.constant([b"\xff\x00\xc3", b""]),
        "ragged": lambda v: tf.RaggedTensor.from_tensor(v),
    }.items():

        class Output(keras.Model):
            def call(self, inputs: Any, function: Any = function) -> Any:
                return function(inputs)

        with STRATEGY.scope():
            network = Output()
        try:
            got = network.predict(X[:5], verbose=0)
            seen[name] = bool(np.array_equal(got, np.asarray(function(tf.constant(X[:5])))))
        except errors.UnsupportedError as error:
            seen[name] = refusal_fields.fields(error)
    return seen


def waits_for_one_who_left(seconds: float) -> str:
    """Worker 1 leaves before the last epoch; return what worker 0 is told."""
    name = os.environ["TFDIST_STRATEGY"]
    patient = tfdist.strategies.create(name, replicas_per_worker=1, timeout_seconds=seconds)
    with patient.scope():
        network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        network.compile("sgd", "mse")
    network.fit(X, Y, verbose=0)
    if RANK == 1:
        return "left"
    try:
        network.fit(X, Y, verbose=0)
    except errors.DeadlineError as error:
        return str(error)
    return "trained alone"


def carrier() -> str:
    """Return the name of the collective that carries the workers' tensors."""
    return type(STRATEGY.workers.collective).__name__


def several_strategies() -> tuple[list[bool], bool]:
    """Return whether losses are finite, and whether the collective of the second strategy is freed afterwards."""
    finite, collective = _in_turns()
    gc.collect()
    return finite, collective() is None


def _in_turns() -> tuple[list[bool], "weakref.ref[Any]"]:
    """Train under a second strategy over the workers and one within each worker, models of different sizes."""
    finite = []
    second = tfdist.strategies.create(os.environ["TFDIST_STRATEGY"], replicas_per_worker=1)
    local = tfdist.strategies.MirroredStrategy(["CPU:0"])
    for scope, units in ((second, 33), (local, 5), (STRATEGY, 8), (second, 2)):
        with scope.scope():
            network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units), keras.layers.Dense(1)])
            network.compile("sgd", "mse")
        finite.append(bool(np.isfinite(network.fit(X, Y, verbose=0).history["loss"]).all()))
    return finite, weakref.ref(second.workers.collective)


def numbers() -> Any:
    return number_cases.not_as_expected(STRATEGY)
