"""Private training: gradients of single examples, noise, budgets. Run in a worker process; functions return JSON."""

import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tfdist
from tfdist.privacy import clipped_gradients
from tfdist.privacy.private_model import make_private


def four_devices() -> None:
    """Split the CPU, before TensorFlow starts."""
    tfdist.strategies.use_logical_cpus(4)


RNG = np.random.default_rng(11)
PICTURES = RNG.normal(size=(5, 6, 6, 2)).astype("float32")
SEQUENCES = RNG.normal(size=(5, 4, 3)).astype("float32")
WORDS = np.array([[1, 2, 3, 0], [4, 0, 0, 0], [5, 5, 5, 5], [6, 1, 0, 0], [2, 2, 7, 0]])
VECTORS = RNG.normal(size=(5, 4)).astype("float32")
LABELS = np.array([0, 1, 2, 0, 1])
CLASSES = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _of(shape: tuple[int, ...], *inner: Any, dtype: str = "float32") -> keras.Model:
    return keras.Sequential([keras.Input(shape, dtype=dtype), *inner, layers.Flatten(), layers.Dense(3)])


def _attention() -> keras.Model:
    given = keras.Input((4, 3))
    seen = layers.LayerNormalization()(layers.MultiHeadAttention(2, 3)(given, given) + given)
    return keras.Model(given, layers.Dense(3)(layers.Flatten()(seen)))


def _two_inputs() -> keras.Model:
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    shared = layers.Dense(3)
    return keras.Model({"a": a, "b": b}, layers.Dense(3)(layers.concatenate([shared(a), shared(b), a * b])))


KINDS: dict[str, tuple[Any, Any]] = {
    "dense": (lambda: _of((4,), layers.Dense(5, "relu", kernel_regularizer="l2")), VECTORS),
    "activity": (lambda: _of((4,), layers.Dense(5, activity_regularizer="l2"), layers.PReLU()), VECTORS),
    "pictures": (
        lambda: _of((6, 6, 2), layers.Conv2D(4, 3), layers.MaxPooling2D(), layers.GroupNormalization(2)),
        PICTURES,
    ),
    "depthwise": (lambda: _of((6, 6, 2), layers.SeparableConv2D(3, 3), layers.DepthwiseConv2D(2)), PICTURES),
    "transposed": (lambda: _of((6, 6, 2), layers.Conv2DTranspose(2, 2, 2), layers.AveragePooling2D(3)), PICTURES),
    "sequence": (lambda: _of((4, 3), layers.Conv1D(3, 2), layers.TimeDistributed(layers.Dense(2))), SEQUENCES),
    "recurrent": (lambda: _of((4, 3), layers.GRU(2), layers.RMSNormalization()), SEQUENCES),
    "attention": (_attention, SEQUENCES),
    "words": (lambda: _of((4,), layers.Embedding(8, 3, mask_zero=True), layers.LSTM(2), dtype="int32"), WORDS),
    "bag": (lambda: _of((4,), layers.Embedding(8, 3), layers.GlobalAveragePooling1D(), dtype="int32"), WORDS),
    "two inputs": (_two_inputs, {"a": VECTORS, "b": VECTORS[::-1].copy()}),
    "frozen": (
        lambda: _of((4,), layers.BatchNormalization(trainable=False), layers.EinsumDense("ab,bc->ac", 2)),
        VECTORS,
    ),
}


def gradients_of(kind: str) -> dict[str, float]:
    """Compare sums of clipped gradients with a loop over batches of one, with two clips."""
    make, x = KINDS[kind]
    keras.utils.set_random_seed(3)
    model = make()
    model.compile("sgd", CLASSES)
    weights = model.trainable_variables
    weight = np.array([1.0, 2.0, 0.5, 0.0, 1.0], "float32")
    alone = []
    for place in range(5):
        one = keras.tree.map_structure(lambda leaf, at=place: leaf[at : at + 1], x)
        with tf.GradientTape() as tape:
            outputs = model(one, training=True)
            loss = model.compute_loss(one, LABELS[place : place + 1], outputs, weight[place : place + 1])
        alone.append([tf.convert_to_tensor(g).numpy() for g in tape.gradient(loss, [w.value for w in weights])])
    norms = [np.sqrt(sum(float(np.sum(g.astype("float64") ** 2)) for g in one)) for one in alone]
    middle = float(np.median(norms))
    data = keras.tree.map_structure(tf.constant, (x, LABELS, weight))

    @tf.function(autograph=False)  # traced once: recurrent layers take long
    def summed(counts: Any, clip: Any) -> Any:
        return clipped_gradients.clipped_sum(model, data, counts, clip).sums

    def apart(counts: list[int], clip: float) -> float:
        made = summed(tf.constant(counts) > 0, tf.constant(clip))
        factors = [count * min(1.0, clip / norm if norm else 1.0) for count, norm in zip(counts, norms, strict=True)]
        wanted = [sum(factor * one[at] for factor, one in zip(factors, alone, strict=True)) for at in range(len(made))]
        scale = max(float(np.abs(one).max()) for one in wanted)
        return max(float(np.abs(a - b).max()) for a, b in zip(made, wanted, strict=True)) / scale

    largest = int(np.argmax(norms))
    single = summed(tf.range(5) == largest, tf.constant(middle))
    length = np.sqrt(sum(float(np.sum(np.asarray(one, "float64") ** 2)) for one in single))
    return {"clipped": apart([1, 1, 0, 1, 1], middle), "free": apart([1] * 5, 1e6), "longest": length / middle}


def masks_of_examples() -> list[float]:
    """The outputs of a model that drops out half of ones: each example has a mask of its own."""
    model = keras.Sequential([keras.Input((64,)), layers.Dropout(0.5, seed=1), layers.Dense(1)])
    model.compile("sgd", "mse")
    data = (tf.ones([6, 64]), tf.zeros([6, 1]), None)
    found = clipped_gradients.clipped_sum(model, data, tf.ones([6], tf.bool), 1.0)
    again = clipped_gradients.clipped_sum(model, data, tf.ones([6], tf.bool), 1.0)
    return [float(one) for one in np.ravel(found.outputs) + 0 * np.ravel(again.outputs)] + [
        float(np.abs(found.outputs - again.outputs).max())
    ]


def _scope(replicas: int) -> Any:
    if not replicas:  # over the workers of the pool's environment
        return (
            tfdist.strategies.MultiWorkerMirroredStrategy()
            if "ring" not in os.environ.get("KIND", "")
            else (tfdist.strategies.RingStrategy())
        )
    if replicas == 1:
        return tf.distribute.get_strategy()
    return tfdist.strategies.MirroredStrategy([f"/cpu:{place}" for place in range(replicas)])


X = RNG.normal(size=(40, 4)).astype("float32")
Y = np.arange(40) % 3


def trained(replicas: int, size: int = 6, **options: Any) -> dict[str, Any]:
    """The weights, history and noise of two epochs of private training."""
    with _scope(replicas).scope():
        keras.utils.set_random_seed(5)
        model = keras.Sequential([keras.Input((4,)), layers.Dense(5, "tanh"), layers.Dense(3)])
        model.compile(keras.optimizers.Adam(0.05, **options), CLASSES, metrics=["accuracy"])
        make_private(model, epsilon=8.0, delta=1e-2, clip=0.7, seed=9)
        history = model.fit(
            tfdist.data.poisson((X, Y), global_batch_size=size, seed=21), epochs=2, verbose=0, steps_per_epoch=7
        )
    return {"weights": [one.tolist() for one in model.get_weights()], "history": history.history}


def noise_of(replicas: int) -> list[float]:
    """The mean and the mean square of a step's noise, in units of its standard deviation; and how many numbers."""
    with _scope(replicas).scope():
        keras.utils.set_random_seed(5)
        model = keras.Sequential([keras.Input((40,)), layers.Dense(200)])
        model.compile(keras.optimizers.SGD(1.0), lambda y, p: 0.0 * tf.reduce_sum(p, -1))
        make_private(model, epsilon=50.0, delta=1e-2, clip=0.5, noise_multiplier=3.0, seed=replicas)
        before = [one.copy() for one in model.get_weights()]
        data = tfdist.data.poisson((np.ones((30, 40), "float32"), np.ones(30)), global_batch_size=10, seed=2)
        model.fit(data, steps_per_epoch=1, verbose=0)
    moved = [np.ravel(a - b) for a, b in zip(model.get_weights(), before, strict=True)]
    noise = np.concatenate(moved).astype("float64") * 10 / (3.0 * 0.5)
    return [float(noise.mean()), float(np.mean(noise**2)), len(noise)]


def empty_steps() -> dict[str, Any]:
    """Training on samples of which some are empty: sizes, and whether each step has moved the weights."""
    data = tfdist.data.poisson((X[:6], Y[:6]), global_batch_size=1, seed=4)
    sizes = [len(y) for _, y in tfdist.data.poisson((X[:6], Y[:6]), global_batch_size=1, seed=4)]
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    model.compile("sgd", CLASSES, metrics=["accuracy"])
    make_private(model, epsilon=8.0, delta=1e-2)
    moved = []
    last = [model.get_weights()[0]]

    def note(batch: int, logs: Any) -> None:
        moved.append(bool(np.abs(model.get_weights()[0] - last[0]).max() > 0))
        last[0] = model.get_weights()[0]

    history = model.fit(data, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=note)])
    return {"sizes": sizes, "moved": moved, "loss": history.history["loss"][0]}


def in_float16() -> dict[str, Any]:
    """A model in float16 with an example whose gradient overflows."""
    x = np.ones((8, 4), "float32")
    x[3] = 60000.0
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(8, dtype="mixed_float16"), layers.Dense(1, dtype="mixed_float16")]
    )
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), "mse")
    data = (tf.constant(x), tf.zeros([8, 1]), None)
    found = clipped_gradients.clipped_sum(model, data, tf.ones([8], tf.bool), 0.5)
    others = clipped_gradients.clipped_sum(model, data, tf.range(8) != 3, 0.5)
    apart = max(float(np.abs(a - b).max()) for a, b in zip(found.sums, others.sums, strict=True))
    make_private(model, epsilon=8.0, delta=1e-2, seed=3)
    before = model.get_weights()
    model.fit(tfdist.data.poisson((x, np.zeros((8, 1), "float32")), global_batch_size=8), verbose=0)
    moved = max(float(np.abs(a - b).max()) for a, b in zip(model.get_weights(), before, strict=True))
    return {"apart": apart, "moved": moved, "updates": int(model.optimizer.iterations)}


class _Killed(Exception):  # noqa: N818 - stands for a kill
    pass


def resumed(folder: str) -> dict[str, Any]:
    """Private training that is stopped in an epoch and resumed by a new model, beside one that is not."""

    def run(stops_at: int | None, backup: str | None) -> Any:
        keras.utils.set_random_seed(5)
        model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
        model.compile(keras.optimizers.Adam(0.05), CLASSES)
        make_private(model, epsilon=8.0, delta=1e-2, seed=9)
        callbacks: list[Any] = []
        if backup is not None:
            callbacks.append(tfdist.callbacks.BackupAndRestore(backup, save_freq=1))
        steps = []

        def stop(batch: int, logs: Any) -> None:
            steps.append(batch)
            if len(steps) == stops_at:
                raise _Killed

        callbacks.append(keras.callbacks.LambdaCallback(on_train_batch_end=stop))
        try:
            history = model.fit(
                tfdist.data.poisson((X, Y), global_batch_size=8, seed=21), epochs=3, verbose=0, callbacks=callbacks
            ).history
        except _Killed:
            return None
        return model.get_weights(), history, len(steps)

    whole, history, _ = run(None, None)
    run(8, folder)
    again, resumed_history, steps = run(None, folder)
    return {
        "apart": max(float(np.abs(a - b).max()) for a, b in zip(whole, again, strict=True)),
        "epsilon": history["epsilon"],
        "resumed": resumed_history["epsilon"],
        "steps": steps,
    }


def samples(folder: str) -> dict[str, Any]:
    """Return 400 samples of 30 examples, some by the same and another seed, some of a directory, and their rate."""
    rows = np.arange(30)
    data = tfdist.data.poisson((rows, rows % 2), global_batch_size=6, seed=3)
    batches = [x.numpy().tolist() for _ in range(80) for x, _ in data]
    again, other = (
        [x.numpy().tolist() for x, _ in tfdist.data.poisson((rows, rows % 2), global_batch_size=6, seed=seed)]
        for seed in (3, 3 + 2**31 - 1)  # TensorFlow takes both for the same
    )
    tfdist.data.write({"x": np.arange(20.0, dtype="float32"), "label": rows[:20]}, folder)
    stored = tfdist.data.poisson(tfdist.data.read(folder, global_batch_size=2), seed=3)
    read = [(x.numpy().tolist(), y.numpy().tolist()) for _ in range(4) for x, y, *_ in stored]
    return {"batches": batches, "again": again, "other": other, "read": read, "rate": stored.rate}


def secret_samples() -> list[Any]:
    """Return the samples of two datasets without a seed."""
    made = [tfdist.data.poisson(np.arange(30), global_batch_size=6) for _ in range(2)]
    return [[x.numpy().tolist() for x in one] for one in made]


def refusals() -> dict[str, str]:
    """Return the name that the error of each refusal has."""
    x, y = VECTORS, LABELS

    def name_of(*inner: Any, data: Any = None, loss: Any = CLASSES, call: str = "fit", **options: Any) -> str:
        model = keras.Sequential([keras.Input((4,)), *inner, layers.Dense(3)])
        model.compile(options.pop("optimizer", "sgd"), loss, **options)
        make_private(model, epsilon=5.0, delta=1e-2)
        given = tfdist.data.poisson((x, y), global_batch_size=2, seed=1) if data is None else data
        try:
            getattr(model, call)(given, verbose=0) if call == "fit" else getattr(model, call)(x, y)
        except tfdist.errors.TfdistError as error:
            return str(error.name)
        return "nothing"

    class Keeps(layers.Layer):
        def build(self, shape: Any) -> None:
            self.seen = self.add_weight(shape=(), trainable=False, name="seen", initializer="zeros")

        def call(self, inputs: Any) -> Any:
            self.seen.assign(keras.ops.sum(inputs))
            return inputs

    return {
        "arrays": name_of(data=x),
        "dataset": name_of(data=tf.data.Dataset.from_tensor_slices((x, y)).batch(2)),
        "normalization": name_of(layers.BatchNormalization(name="norm")),
        "state": name_of(Keeps(name="keeps")).rpartition("/")[2],
        "loss": name_of(loss=keras.losses.Circle(name="circle")),
        "optimizer": name_of(optimizer=tfdist.optimizers.DistributedOptimizer("sgd", name="reducing")),
        "jit": name_of(jit_compile=True),
        "batch": name_of(call="train_on_batch"),
    }


def workers_that_meet_seldom() -> str:
    """The field of the error where workers would train without noise between their meetings."""
    kind = (
        tfdist.strategies.RingStrategy
        if os.environ["KIND"] == "ring"
        else (tfdist.strategies.MultiWorkerMirroredStrategy)
    )
    with kind(synchronization=tfdist.strategies.LocalSGD(every=2)).scope():
        model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
        model.compile("sgd", CLASSES)
    make_private(model, epsilon=5.0, delta=1e-2)
    try:
        model.fit(tfdist.data.poisson((X, Y), global_batch_size=2, seed=1), verbose=0)
    except tfdist.errors.UnsupportedError as error:
        return str(error.name)
    return "nothing"
