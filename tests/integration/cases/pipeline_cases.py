"""Cases of pipelines: each runs in every process at once and returns JSON values."""

import contextlib
import functools
import math
import os
import shutil
import zlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.integration.cases.hearing import heard
from tests.integration.cases.resuming import Interrupt, far
from tfdist.callbacks import BackupAndRestore
from tfdist.compat.tensorflow.meshes import sharded_variable
from tfdist.optimizers import LARS
from tfdist.planner import schedules
from tfdist.strategies import ModelParallelStrategy, PipelineStrategy, use_logical_cpus

if "LOGICAL_CPUS" in os.environ:
    use_logical_cpus(int(os.environ["LOGICAL_CPUS"]))
RANK = int(os.environ.get("TFDIST_WORKER_INDEX", 0))
# three batches, the last of 3: of two replicas one has a micro-batch more; even ones where each size need not be traced
ROWS, EVEN, BATCH = 27, 24, 12
RANDOM = np.random.RandomState(0)
X = RANDOM.normal(size=(ROWS, 6)).astype("float32")
Z = RANDOM.normal(size=(ROWS, 3)).astype("float32")
Y = np.tanh(X[:, :2] - X[:, 2:4]) + 0.05 * np.arange(ROWS)[:, None].astype("float32") / ROWS
IDS = RANDOM.randint(1, 12, size=(ROWS, 3)).astype("int32")
SERIES = RANDOM.normal(size=(ROWS, 5, 4)).astype("float32")
SERIES[::2, 3:] = 0


@functools.cache
def strategy(mesh: str, microbatches: int = 2, **options: Any) -> Any:
    return PipelineStrategy(mesh=mesh, microbatches=microbatches, **options)


def mlp() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(12, activation="tanh", kernel_regularizer="l2"),
            layers.Dense(6, activation="tanh", kernel_constraint="unit_norm", kernel_initializer="orthogonal"),
            layers.Dense(6, activation="tanh", activity_regularizer="l2", name="undecayed"),
            layers.Dense(2),
        ]
    )


def excluding(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return the optimizer, which does not decay biases and one layer, by the names of variables."""
    optimizer.exclude_from_weight_decay(var_names=["bias", "undecayed"])
    return optimizer


def branches() -> keras.Model:
    """Two inputs and two outputs, a layer that three calls share, and tensors that skip stages."""
    layers = keras.layers
    left, right = keras.Input((6,), name="left"), keras.Input((3,), name="right")
    shared = layers.Dense(5, "tanh", name="shared", kernel_regularizer="l2")
    first = shared(layers.Dense(5)(left))
    second = layers.Dense(5, "relu")(layers.Concatenate()([first, right]))
    third = layers.Add()([first, shared(second)])
    early = layers.Dense(1, name="early")(first)
    last = layers.Dense(2, name="last")(shared(layers.Multiply()([third, second])))
    return keras.Model([left, right], [last, early])


class _Tied(keras.layers.Layer):
    """A table of words that looks up, and gives scores of words back."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.words = keras.layers.Embedding(12, 6)

    def build(self, shape: Any) -> None:
        self.words.build(shape)

    def call(self, x: Any, scores: bool = False) -> Any:
        return keras.ops.matmul(x, keras.ops.transpose(self.words.embeddings)) if scores else self.words(x)


def words() -> keras.Model:
    """A table at both ends of the pipeline, and one of places, whose rows are the same in every example."""
    layers = keras.layers
    ids = keras.Input((3,), dtype="int32")
    table = _Tied()
    x = table(ids) + layers.Embedding(3, 6)(keras.ops.arange(3))
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True))
    scores = table(layers.Dense(6, "gelu")(x), scores=True)
    return keras.Model(ids, layers.Dense(2)(layers.Flatten()(scores)))


def whole_batches() -> keras.Model:
    """Return a model that needs whole batches: statistics of the batch, masks, one device's random numbers."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((5, 4)),
            layers.Masking(),
            layers.Dense(6, "tanh"),
            layers.Dropout(0.3, seed=5),
            layers.LSTM(6, unroll=True, return_sequences=True),
            layers.LSTM(4, unroll=True),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(2),
        ]
    )


def statistics() -> keras.Model:
    """Statistics of the batch on both stages, one of them inside of a layer."""
    layers = keras.layers
    inner = keras.Sequential(
        [layers.Dense(8, use_bias=False), layers.BatchNormalization(momentum=0.5, synchronized=True)]
    )
    normalized = layers.BatchNormalization(momentum=0.5, synchronized=True)
    return keras.Sequential([keras.Input((6,)), inner, layers.Dense(8, "tanh"), normalized, layers.Dense(2)])


class Named(keras.Model):
    """Computes by a call of its own, and names the layers that it calls."""

    def __init__(self, between: float = 1.0) -> None:
        super().__init__()
        self.first = keras.layers.Dense(8, "tanh")
        self.inner = [keras.Sequential([keras.layers.Dense(8, "tanh"), keras.layers.Dropout(0.0)]) for _ in range(2)]
        self.last = keras.layers.Dense(2)
        self.between = between

    def pipeline_blocks(self) -> list[Any]:
        return [keras.Input((6,)), self.first, *self.inner, self.last]

    def call(self, x: Any, training: bool | None = None) -> Any:
        x = self.first(x)
        for block in self.inner:
            x = block(x, training=training)
        if self.between != 1 and not training:  # which is no block
            x = self.between * x
        return self.last(x)


def short() -> keras.Model:
    """Fewer calls than stages, of which the last ones have the loss alone, or nothing."""
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(2)])


def masked() -> keras.Model:
    """Two losses over places that differ in number from example to example, one of which divides by weights."""
    layers = keras.layers
    ids = keras.Input((3,), dtype="int32")
    x = layers.LSTM(5, unroll=True, return_sequences=True)(layers.Embedding(12, 6, mask_zero=True)(ids))
    x = layers.Dense(5, "tanh", activity_regularizer="l2")(x)
    return keras.Model(ids, [layers.Dense(2, name="first")(x), layers.Dense(1, name="second")(x)])


# In a step of the others most operations are of the optimizer: where layers are asked for, it is the plain one.
OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "plain": lambda: keras.optimizers.SGD(0.02, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.02, global_clipnorm=0.2),
    "adamw": lambda: excluding(keras.optimizers.AdamW(0.02, weight_decay=0.1, use_ema=True, ema_overwrite_frequency=2)),
    "averaged": lambda: keras.optimizers.Adam(0.02, global_clipnorm=0.2, use_ema=True, ema_overwrite_frequency=2),
    "accumulating": lambda: keras.optimizers.RMSprop(0.01, gradient_accumulation_steps=2, global_clipnorm=0.3),
    "scaling": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.02, clipnorm=0.1), dynamic_growth_steps=2
    ),
    # whose update looks at a whole weight, which a stage has
    "lars": lambda: LARS(0.5, trust_coefficient=0.1, exclude=[]),
    "muon": lambda: keras.optimizers.Muon(0.02),
}
MODELS: dict[str, tuple[Callable[[], keras.Model], Any, str]] = {
    "mlp-adamw": (mlp, X, "adamw"),
    "mlp-accumulating": (mlp, X, "accumulating"),
    "mlp-scaling": (mlp, X, "scaling"),
    "branches": (branches, [X, Z], "adam"),
    "words": (words, IDS, "adam"),
    "words-averaged": (words, IDS, "averaged"),
    "whole batches": (whole_batches, SERIES, "plain"),
    "statistics": (statistics, X, "plain"),
    "named": (Named, X, "muon"),
    "short": (short, X, "lars"),
    "masked": (masked, IDS * (RANDOM.uniform(size=IDS.shape) < 0.6), "plain"),
}


def made(name: str) -> tuple[keras.Model, Any, Any]:
    make, x, optimizer = MODELS[name]
    keras.utils.set_random_seed(7)
    model = make()
    several = len(getattr(model, "outputs", [])) > 1
    if name == "masked":
        losses = [keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"), "mae"]
        model.compile(OPTIMIZERS[optimizer](), losses, weighted_metrics=[["mae"], ["mae"]])
        targets = np.repeat(Y[:, None], 3, axis=1) * [[[1], [2], [3]]]
        return model, x, ([targets, targets[..., :1]], [1 + np.arange(3 * ROWS).reshape(ROWS, 3) % 4] * 2)
    model.compile(OPTIMIZERS[optimizer](), "mse", metrics=[["mae"], ["mae"]] if several else ["mae"])
    return model, x, [Y, Y[:, :1]] if several else Y


def made_alone(name: str) -> tuple[keras.Model, Any, Any]:
    """Return a model for one device, which runs eagerly where Keras' losses have the same bits then."""
    model, x, y = made(name)
    model.run_eagerly = len(getattr(model, "outputs", [])) < 2
    return model, x, y


def trained(model: keras.Model, x: Any, y: Any, *, rows: int, evaluates: bool) -> dict[str, Any]:
    x, y = keras.tree.map_structure(lambda one: one[:rows], (x, y))
    y, *weights = y if isinstance(y, tuple) else (y,)
    options: dict[str, Any] = {"batch_size": BATCH, "verbose": 0}
    named = {"sample_weight": weights[0]} if weights else {}
    validation = (x, y, *weights) if evaluates else None
    history = model.fit(x, y, epochs=2, shuffle=False, validation_data=validation, **named, **options)
    # a loss scale is shown as well
    found = {key: np.array(one) for key, one in history.history.items() if key.endswith(("loss", "mae"))}
    if evaluates:
        found["predict"] = np.concatenate([one.ravel() for one in keras.tree.flatten(model.predict(x, **options))])
        found["evaluate"] = np.array(model.evaluate(x, y, **named, **options))
    return {
        **found,
        **{f"weight {index}": weight for index, weight in enumerate(model.get_weights())},
        **{f"slot {index}": np.asarray(v) for index, v in enumerate(model.optimizer.variables)},
    }


def distances(
    mesh: str, name: str, references: str, *, rows: int = ROWS, evaluates: bool = True, **options: Any
) -> dict[str, Any]:
    """Train on the mesh, and in process 0 on one device: return what differs by more than 1e-5, and bytes held.

    Every process returns a digest of all that it found, which must be the same everywhere.
    """
    with strategy(mesh, **options).scope():
        model, x, y = made(name)
    found = trained(model, x, y, rows=rows, evaluates=evaluates)
    far: dict[str, float] = {}
    if RANK == 0:
        wanted = on_one_device(name, references, rows=rows, evaluates=evaluates)
        assert found.keys() == wanted.keys()
        far = {key: float(np.max(np.abs(found[key] - one) / np.maximum(1, np.abs(one)))) for key, one in wanted.items()}
    shards = [sharded_variable.innermost(variable._value) for variable in model.weights]
    slots = [sharded_variable.innermost(variable._value) for variable in model.optimizer.variables]
    part_bytes = sum(slot.shape.num_elements() * slot.dtype.size for slot in slots if slot.shape.rank)
    every = [*model.weights, *model.optimizer.variables]
    in_parts = [one for one in every if sharded_variable.sharding_of(one) is not None]
    firsts = [sharded_variable.part_of(one) for one in in_parts if sharded_variable.sharding_of(one).is_first]
    return {
        # of what is in parts: elements that no process before this one has, and all
        "counted": sum(int(part.shape.num_elements()) for part in firsts),
        "elements": sum(math.prod(one.shape) for one in in_parts),
        "bytes of slots": part_bytes,
        "devices": [shard.device[-1] for shard in shards],
        "devices of slots": sorted({slot.device[-1] for slot in slots if slot.shape.rank}),
        "digest": zlib.crc32(b"".join(value.tobytes() for value in found.values())),
        "held": [int(np.prod(shard.shape)) for shard in shards],
        "far": {key: distance for key, distance in far.items() if not distance < 1e-5},
    }


def on_one_device(name: str, references: str, *, rows: int, evaluates: bool) -> dict[str, Any]:
    """Train on one device, or read what another process has found; those of one folder do it one after another."""
    paths = [f"{references}/{name}-{rows}-{evaluated}.npz" for evaluated in (True, evaluates)]
    if not any(map(os.path.exists, paths)):
        np.savez(paths[1], **trained(*made_alone(name), rows=rows, evaluates=evaluates))
    with np.load(next(filter(os.path.exists, paths))) as arrays:
        return {key: arrays[key] for key in arrays if evaluates or not key.startswith(("val_", "predict", "evaluate"))}


class Take(keras.layers.Layer):
    """Takes the rows of a table that examples name."""

    def call(self, table: Any, places: Any) -> Any:
        return keras.ops.take(table, places[:, 0], axis=0)

    def compute_output_shape(self, table_shape: Any, places_shape: Any) -> Any:
        return places_shape[0], table_shape[1]


def _asked() -> keras.Model:
    layers = keras.layers
    kind, table = keras.Input(batch_shape=(9,), dtype="int32", name="kind"), keras.Input(batch_shape=(9, 3), name="tab")
    places = keras.Input((1,), dtype="int32", name="places")
    nodes = layers.Dense(4, "tanh")(layers.Concatenate()([table, layers.Embedding(7, 4)(kind)]))
    x = layers.Dense(5, "tanh", kernel_regularizer="l2")(Take()(nodes, places))
    return keras.Model({"kind": kind, "places": places, "tab": table}, layers.Dense(2)(x))


def whole_inputs(mesh: str) -> dict[str, Any]:
    """Train on rows of a table that each replica and micro-batch has whole; return how far all is from one device."""
    scope = strategy(mesh)
    whole = {"kind": tf.constant([1, 4, 4, 0, 2, 2, 2, 5, 1]), "tab": tf.constant(Z[:9])}

    def batch(rows: Any) -> Any:
        places = tf.cast(rows[:, None] * 5 % 9, tf.int32)
        return {"places": places, **whole}, tf.gather(tf.constant(Y, tf.float32), rows)

    def trained(model: keras.Model) -> dict[str, Any]:
        batches = tf.data.Dataset.range(ROWS).batch(BATCH).map(batch)
        fitted = model.fit(batches, epochs=2, verbose=0, validation_data=batches).history
        predicted = model.predict(batches.map(lambda x, y: x), verbose=0)
        weights = np.concatenate([weight.ravel() for weight in model.get_weights()])
        return {**fitted, "predict": predicted, "weights": weights}

    def made() -> keras.Model:
        keras.utils.set_random_seed(7)
        model = _asked()
        model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
        return model

    scope.whole_inputs = ["kind", "tab"]
    with scope.scope():
        found = trained(made())
    scope.whole_inputs = ()
    wanted = trained(made()) if RANK == 0 else {}
    distances = {key: float(np.max(np.abs(np.subtract(found[key], one)))) for key, one in wanted.items()}
    return {"far": {key: distance for key, distance in distances.items() if not distance < 1e-5}}


class Noted(keras.layers.Layer):
    """Notes when its forward and its backward pass run, as F and B, and that it is traced, by its name."""

    def __init__(self, notes: list[str], traces: list[str], **options: Any) -> None:
        super().__init__(**options)
        self.note = notes.append  # Keras would copy the list
        self.traced = traces.append

    def call(self, x: Any) -> Any:
        self.traced(self.name)

        def note(kind: str, value: Any) -> Any:
            def add(given: Any) -> Any:
                self.note(kind)
                return given

            noted = tf.py_function(add, [value], value.dtype)
            return tf.ensure_shape(noted, value.shape)

        @tf.custom_gradient
        def passed(value: Any) -> Any:
            return note("F", value), lambda gradient: note("B", gradient)

        return passed(x)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def order(mesh: str, **options: Any) -> list[Any]:
    """Train one step; return the order in which each stage's passes ran, that which the schedule says, and traces."""
    notes: list[str] = []
    traces: list[str] = []
    layers = keras.layers
    over = strategy(mesh, **options)
    with over.scope():
        inside = [layer for _ in range(4) for layer in (layers.Dense(6), Noted(notes, traces))]
        model = keras.Sequential([keras.Input((6,)), *inside, layers.Dense(2)])
        model.compile("sgd", "mse")
    traces.clear()
    model.fit(X[:12], Y[:12], batch_size=12, verbose=0)
    made = schedules.named(
        options.get("schedule", "1f1b"), stages=over.mesh.size_of("pipeline"), microbatches=options["microbatches"]
    )
    wanted = [work.kind[0].upper() for work in made.orders[over.stage]]
    per_stage = len(notes) // len(wanted)
    return ["".join(notes[::per_stage]), "".join(wanted), max(map(traces.count, traces))]


def saved(mesh: str, folder: str) -> dict[str, Any]:
    """Save from all processes; return how far what is loaded, on one device and in stages, is from what was saved."""
    with strategy(mesh).scope():
        model, x, y = made("branches")
    x, y = keras.tree.map_structure(lambda one: one[:EVEN], (x, y))
    checkpoint = keras.callbacks.ModelCheckpoint(f"{folder}/last.keras")
    model.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[checkpoint])
    both = {"one device": keras.models.load_model(f"{folder}/last.keras")}
    with strategy(mesh).scope():
        both["stages"] = keras.models.load_model(f"{folder}/last.keras")
    predicted = {name: one.predict(x, batch_size=BATCH, verbose=0) for name, one in {"": model, **both}.items()}
    wanted = _state(model)
    return {
        "far": {name: far(wanted, _state(one)) for name, one in both.items()},
        "rows": max(far(predicted[""], one) for one in predicted.values()),
        "files": sorted(os.listdir(folder)),
    }


def _state(model: keras.Model) -> list[np.ndarray]:
    return [np.asarray(variable) for variable in [*model.weights, *model.optimizer.variables]]


def resumed(folder: str, meshes: list[str | None], *, saves: bool = False, **options: Any) -> dict[str, Any]:
    """Train on one mesh after another, each from the other's backup; return how far from one device it ends.

    A mesh with the axis batch is one of model parallelism. On one device, None, the first process alone goes on; others
    return nothing. If asked to, save the model of the first mesh, and say how far what is loaded is from it.
    """
    file, folder = f"{folder}/saved.keras", f"{folder}/backup"
    loaded: dict[str, float] = {}
    three_batches: dict[str, Any] = {"batch_size": EVEN // 3, "epochs": 3, "shuffle": False, "verbose": 0}
    for turn, mesh in enumerate(meshes):
        if mesh is None and RANK:
            return {"loaded": loaded}
        if mesh is None:
            scope: Any = contextlib.nullcontext()
        elif mesh.startswith("batch"):
            scope = ModelParallelStrategy(mesh=mesh, layout_map="auto").scope()
        else:
            scope = strategy(mesh, **options).scope()
        with scope:
            model, x, y = (made if mesh else made_alone)("mlp-adamw")
        mine = f"{folder}-{RANK}" if mesh is None else folder
        if mesh is None:
            shutil.copytree(folder, mine)
        callbacks = [BackupAndRestore(mine, save_freq=2, asynchronous=False, delete_checkpoint=False)]
        callbacks += [] if turn == len(meshes) - 1 else [Interrupt(2 + 2 * turn)]
        with contextlib.suppress(KeyboardInterrupt):
            model.fit(x[:EVEN], y[:EVEN], **three_batches, callbacks=callbacks)
        if saves and turn == 0:
            loaded = _saved_and_loaded(model, file, strategy(str(mesh), **options))
    ours = _state(model)
    if RANK:
        return {"loaded": loaded}
    one, x, y = made_alone("mlp-adamw")
    one.fit(x[:EVEN], y[:EVEN], **three_batches)
    return {"far": far(ours, _state(one)), "steps": float(model.optimizer.iterations.numpy()), "loaded": loaded}


def _saved_and_loaded(model: keras.Model, file: str, over: Any) -> dict[str, float]:
    """Save from all processes; return the errors of models that the first one loads, on one device and in stages."""
    wanted = _state(model)
    model.save(file)
    with over.scope():
        both = {"stages": keras.models.load_model(file)}
    if RANK == 0:
        both["one device"] = keras.models.load_model(file)
    return {name: far(wanted, _state(one)) for name, one in both.items()}


def dropped(mesh: str) -> list[Any]:
    """Return losses of trainings with dropout in micro-batches: in order, with recomputation, and by GPipe."""
    found = []
    for options in ({}, {"recompute": True}, {"schedule": "gpipe"}):
        keras.utils.set_random_seed(7)
        layers = keras.layers
        with strategy(mesh, **options).scope():
            inside = [layers.Dense(16, "tanh"), layers.Dropout(0.4), layers.Dense(16, "tanh"), layers.Dropout(0.4)]
            model = keras.Sequential([keras.Input((6,)), *inside, layers.Dense(2)])
            model.compile("adam", "mse")
        x, y = X[:EVEN], Y[:EVEN]
        losses = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history["loss"]
        found.append([round(loss, 6) for loss in losses])
    return found


class TwoTables(keras.layers.Layer):
    """Adds what two tables have for a word; scores words by the first one."""

    def build(self, shape: Any) -> None:
        self.words, self.kinds = keras.layers.Embedding(12, 6), keras.layers.Embedding(12, 6)
        for table in (self.words, self.kinds):
            table.build(shape)

    def call(self, x: Any, scores: bool = False) -> Any:
        if scores:
            return keras.ops.matmul(x, keras.ops.transpose(self.words.embeddings))
        return self.words(x) + self.kinds(x)


def tables_of_two_stages() -> dict[str, list[str]]:
    """Train a layer with two tables that the last stage calls too; return what is told of them with each optimizer."""
    told = {}
    for optimizer in ("sgd", "adam"):
        with strategy("data=1,pipeline=2", stages=("middle",)).scope():
            ids, table = keras.Input((3,), dtype="int32"), TwoTables(name="table")
            scores = table(keras.layers.Dense(6, name="middle")(table(ids)), scores=True)
            model = keras.Model(ids, keras.layers.Flatten()(scores))
            model.compile(optimizer, "mse")
        with heard() as said:
            model.fit(np.ones((8, 3), "int32"), np.zeros((8, 36)), batch_size=8, verbose=0)
        told[optimizer] = [one for one in said if "table/embedding" in one]
    return told
