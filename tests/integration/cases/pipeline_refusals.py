"""Models and calls that a pipeline refuses."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tests.integration.cases import refusal_fields
from tests.integration.cases.optimizers_of_ones_own import CountingSteps, Noisy, OwnApply, OwnPairs
from tests.integration.cases.pipeline_cases import Named, X, Y, strategy
from tfdist import errors
from tfdist.planner import schedules
from tfdist.planner.schedules import Schedule
from tfdist.strategies import PipelineStrategy


def refused(kind: str, mesh: str) -> list[Any]:
    """Return the report of the error for what cannot be."""
    return refusal_fields.met(lambda: _REFUSED[kind](mesh), errors.TfdistError)


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x: Any) -> Any:
        return self.dense(x)


class OwnCall(keras.Sequential):
    def call(self, x: Any, training: Any = None, mask: Any = None) -> Any:
        return 2 * super().call(x, training=training, mask=mask)


class OwnStep(keras.Sequential):
    def train_step(self, data: Any) -> Any:
        return super().train_step(data)


def _fit(
    make: Callable[[], keras.Model], optimizer: Callable[[], Any] = lambda: "sgd", **options: Any
) -> Callable[[str], None]:
    def fit(mesh: str) -> None:
        with strategy(mesh).scope():
            model = make()
            model.compile(optimizer(), **{"loss": "mse", **options})
        model.fit(X, Y, verbose=0)

    return fit


def _pipeline(**options: Any) -> Callable[[str | None], None]:
    def start(mesh: str | None) -> None:
        PipelineStrategy(**{"mesh": mesh, **options})

    return start


def _cut(stages: Any) -> Callable[[str], None]:
    def fit(mesh: str) -> None:
        with PipelineStrategy(mesh=mesh, stages=stages).scope():
            layers = [keras.layers.Dense(2, name=name) for name in ("first", "second", "third")]
            model = keras.Sequential([keras.Input((6,)), *layers])
            model.compile("sgd", "mse")
        model.fit(X, Y, verbose=0)

    return fit


def _mine(stages: int, microbatches: int, chunks: int) -> Schedule:
    found = schedules.named("gpipe", stages=stages, microbatches=microbatches, chunks=chunks)
    return Schedule(**{**vars(found), "name": "mine", "orders": (found.orders[0], tuple(reversed(found.orders[1])))})


def _small() -> keras.Model:
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(2), keras.layers.Dense(2)])


def _without_a_flush(clipnorm: float | None = None, **options: Any) -> Callable[[str], None]:
    def fit(mesh: str) -> None:
        with PipelineStrategy(mesh=mesh, **options).scope():
            model = _small()
            model.compile(keras.optimizers.SGD(clipnorm=clipnorm), "mse")
        model.fit(X, Y, verbose=0)

    return fit


class Block(keras.layers.Layer):
    """Hands on a mask that depends on what it is given."""

    def compute_mask(self, x: Any, previous_mask: Any = None) -> Any:
        return keras.ops.any(x > 0, axis=-1)

    def call(self, x: Any) -> Any:
        return 2 * x


class Counting(keras.layers.Layer):
    """Counts what it is given."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.mean = keras.metrics.Mean(name="given")

    def call(self, x: Any) -> Any:
        self.mean.update_state(x)
        return x


def _masked_by_values() -> keras.Model:
    ids = keras.Input((6,))
    x = keras.layers.Embedding(12, 2, mask_zero=True)(ids)
    return keras.Model(ids, keras.layers.Dense(2)(Block(name="mine")(x)))


class Sizes(keras.layers.Layer):
    """Returns as many columns as the values say."""

    def call(self, x: Any) -> Any:
        return tf.boolean_mask(x, x[0] > 0, axis=1)

    def compute_output_shape(self, shape: Any) -> Any:
        return (None, None)


def _of_values(mesh: str) -> None:
    with PipelineStrategy(mesh=mesh, stages=["behind"]).scope():
        behind = keras.layers.Lambda(lambda x: keras.ops.sum(x, axis=1, keepdims=True), name="behind")
        layers = [keras.layers.Dense(6), Sizes(name="sizes"), behind, keras.layers.Dense(2)]
        model = keras.Sequential([keras.Input((6,)), *layers])
        model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)


def _normalized() -> keras.layers.Layer:
    return keras.layers.SpectralNormalization(keras.layers.Dense(2))


class _Mean(keras.layers.Layer):
    """The mean over rows, which stands beside the rows of another input."""

    def call(self, x: Any) -> Any:
        return keras.ops.mean(x, axis=0, keepdims=True)


def _unlike_rows(mesh: str) -> None:
    with strategy(mesh).scope():
        nodes, edges = keras.Input((6,), name="nodes"), keras.Input((3,), name="edges")
        both = keras.layers.Add()([keras.layers.Dense(2)(nodes), _Mean()(keras.layers.Dense(2)(edges))])
        model = keras.Model([nodes, edges], keras.layers.Dense(2)(both))
        model.compile("sgd", "mse")
    given = {"nodes": X, "edges": X[:5, :3]}
    model.fit(tf.data.Dataset.from_tensors((given, Y)), verbose=0)


def _shared_state(mesh: str) -> None:
    with PipelineStrategy(mesh=mesh, stages=["second"]).scope():
        inputs, norm = keras.Input((6,)), keras.layers.BatchNormalization(name="norm")
        model = keras.Model(inputs, keras.layers.Dense(2)(norm(keras.layers.Dense(6, name="second")(norm(inputs)))))
        model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)


_REFUSED: dict[str, Callable[[str], None]] = {
    "subclassed": _fit(Subclassed),
    "own call": _fit(lambda: OwnCall([keras.Input((6,)), keras.layers.Dense(2), keras.layers.Dense(2)])),
    "between blocks": _fit(lambda: Named(between=2.0)),
    "own step": _fit(lambda: OwnStep([keras.Input((6,)), keras.layers.Dense(2), keras.layers.Dense(2)])),
    "eager": _fit(_small, run_eagerly=True),
    "jit": _fit(_small, jit_compile=True),
    "no loss": _fit(_small, loss=None),
    "one number": _fit(_small, loss=lambda y, p: tf.reduce_mean((y - p) ** 2)),
    "rows and columns": _fit(_small, optimizer=keras.optimizers.Adafactor),
    "own apply": _fit(_small, optimizer=OwnApply),
    "own pairs": _fit(_small, optimizer=OwnPairs),
    "a number": _fit(_small, optimizer=CountingSteps),
    "a generator": _fit(_small, optimizer=Noisy),
    "counting": _fit(lambda: keras.Sequential([keras.Input((6,)), Counting(name="counts"), keras.layers.Dense(2)])),
    "name": _cut(["secund"]),
    "names": _cut(["first"]),
    "order": _pipeline(schedule=_mine),
    "no momentum": _without_a_flush(schedule="spectrain"),
    "clipping": _without_a_flush(clipnorm=1.0, schedule="pipedream"),
    "unlike rows": _unlike_rows,
    "mask": _fit(_masked_by_values),
    "sizes": _of_values,
    "shared state": _shared_state,
    "own weight": _fit(lambda: keras.Sequential([keras.Input((6,)), _normalized(), keras.layers.Dense(2)])),
    "engine": _pipeline(collectives="tensorflow"),
    "mesh": lambda _: _pipeline(stages=3)("data=1,pipeline=2"),
    "more places": lambda _: _pipeline()("data=2,pipeline=2"),
    "axis": lambda _: _pipeline()("batch=1,model=2"),
    "model axis": lambda _: _pipeline()("data=1,model=2,pipeline=2"),
    "no layouts": lambda _: _pipeline()("pipeline=1,model=2"),
    "no model axis": _pipeline(layout_map="auto"),
    "activations": lambda _: _pipeline(layout_map="auto-sequence")("pipeline=1,model=2"),
    "values in parts": lambda _: _pipeline(layout_map="auto", schedule="pipedream")("pipeline=1,model=2"),
    "sharded weights": _pipeline(shard_optimizer=3),
    "replicas": lambda _: _pipeline()("data=2,pipeline=2"),
    "devices": lambda _: _pipeline(stages=3)(None),
    "other devices": lambda _: _pipeline(stages=2, replicas_per_worker=1)(None),
    "one optimizer": _pipeline(schedule="pipedream"),
}
