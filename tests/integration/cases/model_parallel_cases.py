"""Cases of model parallelism: each runs in every process at once and returns JSON values."""

import contextlib
import functools
import io
import logging
import os
import shutil
import zlib
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import tfdist
from benchmarks.parallel import dtensor_perceptron as dtensor
from benchmarks.parallel import parallel_networks as networks
from tests.integration.cases import refusal_fields
from tests.integration.cases.model_parallel_models import (
    attention,
    convolution,
    einsums,
    embedding,
    mlp,
    recurrent,
    sequence,
)
from tests.integration.cases.optimizers_of_ones_own import OwnApply, OwnPairs
from tests.integration.cases.resuming import Interrupt, far, far_when_served
from tfdist import errors
from tfdist.callbacks import BackupAndRestore
from tfdist.cluster.mesh import Mesh
from tfdist.parallel import weight_layouts
from tfdist.parallel.mesh_axes import Axes
from tfdist.strategies import ModelParallelStrategy

RANK = int(os.environ.get("TFDIST_WORKER_INDEX", "0"))
tfdist.strategies.use_logical_cpus(int(os.environ.get("LOGICAL_CPUS", "1")))
# Four batches, the last of 5. Where that is not asked, three even ones are trained, since a step is traced for each
# number of examples.
ROWS, EVEN, BATCH = 41, 36, 12
RANDOM = np.random.RandomState(0)
X = RANDOM.normal(size=(ROWS, 6)).astype("float32")
Y = np.tanh(X[:, :2] - X[:, 2:4]) + 0.05 * np.arange(ROWS)[:, None].astype("float32") / ROWS
IDS = RANDOM.randint(0, 12, size=(ROWS, 3)).astype("int32")
PICTURES = RANDOM.normal(size=(ROWS, 6, 6, 2)).astype("float32")


@functools.cache
def strategy(mesh: str, collectives: str = "auto", layouts: str = "auto") -> ModelParallelStrategy:
    given: Any = LAYOUT_MAPS.get(layouts, layouts)
    return ModelParallelStrategy(mesh=mesh, layout_map=given, collectives=collectives)


LAYOUT_MAPS: dict[str, dict[str, tuple[str | None, ...]]] = {
    "rows": {".*kernel": ("model",), ".*embeddings": ("model", None)},
    "table rows": {".*embeddings": ("model", None)},
    "both": {".*kernel": ("model", "row"), ".*bias": ("row",)},
    "outputs": {
        ".*dense.*/kernel": (None, "model"),
        ".*dense.*/output": ("batch", "model", None),
        ".*norm.*/output": (),
    },
}


# In a step of the others most operations are of the optimizer: where layers are asked for, it is the plain one.
OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "plain": lambda: keras.optimizers.SGD(0.02, momentum=0.9),
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=0.1),
    "adam": lambda: keras.optimizers.Adam(0.02, global_clipnorm=0.2),
    "adamw": lambda: keras.optimizers.AdamW(0.02, weight_decay=0.1, use_ema=True, ema_overwrite_frequency=2),
    "accumulating": lambda: keras.optimizers.RMSprop(0.01, gradient_accumulation_steps=2, global_clipnorm=0.3),
    "scaling": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.Adam(0.02, clipnorm=0.1), dynamic_growth_steps=2
    ),
}
MODELS: dict[str, tuple[Callable[[], keras.Model], np.ndarray, str]] = {
    "mlp": (mlp, X, "sgd"),
    "mlp-adamw": (mlp, X, "adamw"),
    "mlp-accumulating": (mlp, X, "accumulating"),
    "mlp-scaling": (mlp, X, "scaling"),
    "embedding": (embedding, IDS, "adam"),
    "convolution": (convolution, PICTURES, "plain"),
    "attention": (attention, IDS, "plain"),
    "einsums": (einsums, PICTURES[..., 0], "plain"),
    "sequence": (sequence, np.concatenate([IDS, IDS[::-1] // 2], axis=1), "plain"),
    "recurrent": (recurrent, PICTURES[..., 0], "plain"),
}


def made(name: str) -> tuple[keras.Model, np.ndarray]:
    make, x, optimizer = MODELS[name]
    keras.utils.set_random_seed(7)
    model = make()
    model.compile(OPTIMIZERS[optimizer](), "mse", metrics=["mae"])
    return model, x


def made_alone(name: str) -> tuple[keras.Model, np.ndarray]:
    """Return a model for one device, which runs eagerly: that takes half of what it takes to trace a few steps."""
    model, x = made(name)
    model.run_eagerly = True
    return model, x


def digest(values: Iterable[np.ndarray]) -> int:
    """Return a number that all processes must have alike; what it is of, process 0 compares with one device."""
    return zlib.crc32(b"".join(value.tobytes() for value in values))


def trained(
    name: str, model: keras.Model, x: np.ndarray, *, dropped: bool, rows: int = EVEN, then: Iterable[str] = ()
) -> dict[str, Any]:
    """Train, and then validate, evaluate and predict, where that is asked."""
    if not dropped:
        for layer in model._flatten_layers():  # those in layers as well
            if hasattr(layer, "rate"):
                layer.rate = 0.0
    options: dict[str, Any] = {"batch_size": BATCH, "verbose": 0}
    other = (x[:7], Y[:7]) if "validate" in then else None
    history = model.fit(x[:rows], Y[:rows], epochs=2, shuffle=False, validation_data=other, **options).history
    return {
        **{key: np.array(history[key]) for key in ("loss", "mae", "val_loss", "val_mae")[: 4 if other else 2]},
        "evaluate": np.array(model.evaluate(x[:rows], Y[:rows], **options) if "evaluate" in then else 0),
        "predict": model.predict(x[:rows], **options) if "predict" in then else np.zeros(1),
        **{f"weight {index}": weight for index, weight in enumerate(model.get_weights())},
        **{f"slot {index}": np.asarray(v) for index, v in enumerate(model.optimizer.variables)},
    }


def distances(
    mesh: str, name: str, references: str, *, rows: int = EVEN, then: Iterable[str] = (), **options: str
) -> dict[str, Any]:
    """Train on the mesh, and in process 0 on one device: return what differs by more than 1e-5, beside what is cut.

    Every process returns a digest of all that it found, which must be the same everywhere.
    """
    # replicas draw other masks, as they must
    dropped = Mesh.parse(mesh).size_of("batch") == 1 or name.startswith(("mlp", "embedding"))  # which have none
    with strategy(mesh, **options).scope():
        model, x = made(name)
    found = trained(name, model, x, dropped=dropped, rows=rows, then=then)
    far: dict[str, float] = {}
    if RANK == 0:
        wanted = on_one_device(name, references, dropped=dropped, rows=rows, then=then)
        assert found.keys() == wanted.keys(), found.keys() ^ wanted.keys()
        far = {key: float(np.max(np.abs(found[key] - one) / np.maximum(1, np.abs(one)))) for key, one in wanted.items()}
    return {
        "digest": digest(found.values()),
        "cut": sum(hasattr(variable._value, "shard") for variable in model.weights),
        "far": {key: distance for key, distance in far.items() if not distance < 1e-5},
    }


def on_one_device(name: str, references: str, *, dropped: bool, rows: int, then: Iterable[str]) -> dict[str, Any]:
    """Train on one device, or read what another process has found; those of one folder do it one after another."""
    path = f"{references}/{name}-{dropped}-{rows}-{'-'.join(then)}.npz"
    if not os.path.exists(path):
        np.savez(path, **trained(name, *made_alone(name), dropped=dropped, rows=rows, then=then))
    with np.load(path) as arrays:
        return dict(arrays)


def uneven(mesh: str) -> dict[str, float]:
    """Train on batches of 7, whose parts have other sizes that are known; return how far from one device it ends."""
    both = []
    for alone in (False, True) if RANK == 0 else (False,):
        with contextlib.nullcontext() if alone else strategy(mesh).scope():
            model, x = made_alone("mlp") if alone else made("mlp")
        model.fit(x[:35], Y[:35], batch_size=7, epochs=2, shuffle=False, verbose=0)
        both.append(model.get_weights())
    return {"far": far(*both) if RANK == 0 else 0.0, "digest": digest(both[0])}


def saved(mesh: str, folder: str) -> dict[str, Any]:
    """Save from all processes; return how far what is loaded, on one device and on the mesh, is from what was saved."""
    with strategy(mesh).scope():
        model, x = made("mlp")
    checkpoint = keras.callbacks.ModelCheckpoint(f"{folder}/last.keras")
    model.fit(x[:EVEN], Y[:EVEN], batch_size=BATCH, verbose=0, callbacks=[checkpoint])
    model.save_weights(f"{folder}/own.weights.h5")
    both = {"one device": keras.models.load_model(f"{folder}/last.keras")}
    with strategy(mesh).scope():
        both["mesh"] = keras.models.load_model(f"{folder}/last.keras")
        both["weights"], _ = made("mlp")
        both["weights"].set_weights([0 * weight for weight in model.get_weights()])
        both["weights"].load_weights(f"{folder}/own.weights.h5")
    wanted = model.get_weights()
    slots = [np.asarray(variable) for variable in model.optimizer.variables]
    return {
        "far": {name: far(wanted, one.get_weights()) for name, one in both.items()},
        "slots": far(slots, [np.asarray(variable) for variable in both["one device"].optimizer.variables]),
        "exported": far_when_served(model, f"{folder}/exported", x[:3], strategy(mesh).scope()),
        "files": sorted(os.listdir(folder)),
    }


FOUR_BATCHES: dict[str, Any] = {"batch_size": 10, "epochs": 3, "shuffle": False, "verbose": 0}


def resumed(folder: str, meshes: list[str | None], *, ends: bool = True) -> dict[str, float]:
    """Train on one mesh after another, each from the other's backup; return how far from one device it ends.

    None is one device, on which each process goes on by itself. Unless it `ends`, others may go on behind the last.
    """
    folder = f"{folder}/backup"
    for turn, mesh in enumerate(meshes):
        with contextlib.nullcontext() if mesh is None else strategy(mesh).scope():
            model, x = (made if mesh else made_alone)("mlp-adamw")
        last = ends and turn == len(meshes) - 1
        # every process on one device has a directory of its own
        mine = f"{folder}-{RANK}" if mesh is None else folder
        if mesh is None:
            shutil.copytree(folder, mine)
        callbacks = [BackupAndRestore(mine, save_freq=3, asynchronous=False, delete_checkpoint=False)]
        callbacks += [] if last else [Interrupt(3 + 3 * turn)]
        with contextlib.suppress(KeyboardInterrupt):
            model.fit(x[:40], Y[:40], **FOUR_BATCHES, callbacks=callbacks)
    ours = [np.asarray(variable) for variable in [*model.weights, *model.optimizer.variables]]
    return {
        "far": far(ours, uninterrupted()) if ends and RANK == 0 else 0.0,
        "digest": digest(ours),
        "steps": float(model.optimizer.iterations.numpy()),
    }


@functools.cache
def uninterrupted() -> list[np.ndarray]:
    one, x = made_alone("mlp-adamw")
    one.fit(x[:40], Y[:40], **FOUR_BATCHES)
    return [np.asarray(variable) for variable in [*one.weights, *one.optimizer.variables]]


def by_distribution(mesh: str, references: str) -> dict[str, Any]:
    """Train by a distribution of Keras that is set, and by another strategy while it is."""
    shape, count = Mesh.parse(mesh).shape, Mesh.parse(mesh).size
    places = keras.distribution.DeviceMesh(shape, ["batch", "model"], [f"cpu:{place}" for place in range(count)])
    layouts = keras.distribution.LayoutMap(places)
    layouts[".*kernel"] = (None, "model")
    keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch"))
    try:
        over = tfdist.strategies.from_environment()
        with over.scope():
            model, x = made("mlp")
        found = trained("mlp", model, x, dropped=True)
        with strategy(mesh).scope():
            other, _ = made("mlp")
        refusal = refusal_fields.met(lambda: other.fit(x, Y, verbose=0), errors.TfdistError)
    finally:
        keras.distribution.set_distribution(None)
    wanted = on_one_device("mlp", references, dropped=True, rows=EVEN, then=()) if RANK == 0 else {}
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        tfdist.parallel.describe(model)
    return {
        "far": max((float(np.max(np.abs(found[key] - wanted[key]))) for key in wanted), default=0.0),
        "digest": digest(found.values()),
        "refusal": refusal,
        "places": [[*one.local_shape, one.bytes] for one in tfdist.parallel.places(model)],
        "table": stream.getvalue(),
    }


def gathered(mesh: str, name: str, layouts: str = "auto") -> dict[str, list[str]]:
    """Return what is gathered, added up and scattered in a step, beside gradients and metrics, and what was logged."""
    seen: dict[str, set[str]] = {"gathered": set(), "summed": set(), "scattered": set(), "logged": set()}
    listening = logging.Handler()
    listening.emit = lambda record: seen["logged"].add(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tfdist").addHandler(listening)
    own = Axes.all_gather, Axes.all_reduce, Axes.reduce_scatter

    def all_gather(self: Axes, tensor: Any, axis: str, dim: int, label: str) -> Any:
        seen["gathered"].add(label)
        return own[0](self, tensor, axis, dim, label)

    def reduce_scatter(self: Axes, tensor: Any, axis: str, dim: int, label: str) -> Any:
        seen["scattered"].add(label)
        return own[2](self, tensor, axis, dim, label)

    def all_reduce(self: Axes, tensors: Any, axes: Any, label: str) -> Any:
        seen["summed"].add(label)
        return own[1](self, tensors, axes, label)

    with strategy.__wrapped__(mesh, layouts=layouts).scope():  # a new one: each says a proposal once
        model, x = made(name)
    model.fit(x, Y, batch_size=ROWS, verbose=0)  # Keras looks at shapes in a trace of its own, which is not run
    Axes.all_gather, Axes.all_reduce = all_gather, all_reduce  # type: ignore[method-assign]
    Axes.reduce_scatter = reduce_scatter  # type: ignore[method-assign]
    try:
        model.fit(tf.data.Dataset.from_tensors((x[:7], Y[:7])), verbose=0)  # a batch of another layout is traced anew
    finally:
        Axes.all_gather, Axes.all_reduce, Axes.reduce_scatter = own  # type: ignore[method-assign]
        logging.getLogger("tfdist").removeHandler(listening)
    return {kind: sorted(labels) for kind, labels in seen.items()}


#: activation of the last layer, metrics
CLASSES: dict[str, tuple[str | None, list[str]]] = {
    "logits": (None, ["accuracy"]),
    "probabilities": ("softmax", []),
    "probabilities, accuracy": ("softmax", ["accuracy"]),
    "logits, the best": (None, ["sparse_top_k_categorical_accuracy"]),
}


def _classifying(kind: str, targets: np.ndarray, *, alone: bool = False) -> tuple[dict[str, Any], set[int]]:
    """Return what comes of training in the scope that is entered, and dims along which the last layer gathers."""
    keras.utils.set_random_seed(7)
    activation, metrics = CLASSES[kind]
    layers = [keras.layers.Dense(12, "tanh"), keras.layers.Dense(6, "tanh"), keras.layers.Dense(8, activation)]
    model = keras.Sequential([keras.Input((3, 2)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=activation is None)
    model.compile(keras.optimizers.Adam(0.02, global_clipnorm=0.5), loss, metrics=metrics, run_eagerly=alone)
    examples, targets = X[:EVEN].reshape(EVEN, 3, 2), targets[:EVEN]
    options: dict[str, Any] = {"batch_size": BATCH, "verbose": 0}
    gathered: set[int] = set()
    own = Axes.all_gather

    def all_gather(self: Axes, tensor: Any, axis: str, dim: int, label: str) -> Any:
        if label.startswith("activations"):
            gathered.add(dim)
        return own(self, tensor, axis, dim, label)

    Axes.all_gather = all_gather  # type: ignore[method-assign]
    try:
        history = model.fit(examples, targets, epochs=2, shuffle=False, **options)
    finally:
        Axes.all_gather = own  # type: ignore[method-assign]
    found = {name: np.asarray(values) for name, values in history.history.items()}
    if kind in ("logits", "probabilities"):  # the others are about the step
        evaluated = np.atleast_1d(model.evaluate(examples, targets, **options))
        found |= {f"evaluated {i}": one for i, one in enumerate(evaluated)}
        found["predicted"] = model.predict(examples, **options)
    return found | {f"weights {i}": one for i, one in enumerate(model.get_weights())}, gathered


def classes(mesh: str, kind: str) -> dict[str, Any]:
    """Return how far from one device a model of classes is, and along which dims its last layer gathers."""
    targets = IDS % 8
    with strategy(mesh).scope():
        mine, gathered = _classifying(kind, targets)
    wanted = _classifying(kind, targets, alone=True)[0] if RANK == 0 else {}
    return {
        "far": max((float(np.max(np.abs(mine[key] - wanted[key]))) for key in wanted), default=0.0),
        "digest": digest(map(np.asarray, mine.values())),
        "gathered": sorted(gathered),
    }


def digests_with_dropout(mesh: str) -> list[float]:
    """Return sums of what each process has after training with masks, which all of a group must have alike."""
    with strategy(mesh).scope():
        model, x = made("convolution")
    model.fit(x[:EVEN], Y[:EVEN], batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    return [float(np.sum(np.abs(weight))) for weight in model.get_weights()]


def refused(kind: str, mesh: str) -> list[Any]:
    """Return the report of the error for what cannot be."""
    return refusal_fields.met(lambda: _REFUSED[kind](mesh), errors.TfdistError, tf.errors.InvalidArgumentError)


def _no_match(mesh: str) -> None:
    over = ModelParallelStrategy(mesh=mesh, layout_map={".*kernel": (None, "model"), "lost.*": ("model",)})
    with over.scope():
        model, x = made("mlp")
    model.fit(x, Y, verbose=0)


def _no_activation(mesh: str) -> None:
    over = ModelParallelStrategy(mesh=mesh, layout_map={"lost/output": ("batch", "model")})
    with over.scope():
        model, x = made("mlp")
    model.fit(x, Y, verbose=0)


def _no_division(mesh: str) -> None:
    with ModelParallelStrategy(mesh=mesh, layout_map={".*": (None, "model")}).scope():
        keras.Sequential([keras.Input((6,)), keras.layers.Dense(5)])


def _optimizer(kind: type[keras.optimizers.Optimizer]) -> Callable[[str], None]:
    def fit(mesh: str) -> None:
        with strategy(mesh).scope():
            model = mlp()
            model.compile(kind(0.1), "mse")
        model.fit(X, Y, verbose=0)

    return fit


def _own_data(mesh: str) -> None:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    with strategy(mesh).scope():
        model, _ = made("mlp")
    model.fit(tf.data.Dataset.from_tensor_slices((X, Y)).batch(6).with_options(options), verbose=0)


def _jit(mesh: str) -> None:
    with strategy(mesh).scope():
        model = mlp()
        model.compile("sgd", "mse", jit_compile=True)
    model.fit(X, Y, verbose=0)


def _eagerly(mesh: str) -> None:
    with strategy(mesh).scope():
        model = mlp()
        model.compile("sgd", "mse", run_eagerly=True)
    model.fit(X, Y, verbose=0)


def _by_hand(mesh: str) -> None:
    strategy(mesh).experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(X).batch(6))


def _no_row(mesh: str) -> None:
    with strategy(mesh, layouts="table rows").scope():
        keras.Sequential([keras.Input((3,), dtype="int32"), keras.layers.Embedding(12, 6)]).predict(IDS + 7, verbose=0)


def _nothing(_: Any) -> None:
    pass


_REFUSED: dict[str, Callable[[str], None]] = {
    "pattern": _no_match,
    "activation": _no_activation,
    "division": _no_division,
    "lamb": _optimizer(keras.optimizers.Lamb),
    "own apply": _optimizer(OwnApply),
    "own pairs": _optimizer(OwnPairs),
    "own data": _own_data,
    "jit_compile": _jit,
    "run_eagerly": _eagerly,
    "a loop by hand": _by_hand,
    "an absent row": _no_row,
    "devices": lambda mesh: _nothing(ModelParallelStrategy(mesh=mesh, devices=["CPU:0"])),
    "divided": lambda mesh: _nothing(ModelParallelStrategy(mesh="batch=1,model=4")),
    "size": lambda mesh: _nothing(ModelParallelStrategy(mesh="batch=1,model=5")),
}


def blocks(mesh: str, width: int, steps: int, rate: float) -> tuple[list[float], dict[str, list[Any]]]:
    """Train the blocks of a transformer without attention: losses of the steps, and the weights of each layer."""
    weights = networks.numbers(width, 2)
    with ModelParallelStrategy(mesh=mesh, layout_map=dict(networks.LAYOUTS)).scope():
        model = networks.perceptron(width, 2)
        for name, values in weights.items():
            model.get_layer(name).set_weights(values)
        model.compile(keras.optimizers.SGD(rate), "mse")
    x, y = examples_for_blocks(width)
    losses = model.fit(x, y, batch_size=len(x), epochs=steps, verbose=0).history["loss"]
    return losses, {name: [one.tolist() for one in model.get_layer(name).get_weights()] for name in weights}


def blocks_in_dtensor(width: int, steps: int, rate: float) -> tuple[list[float], dict[str, list[Any]]]:
    """Do the same on a mesh of four devices of this process in TensorFlow's DTensor."""
    network = dtensor.Perceptron(dtensor.mesh_of_devices(2, 2), networks.numbers(width, 2), rate)
    x, y = map(network.placed, examples_for_blocks(width))
    losses = [network.loss(network.step(x, y)) for _ in range(steps)]
    return losses, {name: [one.tolist() for one in held] for name, held in network.weights().items()}


def examples_for_blocks(width: int) -> list[np.ndarray]:
    draw = np.random.default_rng(5)
    return [draw.normal(size=(6, width)).astype(np.float32) for _ in range(2)]


def memory_of_a_table(mesh: str, rows: int, width: int) -> dict[str, Any] | None:
    """Bytes that tensors take at their peak, beside the part; None where TensorFlow does not count them."""
    keras.utils.set_random_seed(RANK)  # of which each process draws another seed for its initializer
    found = strategy(mesh, layouts="table rows")
    x = np.random.RandomState(1).randint(0, rows, size=(8, 4)).astype("int32")
    try:
        before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    except ValueError:
        return None
    tf.config.experimental.reset_memory_stats("CPU:0")
    with found.scope(), mock.patch.object(weight_layouts, "_BLOCK_ELEMENTS", rows * width // 64):
        table = keras.layers.Embedding(rows, width)
        model = keras.Sequential([keras.Input((4,), dtype="int32"), table, keras.layers.Flatten()])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    made = tf.config.experimental.get_memory_info("CPU:0")["peak"] - before
    first = model.get_weights()[0]
    tf.config.experimental.reset_memory_stats("CPU:0")
    model.fit(x, np.zeros((8, 4 * width), "float32"), batch_size=4, epochs=2, shuffle=False, verbose=0)
    return {
        "made": made,
        "trained": tf.config.experimental.get_memory_info("CPU:0")["peak"] - before,
        "part": 4 * rows * width // found.mesh.size,
        "value": zlib.crc32(first.tobytes()),
        "on one device": zlib.crc32(np.asarray(table.embeddings_initializer((rows, width))).tobytes()),
    }
