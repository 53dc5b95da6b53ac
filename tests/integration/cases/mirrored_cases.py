"""Cases of mirrored training: each runs in a worker process with two logical CPUs and returns JSON values."""

import contextlib
import functools
import itertools
import os
from typing import Any

import keras
import number_cases
import numpy as np
import refusal_fields
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

import tfdist.strategies
from tfdist import errors
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.gradients.reduction import replica_sums
from tfdist.optimizers import DistributedOptimizer

STRATEGY = tfdist.strategies.from_environment()
X = np.random.RandomState(0).normal(size=(37, 4)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


def model(**compile_options: Any) -> keras.Model:
    network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)])
    draw = np.random.RandomState(1)
    network.set_weights([draw.normal(size=w.shape) for w in network.get_weights()])
    network.compile(**{"optimizer": keras.optimizers.SGD(0.1), "loss": "mse", **compile_options})
    return network


def trained_weights(scope: Any) -> list[float]:
    with scope:
        network = model()
    network.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return np.concatenate([w.ravel() for w in network.get_weights()]).tolist()


def plain_keras_before_and_after() -> dict[str, Any]:
    """Train plainly, under tfdist, plainly again; note every function that tfdist could have patched."""

    def functions() -> list[int]:
        owners = (TensorFlowTrainer, keras.Model, keras.Layer, keras.Loss, keras.Metric, keras.metrics.Mean)
        owners += (
            keras.optimizers.Optimizer,
            keras.optimizers.SGD,
            keras.random.SeedGenerator,
            keras.callbacks.CallbackList,
        )
        owners += (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy, tf.distribute.Strategy)
        owners += (type(tf.distribute.get_strategy().extended), keras.layers.BatchNormalization)
        return [
            id(value) for owner in owners for base in owner.__mro__ for value in vars(base).values() if callable(value)
        ]

    before, first = functions(), trained_weights(contextlib.nullcontext())
    under = trained_weights(STRATEGY.scope())
    return {
        "patched": functions() != before,
        "first": first,
        "under": under,
        "again": trained_weights(contextlib.nullcontext()),
    }


def models_that_override_fit() -> dict[str, Any]:
    class Deep(keras.Sequential):
        def fit(self, *args: Any, **kwargs: Any) -> Any:
            return self.really(*args, **kwargs)

        def really(self, *args: Any, **kwargs: Any) -> Any:
            return super().fit(*args, **kwargs)

    with STRATEGY.scope():
        network = Deep([keras.Input((4,)), keras.layers.Dense(1)])
        network.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=3)
    network.fit(X, Y, batch_size=8, verbose=0)
    return {"steps": int(network.optimizer.iterations.numpy())}


def replicas_outside_and_inside() -> dict[str, Any]:
    seen = []

    class Looks(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            seen.append(tf.distribute.get_strategy().num_replicas_in_sync)
            return super().train_step(data)

    with STRATEGY.scope():
        network = Looks([keras.Input((4,)), keras.layers.Dense(1)])
        network.compile("sgd", "mse")
    network.fit(X, Y, verbose=0)
    return {"inside": sorted(set(seen)), "outside": STRATEGY.num_replicas_in_sync}


def dropout_masks() -> dict[str, Any]:
    """Return the masks that each replica drew in two equal runs, and those of one device."""

    class Masks(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dropout = keras.layers.Dropout(0.5, seed=3)
            self.bias = self.add_weight(shape=(), name="bias")

        def call(self, inputs: Any) -> Any:
            return inputs

        def train_step(self, data: Any) -> Any:
            with tf.GradientTape() as tape:
                mask = self.dropout(tf.ones((1, 24)), training=True)
                loss = self.bias * tf.reduce_mean(data[0])
            self.optimizer.apply(tape.gradient(loss, [self.bias.value]), [self.bias])
            context = tf.distribute.get_replica_context()
            replicas = tf.distribute.get_strategy().extended._num_replicas_in_sync
            place = tf.one_hot(context.replica_id_in_sync_group, replicas)[:, None]
            # a scalar log for each entry: tfdist averages them over examples, so the sum of places is exact
            return {f"m{i}": value for i, value in enumerate(tf.unstack(tf.reshape(place * mask * replicas, [-1])))}

    def run(scope: Any) -> list[float]:
        with scope:
            network = Masks()
            network.compile("sgd")
        history = network.fit(np.ones((2, 1), np.float32), np.ones((2, 1)), batch_size=2, verbose=0).history
        return [history[f"m{i}"][0] for i in range(len(history))]

    return {"one": run(contextlib.nullcontext()), "a": run(STRATEGY.scope()), "b": run(STRATEGY.scope())}


def loop_of_ones_own() -> dict[str, Any]:
    """The loop of TensorFlow's guide: tfdist's strategy is TensorFlow's where Keras does not ask."""
    s = STRATEGY
    with s.scope():
        weight = tf.Variable(tf.zeros((4, 1)))
    dataset = s.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((X[:32], Y[:32])).batch(8))

    @tf.function
    def epoch() -> tf.Tensor:
        total = 0.0
        for x, y in dataset:

            def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum((x @ weight - y) ** 2) / 8
                (gradient,) = tape.gradient(loss, [weight])
                gradient = tf.distribute.get_replica_context().all_reduce("SUM", gradient)
                weight.assign_sub(0.05 * gradient)
                return loss

            total += s.reduce("SUM", s.run(step, args=(x, y)), axis=None)
        return total

    expected, loss_sum = np.zeros((4, 1)), 0.0
    for i in range(0, 32, 8):
        x, y = X[i : i + 8].astype(np.float64), Y[i : i + 8].astype(np.float64)
        error = x @ expected - y
        loss_sum += float((error**2).sum() / 8)
        expected = expected - 0.05 * 2 * x.T @ error / 8
    total = float(epoch())
    return {
        "distributed": isinstance(dataset, tf.distribute.DistributedDataset),
        "loss_error": abs(total - loss_sum),
        "weight_error": float(np.abs(weight.numpy() - expected).max()),
    }


def what_an_accumulation_reduces(wire_dtype: str | None) -> dict[str, Any]:
    """Train six micro-batches, three to an update, and note after each the reductions of gradients and the weights."""
    reduced, after, kernels = [], [], []
    plain = replica_sums.sum_over_replicas

    def noting(tensors: list[Any], **hints: Any) -> list[Any]:
        labels = hints.get("labels") or [""] * len(tensors)
        pairs = zip(labels, tensors, strict=True)
        reduced.extend(tensor.dtype.name for label, tensor in pairs if label.startswith("gradient of "))
        return plain(tensors, **hints)

    def note(batch: int, logs: Any) -> None:
        after.append(len(reduced))
        kernels.append(network.get_weights()[0].tolist())

    with STRATEGY.scope():
        inner = keras.optimizers.SGD(0.1)
        optimizer = DistributedOptimizer(inner, accumulate_steps=3, loss_scale=1.0, wire_dtype=wire_dtype)
        network = model(optimizer=optimizer, run_eagerly=True)
    replica_sums.sum_over_replicas = noting
    try:
        told = keras.callbacks.LambdaCallback(on_train_batch_end=note)
        history = network.fit(X[:24], Y[:24], batch_size=4, shuffle=False, verbose=0, callbacks=[told]).history
    finally:
        replica_sums.sum_over_replicas = plain
    moved = [one != other for one, other in itertools.pairwise(kernels)]
    return {
        "reduced": after,
        "dtypes": sorted(set(reduced)),
        "moved": moved,
        "logs": sorted(history),
        "iterations": int(inner.iterations.numpy()),
    }


def optimizers_outside_of_replicas() -> dict[str, Any]:
    """Apply gradients in the scope, outside of any replica, eagerly and traced; return each copy, and one device's."""
    makers: dict[str, Any] = {
        "adamw": lambda: keras.optimizers.AdamW(0.1, global_clipnorm=0.5, use_ema=True, ema_overwrite_frequency=2),
        "accumulating": lambda: keras.optimizers.Adam(0.1, gradient_accumulation_steps=2),
    }

    def copies(make: Any, traced: bool) -> dict[str, Any]:
        weight = keras.Variable([1.0, 2.0, 3.0])
        optimizer = make()
        optimizer.build([weight])

        def apply() -> None:
            optimizer.apply([tf.constant([1.0, 0.0, -2.0])], [weight])

        run = tf.function(apply) if traced else apply
        for _ in range(5):
            run()
        values = [copy.numpy().tolist() for copy in STRATEGY.experimental_local_results(weight.value)]
        return {"copies": values, "iterations": int(optimizer.iterations.numpy())}

    found = {}
    for name, make in makers.items():
        for traced in (False, True):
            with STRATEGY.scope():
                under = copies(make, traced)
            found[f"{name}, {'traced' if traced else 'eager'}"] = {"under": under, "one": copies(make, traced)}
    return found


def rows_with_a_shape_of_numbers() -> list[Any]:
    """Add up rows over replicas whose `dense_shape` is a tuple, as whoever makes them by hand writes it."""
    with STRATEGY.scope():
        weight = tf.Variable([0.0, 0.0, 0.0], aggregation=tf.VariableAggregation.SUM)

    @tf.function
    def add() -> None:
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        weight.scatter_add(tf.IndexedSlices(tf.ones([2]), tf.stack([index, index + 1]), dense_shape=(3,)))

    STRATEGY.run(add)
    return [copy.numpy().tolist() for copy in STRATEGY.experimental_local_results(weight)]


def gradients_in_a_loop_of_ones_own() -> dict[str, Any]:
    """TensorFlow's guide divides the loss by the global batch, and an optimizer adds up what replicas bring."""

    def trained(optimizer: Any) -> list[list[float]]:
        with STRATEGY.scope():
            network = model()
            optimizer = optimizer()
            optimizer.build(network.trainable_variables)

        def step(x: tf.Tensor, y: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((network(x) - y) ** 2) / 8
            optimizer.apply(tape.gradient(loss, network.trainable_variables), network.trainable_variables)

        run = tf.function(lambda x, y: STRATEGY.run(step, args=(x, y)))
        dataset = tf.data.Dataset.from_tensor_slices((X[:32], Y[:32])).batch(8)
        for x, y in STRATEGY.experimental_distribute_dataset(dataset):
            run(x, y)
        return [weight.tolist() for weight in network.get_weights()]

    return {
        "plain": trained(lambda: keras.optimizers.SGD(0.01)),
        "distributed": trained(lambda: DistributedOptimizer(keras.optimizers.SGD(0.01), loss_scale=1.0)),
    }


def positions_in_a_loop_of_ones_own() -> dict[str, float]:
    """Adam squares each row of a gradient: on one device a position has one, also in a loop without a Keras model."""
    words = np.arange(96).reshape(32, 3) % 5

    def trained(loop: Any) -> list[np.ndarray]:
        with STRATEGY.scope() if loop == "replicas" else contextlib.nullcontext():
            tables = [keras.Variable(np.ones((5, 2), np.float32)) for _ in range(2)]
            optimizer = keras.optimizers.Adam(0.1)
            optimizer.build(tables)

        def step(words: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                places = keras.ops.arange(keras.ops.shape(words)[1])
                found = keras.ops.take(tables[0], words, axis=0) * keras.ops.take(tables[1], places, axis=0)
                loss = tf.reduce_sum(found[:, 0] * found[:, 1] - found[:, 2]) / 8
            optimizer.apply(tape.gradient(loss, [table.value for table in tables]), tables)

        if loop == "replicas":
            run = tf.function(lambda words: STRATEGY.run(step, args=(words,)), reduce_retracing=True)
        else:
            run = tf.function(step, reduce_retracing=True)
        dataset = tf.data.Dataset.from_tensor_slices(words).batch(8)
        for batch in STRATEGY.experimental_distribute_dataset(dataset) if loop == "replicas" else dataset:
            run(batch)
        return [table.numpy() for table in tables]

    found = zip(trained("replicas"), trained("one device"), strict=True)
    return {
        name: float(np.abs(one - other).max()) for name, (one, other) in zip(("words", "places"), found, strict=True)
    }


def _as_text(x: Any) -> Any:
    return x + 0 * tf.strings.to_number(tf.strings.as_string(x))


class UsesUpdates(keras.Sequential):
    """Looks at the loss again when its gradients are applied."""

    def train_step(self, data: Any) -> Any:
        super().train_step(data)
        return {"after": keras.ops.mean((self(data[0]) - data[1]) ** 2)}


def refusals() -> dict[str, list[Any]]:
    """Return the report of the error for each wrong use."""
    reports = {}

    def refused(name: str, action: Any) -> None:
        reports[name] = refusal_fields.met(action, errors.TfdistError)

    def fit(network: keras.Model) -> None:
        network.fit(X, Y, verbose=0)

    with STRATEGY.scope():
        batch_norm = keras.layers.BatchNormalization(synchronized=True, name="norm")
        layers = {"jit": batch_norm, "jit operation": keras.layers.Lambda(_as_text)}
        under_xla = {
            name: keras.Sequential([keras.Input((4,)), one, keras.layers.Dense(1)]) for name, one in layers.items()
        }
        under_xla["jit order"] = UsesUpdates(model().layers)
        for network in under_xla.values():
            network.compile("sgd", "mse", jit_compile=True)
        outside = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    outside.compile("sgd", "mse")
    by_name = keras.optimizers.Adam(name="adam")
    with STRATEGY.scope():
        refused("optimizer", lambda: model(optimizer=by_name))
        refused("wrapped", lambda: model(optimizer=keras.optimizers.LossScaleOptimizer(by_name)))
        refused("distributed", lambda: model(optimizer=DistributedOptimizer(by_name)))
    with tfdist.strategies.MirroredStrategy().scope():
        elsewhere, other = keras.optimizers.Adam(), keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    with STRATEGY.scope():
        refused("another scope", lambda: model(optimizer=elsewhere))
        refused("another model", lambda: other.compile("sgd", "mse"))
        late = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    late.compile(by_name, "mse")
    refused("compiled outside", lambda: fit(late))
    layer, metric = keras.layers.Dense(1), keras.metrics.MeanAbsoluteError(name="mae")
    layer.build((None, 4))
    with STRATEGY.scope():
        built_outside = keras.Sequential([keras.Input((4,)), layer])
        built_outside.compile(keras.optimizers.SGD(0.1), "mse")
        measured_outside = model(metrics=[metric])
        twofold = keras.optimizers.LossScaleOptimizer(DistributedOptimizer("sgd"))
        scaled_twice = model(optimizer=twofold)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        foreign = model(optimizer=DistributedOptimizer("sgd", accumulate_steps=2))
    refused("scaled twice", lambda: fit(scaled_twice))
    refused("foreign", lambda: fit(foreign))
    refused("layer", lambda: fit(built_outside))
    refused("metric", lambda: fit(measured_outside))
    for name, network in under_xla.items():
        refused(name, functools.partial(fit, network))
    refused("outside", lambda: fit(outside))
    mirrored = tfdist.strategies.MirroredStrategy
    refused("missing", lambda: mirrored(["CPU:0", "CPU:7"]))
    refused("twice", lambda: mirrored(["CPU:0", "cpu:0"]))
    refused("none", lambda: mirrored([]))
    refused("text", lambda: mirrored("CPU:0"))
    refused("late", lambda: tfdist.strategies.use_logical_cpus(5))
    refused("bool", lambda: tfdist.strategies.use_logical_cpus(True))
    refused("name", lambda: tfdist.strategies.create("mirored"))
    refused("option", lambda: tfdist.strategies.create("mirrored", replicas=2))
    refused("environment", lambda: tfdist.strategies.from_environment({"TFDIST_STRATEGY": "rng"}))
    workers = {"TFDIST_STRATEGY": "mirrored", "TFDIST_WORKERS": "127.0.0.1:1,127.0.0.1:2", "TFDIST_WORKER_INDEX": "0"}
    refused("workers", lambda: tfdist.strategies.from_environment(workers))
    refused("replicas", lambda: tfdist.strategies.from_environment({"TFDIST_REPLICAS_PER_WORKER": "two"}))
    return reports


def numbers() -> Any:
    return number_cases.not_as_expected(STRATEGY)


def two_models_that_compete() -> dict[str, Any]:
    """A model without `call` that trains two others with an optimizer each; the same on one device."""

    class Rivals(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = model(), model()

        def compile(self, first: Any, second: Any) -> None:
            super().compile()
            self.first_optimizer, self.second_optimizer = first, second
            self.first_optimizer.build(self.first.trainable_variables)
            self.second_optimizer.build(self.second.trainable_variables)

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            logs = {}
            for name in ("first", "second"):
                network, optimizer = getattr(self, name), getattr(self, f"{name}_optimizer")
                with tf.GradientTape() as tape:
                    logs[name] = loss = tf.reduce_mean((network(x) - y) ** 2)
                optimizer.apply(tape.gradient(loss, network.trainable_variables), network.trainable_variables)
            return logs

    def run(scope: Any) -> list[float]:
        with scope:
            rivals = Rivals()
            rivals.compile(keras.optimizers.SGD(0.1, clipnorm=0.3), keras.optimizers.Adam(0.01))
        history = rivals.fit(X, Y, batch_size=8, shuffle=False, verbose=0).history
        weights = [w.ravel() for w in rivals.first.get_weights() + rivals.second.get_weights()]
        return np.concatenate([*weights, history["first"], history["second"]]).tolist()

    return {"one": run(contextlib.nullcontext()), "two": run(STRATEGY.scope())}


def states_in_memory(epochs: int) -> dict[str, Any]:
    """A step is traced once, whatever the sizes of the batches."""
    traces = []

    class Counts(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            traces.append(tf.distribute.get_replica_context().replica_id_in_sync_group)
            return super().train_step(data)

    os.environ["TFDIST_TRIALS"] = "again"  # a pool starts without it, and a trial that was kept traces nothing
    with STRATEGY.scope():
        network = Counts([keras.Input((4,)), keras.layers.Dense(1)])
        network.compile("sgd", "mse")
    for rows in (37, 5, 1):
        network.fit(X[:rows], Y[:rows], batch_size=8, epochs=epochs, verbose=0)
    return {"traces": len(traces)}


def a_gather_that_does_not_fit() -> dict[str, Any]:
    """Gather tensors that do not fit, in a function and outside of one; then gather, reduce and train as before."""
    wrong = STRATEGY.experimental_distribute_values_from_function(
        lambda context: tf.ones([2, 2 + context.replica_id_in_sync_group])
    )
    right = STRATEGY.experimental_distribute_values_from_function(
        lambda context: tf.ones([2]) * context.replica_id_in_sync_group
    )

    def gathered(value: Any) -> Any:
        return STRATEGY.run(lambda v: tf.distribute.get_replica_context().all_gather(v, axis=0), (value,))

    shape = tf.TensorSpec([None, None])
    hidden = tf.function(lambda *parts: gathered(tf_strategies.per_replica(parts)), input_signature=[shape, shape])
    failed = []
    for name, call in {
        "traced": lambda: tf.function(gathered)(wrong),
        "run": lambda: hidden(*STRATEGY.experimental_local_results(wrong)),
        "eager": lambda: gathered(wrong),
        "gather": lambda: STRATEGY.gather(wrong, axis=0),
    }.items():
        try:
            call()
        except (ValueError, tf.errors.InvalidArgumentError):
            failed.append(name)
    with STRATEGY.scope():
        network = model()
    network.fit(X, Y, batch_size=8, verbose=0)
    return {
        "failed": failed,
        "gathered": STRATEGY.gather(right, axis=0).numpy().tolist(),
        "updates": int(network.optimizer.iterations),
    }
