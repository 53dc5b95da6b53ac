"""Cases of sharded data parallelism: each runs in every worker at once, and returns JSON values or asserts."""

import contextlib
import io
import re
import tempfile
import zlib
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import optimizers as kinds

import tfdist
import tfdist.callbacks
import tfdist.strategies
from benchmarks.parallel import sharding_formulas as formulas
from tests.integration.cases import optimizers_of_ones_own as own_kinds
from tests.integration.cases import refusal_fields
from tests.integration.cases.resuming import Killed
from tfdist import errors
from tfdist.collectives.traced import TracedCollective
from tfdist.compat.tensorflow.meshes import sharded_variable
from tfdist.compat.tensorflow.steps.replica_services import services
from tfdist.gradients.sharding import slot_saving
from tfdist.optimizers import LARS, DistributedOptimizer

STRATEGY = tfdist.strategies.from_environment()
RANK, COUNT = STRATEGY.workers.index, STRATEGY.workers.count
if STRATEGY.cuts_weights:  # small as they are here, all weights would be there at once
    services(STRATEGY).weights.gathers.least_window_bytes = 1
# three batches, and with fewer rows a last one that is smaller, for which a step is traced once more
ROWS, UNEVEN, BATCH = 24, 22, 8
X = np.random.RandomState(0).normal(size=(ROWS, 5)).astype(np.float32)
Y = np.tanh(X.sum(axis=1, keepdims=True)) * 3
IDS = np.stack([np.arange(ROWS) % 7, np.arange(ROWS) // 5 % 7], axis=1).astype(np.int32)


class Scaled(keras.layers.Layer):
    """Variables of awkward shapes: a number, one element, a prime number of them, three axes, one that is unused."""

    def build(self, shape: Any) -> None:
        self.number = self.add_weight(shape=(), initializer="ones", name="number")
        self.single = self.add_weight(shape=(1,), initializer="ones", name="single")
        self.prime = self.add_weight(shape=(shape[-1], 13), initializer="glorot_uniform", name="prime")
        self.axes = self.add_weight(shape=(13, 1, 2), initializer="glorot_uniform", name="axes")
        self.unused = self.add_weight(shape=(3,), name="unused")

    def call(self, x: Any) -> Any:
        inner = keras.ops.tanh(keras.ops.matmul(x, self.prime)) * self.number
        return keras.ops.matmul(inner, self.axes[:, 0, :]) + self.single


def network(kind: str = "plain", dtype: str | None = None) -> keras.Model:
    keras.utils.set_random_seed(3)
    if kind == "table":
        layers: list[Any] = [keras.Input((2,), dtype="int32"), keras.layers.Embedding(7, 3), keras.layers.Flatten()]
    else:
        layers = [keras.Input((5,)), Scaled(dtype=dtype)]
    frozen = keras.layers.Dense(3, trainable=False, dtype=dtype)
    constrained = keras.layers.Dense(4, "tanh", kernel_constraint=keras.constraints.MaxNorm(0.9), dtype=dtype)
    return keras.Sequential([*layers, frozen, constrained, keras.layers.Dense(1, dtype=dtype)])


def exclude(optimizer: Any) -> Any:
    optimizer.exclude_from_weight_decay(var_names=["bias", "prime"])
    return optimizer


def several() -> Any:
    inner = keras.optimizers.OptimizerMap(
        keras.optimizers.Adam(0.05, global_clipnorm=0.5), {".*prime": keras.optimizers.Lamb(0.02)}
    )
    return keras.optimizers.MultiOptimizer(inner)


#: how the optimizer is made, and on which network
OPTIMIZERS: dict[str, Any] = {
    "momentum, clipvalue": lambda: kinds.SGD(0.1, momentum=0.9, nesterov=True, clipvalue=0.05),
    "adam, clipnorm": lambda: kinds.Adam(0.05, clipnorm=0.1),
    "adamw, average": lambda: exclude(
        kinds.AdamW(0.05, weight_decay=0.3, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2)
    ),
    "adam, average at the end": lambda: kinds.Adam(0.05, use_ema=True, ema_momentum=0.8),
    "adam, accumulating": lambda: kinds.Adam(0.05, amsgrad=True, gradient_accumulation_steps=2, global_clipnorm=0.1),
    "adam, scaled average": lambda: kinds.LossScaleOptimizer(
        kinds.Adam(0.05, use_ema=True, ema_momentum=0.8), 64.0, dynamic_growth_steps=2
    ),
    "lamb": lambda: kinds.Lamb(0.02),
    "lamb, average": lambda: kinds.Lamb(0.02, use_ema=True, ema_momentum=0.5),
    "lars": lambda: LARS(0.5, weight_decay=0.1, trust_coefficient=0.1),
    "adafactor": lambda: kinds.Adafactor(0.05),
    "schedule free": lambda: kinds.ScheduleFreeAdamW(0.05),
    "unknown": lambda: own_kinds.Unknown(0.02, weight_decay=0.1),
    "several": several,
    "distributed": lambda: DistributedOptimizer(kinds.Adam(0.05), global_clipnorm=0.2, loss_scale=8.0),
    "distributed, accumulating": lambda: DistributedOptimizer(
        kinds.Adam(0.05, clipnorm=0.1), accumulate_steps=2, loss_scale="dynamic"
    ),
    "distributed, accumulating whole": lambda: DistributedOptimizer(kinds.Lamb(0.02), accumulate_steps=2),
}


def trained(
    kind: str,
    optimizer: Any,
    scope: Any,
    dtype: str | None = None,
    *,
    rows: int = ROWS,
    eagerly: bool = False,
    **fit: Any,
) -> keras.Model:
    """Return a model that was trained for two epochs; on a strategy, or on one device."""
    with scope:
        model = network(kind, dtype)
        model.compile(optimizer(), "mse", run_eagerly=eagerly)
        model.optimizer.build(model.trainable_variables)
    data = IDS if kind == "table" else X
    model.fit(data[:rows], Y[:rows], batch_size=BATCH, epochs=2, verbose=0, shuffle=False, **fit)
    return model


def alone(kind: str, optimizer: Any, dtype: str | None = None, *, rows: int = ROWS) -> keras.Model:
    """Train on one device: eagerly, which takes half of what it takes to trace a few steps."""
    return trained(kind, optimizer, tf.distribute.get_strategy().scope(), dtype, rows=rows, eagerly=True)


def distance(ours: list[Any], theirs: list[Any]) -> float:
    assert [np.shape(one) for one in ours] == [np.shape(one) for one in theirs]
    pairs = [(np.asarray(a, "float64"), np.asarray(b, "float64")) for a, b in zip(ours, theirs, strict=True)]
    return max(float(np.max(np.abs(a - b) / np.maximum(1, np.abs(b)), initial=0.0)) for a, b in pairs)


def slots(model: keras.Model) -> list[Any]:
    return [STRATEGY.whole_value(one) for one in model.optimizer.variables]


def differences(cases: list[tuple[str, str]]) -> dict[str, float]:
    """Return the distance of weights and slots from one device's, which the chief trains; the first on uneven rows."""
    found = {}
    for place, (name, kind) in enumerate(cases):
        rows = ROWS if place else UNEVEN
        mine = trained(kind, OPTIMIZERS[name], STRATEGY.scope(), rows=rows)
        whole, weights = slots(mine), mine.get_weights()
        digests = STRATEGY.workers.gather([zlib.crc32(b"".join(one.tobytes() for one in weights))])
        assert len(set(digests.ravel().tolist())) == 1, f"workers have other weights: {name}"
        if RANK == 0:
            one = alone(kind, OPTIMIZERS[name], rows=rows)
            slots_apart = distance(whole, [variable.numpy() for variable in one.optimizer.variables])
            found[f"{name}: {kind}"] = max(distance(weights, one.get_weights()), slots_apart)
    return found


def dtypes() -> dict[str, float]:
    found = {}
    for dtype in ("float64", "float16", "mixed_bfloat16"):
        mine = trained("plain", lambda: kinds.Adam(0.05, global_clipnorm=1.0), STRATEGY.scope(), dtype)
        one = alone("plain", lambda: kinds.Adam(0.05, global_clipnorm=1.0), dtype)
        found[dtype] = distance(mine.get_weights(), one.get_weights())
    return found


def bytes_of_slots() -> dict[str, Any]:
    """Return the bytes of the slots that this worker holds, and of all slots."""
    found = {}
    for name in ("adam, clipnorm", "lamb"):
        with STRATEGY.scope():
            model = keras.Sequential([keras.Input((64,)), *(keras.layers.Dense(64) for _ in range(6))])
            model.compile(OPTIMIZERS[name](), "mse")
            model.optimizer.build(model.trainable_variables)
        mine = [one for one in model.optimizer.variables if slot_saving.part_of(one) is not None]
        held = sum(np.asarray(one).nbytes for one in mine)
        with contextlib.redirect_stdout(io.StringIO()) as table:
            tfdist.parallel.describe(model)
        every = sum(one.nbytes for one in slots(model))
        assert re.search(rf"all optimizer +of {every:,} bytes", table.getvalue())
        found[name] = [held, 2 * sum(weight.numpy().nbytes for weight in model.trainable_weights)]
    return found


def elements_of_weights() -> Any:
    """Return the number of elements of each trainable weight that this worker has, and of the whole weight."""
    with STRATEGY.scope():
        model = network()
    weights = [one for one in model.trainable_weights if len(one.shape)]
    return [int(np.size(sharded_variable.part_of(one).numpy())) for one in weights], [
        int(np.prod(one.shape)) for one in weights
    ]


class Counting(TracedCollective):
    """Counts what each member sends in a step, by kind; the smallest possible for each."""

    sent: dict[str, int]

    def all_reduce(self, values: Any, labels: Any = (), **options: Any) -> Any:
        self._count("all_reduce", sum(2 * _bytes(one) * (self.size - 1) / self.size for one in values))
        return super().all_reduce(values, labels, **options)

    def reduce_scatter(self, tensor: Any, label: str = "") -> Any:
        self._count("reduce_scatter", _bytes(tensor) * (self.size - 1) / self.size)
        return super().reduce_scatter(tensor, label)

    def all_gather(self, tensor: Any, label: str = "", *, equal_rows: bool = False) -> Any:
        self._count("all_gather", _bytes(tensor) * (self.size - 1))
        return super().all_gather(tensor, label, equal_rows=equal_rows)

    def _count(self, kind: str, count: float) -> None:
        self.sent[kind] = self.sent.get(kind, 0) + round(count)


def _bytes(tensor: Any) -> int:
    return int(tensor.shape.num_elements() * tensor.dtype.size)


def bytes_of_a_step() -> dict[str, Any]:
    """Return the bytes of gradients and weights that a member sends, and those of an all_reduce of the gradients."""
    own = STRATEGY.sharding.traced
    counting = Counting(own.collective, bucket_bytes=20_000)
    counting.sent = {}
    STRATEGY.sharding.traced = counting
    try:
        with STRATEGY.scope():
            model = keras.Sequential([keras.Input((64,)), *(keras.layers.Dense(64) for _ in range(6))])
            model.compile("adam", "mse")
        # Keras has called the layers before to learn the shapes of what they return, and runs nothing of that
        begin = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: counting.sent.clear())
        model.fit(np.ones((12, 64)), np.ones((12, 64)), batch_size=12, verbose=0, callbacks=[begin])
    finally:
        STRATEGY.sharding.traced = own
    sent = dict(counting.sent)  # to read weights may send more
    weights = sum(weight.numpy().nbytes for weight in model.trainable_weights)
    return {"sent": sent, "all_reduce": 2 * weights * (COUNT - 1) / COUNT}


def memory_of_a_step(layers: int, units: int) -> dict[str, float] | None:
    """Bytes of tensors at rest, what a step takes beside them, and what the formula has.

    TensorFlow counts those of more than a quarter of a megabyte; None where it does not count.
    """
    try:
        before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    except ValueError:
        return None
    traced, stage = STRATEGY.sharding.traced, STRATEGY.sharding.stage
    own, traced.bucket_bytes = traced.bucket_bytes, units * units  # a quarter of a kernel
    try:
        with STRATEGY.scope():
            dense = [keras.layers.Dense(units, "relu") for _ in range(layers)]
            model = keras.Sequential([keras.Input((units,)), *dense])
            model.compile(keras.optimizers.Adam(global_clipnorm=1.0), "mse")
        x = np.ones((8, units), np.float32)
        model.fit(x, x, batch_size=8, epochs=2, verbose=0)
        rest = tf.config.experimental.get_memory_info("CPU:0")["current"]
        peaks = []
        for _ in range(4):  # more buckets are there at the same time where threads are late
            tf.config.experimental.reset_memory_stats("CPU:0")
            model.fit(x, x, batch_size=8, verbose=0)
            peaks.append(tf.config.experimental.get_memory_info("CPU:0")["peak"])
    finally:
        traced.bucket_bytes = own
    count = 4 * model.count_params()
    return {
        "rest": rest - before,
        "step": min(peaks) - rest,
        "weights and slots": count * (3 / COUNT if stage == 3 else 1 + 2 / COUNT),
        "formula": formulas.memory_bytes(model.count_params(), COUNT, stage, layers=layers),
    }


def saved(folder: str, names: list[str]) -> dict[str, Any]:
    """Save, load in the scope, and by the chief on one device; train on from each."""
    found, options = {}, {"batch_size": BATCH, "verbose": 0, "shuffle": False}
    own = {"custom_objects": {"Scaled": Scaled}}
    for name in names:
        mine = trained("plain", OPTIMIZERS[name], STRATEGY.scope())
        path = Path(folder) / f"{name.partition(',')[0]}.keras"
        whole = slots(mine)
        mine.save(path)
        with STRATEGY.scope():
            again = keras.models.load_model(path, **own)
        assert distance(slots(again), whole) == 0
        again.fit(X, Y, **options)
        if RANK == 0:
            with tf.distribute.get_strategy().scope():
                one = keras.models.load_model(path, **own)
            one.run_eagerly = True
            assert distance([v.numpy() for v in one.optimizer.variables], whole) == 0
            one.fit(X, Y, **options)
        weights = again.get_weights()  # every worker has to ask
        if RANK == 0:
            found[name] = distance(weights, one.get_weights())
        STRATEGY.workers.gather([0])
    return found


def saved_to_paths_of_their_own(folder: str) -> bool:
    with STRATEGY.scope():
        model = network()
    before, path = model.get_weights(), Path(folder) / str(RANK) / "a.weights.h5"
    path.parent.mkdir()
    model.save_weights(path)
    model.set_weights([weight + 1 for weight in before])
    model.load_weights(path)
    return distance(model.get_weights(), before) == 0


def chief_saves_alone(folder: str) -> str:
    with STRATEGY.scope():
        model = network()
        model.compile(OPTIMIZERS["adam, clipnorm"](), "mse")
        model.optimizer.build(model.trainable_variables)
    said = ""
    if RANK == 0:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(slot_saving, "_PATIENCE_SECONDS", 0.2)
            with pytest.raises(errors.DeadlineError) as caught:
                model.save(Path(folder) / "alone.keras")
        said = str(caught.value)
    else:
        STRATEGY.workers.next_number("tfdist/sharded")
    STRATEGY.workers.gather([0])
    return said


RESUMED = {
    "adam, accumulating": lambda: kinds.Adam(0.05, gradient_accumulation_steps=2, global_clipnorm=0.5),
    "adafactor": lambda: kinds.Adafactor(0.05),
    "accumulating": lambda: DistributedOptimizer(kinds.Adam(0.05), accumulate_steps=2),
}


def begun(folder: str, names: list[str]) -> dict[str, Any]:
    """Train with a backup after the third of six steps, and keep the backup as it is before the fifth.

    Return the result of the uninterrupted training.
    """
    found = {}
    for name in names:
        place = Path(folder) / "of all" / name
        backup = tfdist.callbacks.BackupAndRestore(place, 3, asynchronous=False)
        killed = Killed(4, place, Path(folder) / name, keeps=RANK == 0)
        never = trained("plain", RESUMED[name], STRATEGY.scope(), callbacks=[backup, killed])
        found[name] = [one.tolist() for one in [*never.get_weights(), *slots(never)]]
        STRATEGY.workers.gather([0])
    return found


def resumed(folder: str, names: list[str]) -> dict[str, Any]:
    found = {}
    for name in names:
        backup = tfdist.callbacks.BackupAndRestore(Path(folder) / name, 3, asynchronous=False)
        begins: list[int] = []
        noted = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: begins.append(batch))  # noqa: B023
        model = trained("plain", RESUMED[name], STRATEGY.scope(), callbacks=[backup, noted])
        assert len(begins) == 3, f"{name}: not the last three of six steps"
        found[name] = [one.tolist() for one in [*model.get_weights(), *slots(model)]]
        STRATEGY.workers.gather([0])
    return found


class Branching(keras.layers.Layer):
    """Uses weights in a condition, in the turns of a loop and in a function of TensorFlow's."""

    def build(self, shape: Any) -> None:
        self.kernels = [self.add_weight(shape=(shape[-1], shape[-1]), name=name) for name in ("if", "loop", "function")]

    def call(self, x: Any) -> Any:
        in_condition, in_loop, in_function = self.kernels
        x = tf.cond(
            tf.reduce_sum(in_loop) > 0, lambda: tf.matmul(x, in_condition), lambda: tf.matmul(x, 2 * in_condition)
        )
        _, x = tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, tf.tanh(tf.matmul(x, in_loop))), (0, x))
        return tf.function(lambda x: tf.matmul(x, in_function))(x)


class Updating(keras.Model):
    """Updates in a loop of its own, and uses the weights again."""

    def train_step(self, data: Any) -> dict[str, Any]:
        def update(turn: Any, last: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(data[0], training=True) - data[1]))
            self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
            return turn + 1, tf.reshape(loss, [])

        return {"loss": tf.while_loop(lambda turn, _: turn < 2, update, (0, tf.constant(0.0)))[1]}


def with_control_flow() -> float:
    """Return the distance from one device of a model whose layers have conditions, loops and functions."""

    def fitted(scope: Any) -> list[Any]:
        keras.utils.set_random_seed(3)
        with scope:
            model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(4), Branching(), keras.layers.Dense(1)])
            model.compile(kinds.Adam(0.05, clipnorm=0.1), "mse")
        model.fit(X, Y, batch_size=BATCH, epochs=2, verbose=0, shuffle=False)
        return model.get_weights()

    return distance(fitted(STRATEGY.scope()), fitted(tf.distribute.get_strategy().scope()))


def _loop_of_updates() -> None:
    with STRATEGY.scope():
        given = keras.Input((5,))
        model = Updating(given, keras.layers.Dense(1)(given))
        model.compile(kinds.SGD(0.1))
    model.fit(X, Y, batch_size=BATCH, verbose=0)


def refused(among: list[str] | None) -> dict[str, list[Any]]:
    codec = {"accumulate_steps": 2, "compression": "topk"}
    adasum = {"accumulate_steps": 2, "reduction": "adasum"}
    own: dict[str, Any] = {"apply": own_kinds.OwnApply, "pairs": own_kinds.OwnPairs, "number": own_kinds.Counts}
    own |= {"vector": own_kinds.Norms, "generator": own_kinds.Noisy}
    ways: dict[str, Any] = {
        **{name: lambda one=one: trained("plain", lambda: one(0.1), STRATEGY.scope()) for name, one in own.items()},
        "scale": lambda: trained("plain", lambda: own_kinds.OwnScale(keras.optimizers.SGD(0.1)), STRATEGY.scope()),
        "averages": lambda: trained("plain", lambda: own_kinds.OwnAverages(0.1, use_ema=True), STRATEGY.scope()),
        "compression": lambda: trained("plain", lambda: DistributedOptimizer("sgd", **codec), STRATEGY.scope()),
        "adasum": lambda: trained("plain", lambda: DistributedOptimizer("sgd", **adasum), STRATEGY.scope()),
        "loop of updates": _loop_of_updates,
        "no stage": lambda: tfdist.strategies.MultiWorkerMirroredStrategy(shard_optimizer=0),
        "loop": _own_loop,
        "checkpoint": _checkpoint,
    }
    chosen = among or [name for name in ways if name != "loop of updates"]
    found = {name: refusal_fields.met(ways[name], errors.TfdistError) for name in chosen}
    return {name: report for name, report in found.items() if report != refusal_fields.NOTHING}


def _own_loop() -> None:
    with STRATEGY.scope():
        variable = keras.Variable(np.ones((4, 3), "float32"))
        optimizer = keras.optimizers.Adam(0.1)
        optimizer.build([variable])
    tf.function(lambda: STRATEGY.run(lambda: optimizer.apply([tf.ones([4, 3])], [variable])))()


def _checkpoint() -> None:
    with STRATEGY.scope():
        model = network()
        model.compile(kinds.Adam(0.05, name="checked"), "mse")
    with tempfile.TemporaryDirectory() as folder:
        weights = tf.train.Checkpoint(layers=model.layers)
        weights.read(weights.write(f"{folder}/weights")).assert_consumed()
        tf.train.Checkpoint(model=model).write(f"{folder}/all")


def a_bad_gradient() -> dict[str, Any]:
    """The gradient of one feature overflows, of the last worker's examples and in one worker's part: all skip the step.

    Return how far weights, slots and loss scale are from those of one device, and the number of skipped steps.
    """
    found = {}
    makers = {
        "keras": lambda: kinds.LossScaleOptimizer(kinds.Adam(0.05), 64.0),
        "tfdist": lambda: DistributedOptimizer(kinds.Adam(0.05), loss_scale=64.0),
    }
    x = X.copy()
    x[BATCH - 1, -1] = 3e38  # of the last worker, in the first batch

    def fitted(optimizer: Any, scope: Any, **options: Any) -> keras.Model:
        with scope:
            keras.utils.set_random_seed(3)
            model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3), keras.layers.Dense(1)])
            model.compile(optimizer(), "mse", **options)
            kernel = model.layers[0].kernel
            kernel.assign(kernel.numpy() * np.array([[1], [1], [1], [1], [0]], "float32"))  # the loss is finite
        model.fit(x, Y, batch_size=BATCH, verbose=0, shuffle=False)
        return model

    for name, optimizer in makers.items():
        mine = fitted(optimizer, STRATEGY.scope())
        one = fitted(optimizer, tf.distribute.get_strategy().scope(), run_eagerly=True)
        apart = distance([*mine.get_weights(), *slots(mine)], [*one.get_weights(), *_numbers(one.optimizer)])
        found[name] = [apart, ROWS // BATCH - int(mine.optimizer.iterations.numpy())]
    return found


def _numbers(optimizer: Any) -> list[Any]:
    return [variable.numpy() for variable in optimizer.variables]


def eagerly() -> float:
    def compiled(scope: Any) -> keras.Model:
        with scope:
            model = network()
            model.compile(kinds.LossScaleOptimizer(kinds.Nadam(0.05, global_clipnorm=0.2)), "mse", run_eagerly=True)
        model.fit(X, Y, batch_size=BATCH, verbose=0, shuffle=False)
        return model

    return distance(
        compiled(STRATEGY.scope()).get_weights(), compiled(tf.distribute.get_strategy().scope()).get_weights()
    )
