"""Models of Keras alone: of `keras.applications`, a graph network, and a time series model."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ecosystem import shared
from ecosystem.entry import Entry, Examples
from tfdist.verify.feature import keras

_NODES, _EDGES, _FEATURES = 6, 10, 4
_PAST, _CHANNELS = 16, 3


def _application(name: str, **options: Any) -> Any:
    side = shared.SIDE
    build = getattr(keras.applications, name)
    return build(
        input_shape=(side, side, 3), weights=None, classes=shared.CLASSES, classifier_activation=None, **options
    )


def _first_blocks() -> Any:
    """The first block of a network as layers of another, as they are taken where little data is there."""
    whole = keras.applications.MobileNet((shared.SIDE, shared.SIDE, 3), alpha=0.25, include_top=False, weights=None)
    features = whole.get_layer("conv_pw_1_relu").output
    pooled = keras.layers.GlobalAveragePooling2D()(features)
    return keras.Model(whole.inputs, keras.layers.Dense(shared.CLASSES)(pooled))


def _frozen() -> Any:
    """A network that does not train, as one layer of another: its normalizations keep their statistics."""
    base = keras.applications.MobileNetV2((shared.SIDE, shared.SIDE, 3), alpha=0.35, include_top=False, weights=None)
    base.trainable = False
    inputs = keras.Input((shared.SIDE, shared.SIDE, 3))
    pooled = keras.layers.GlobalAveragePooling2D()(base(inputs, training=False))
    return keras.Model(inputs, keras.layers.Dense(shared.CLASSES)(pooled))


def _pictures(name: str, summary: str, make: Callable[[], Any], ways: tuple[str, ...] = ("float64",)) -> Entry:
    return Entry(
        name=name,
        package="keras",
        summary=summary,
        make=make,
        examples=shared.pictures,
        loss=shared.logits,
        optimizer=shared.sgd,
        options=shared.accuracy,
        ways=ways,
    )


def _messages() -> Any:

    class Messages(keras.layers.Layer):
        """Sums what each node receives over its edges, whose ends are numbered within each graph."""

        def __init__(self) -> None:
            super().__init__()
            self.message = keras.layers.Dense(8, activation="tanh")
            self.update = keras.layers.Dense(8, activation="tanh")

        def build(self, nodes_shape: Any, edges_shape: Any) -> None:
            self.message.build((None, 2 * nodes_shape[-1]))
            self.update.build((None, None, nodes_shape[-1] + 8))

        def call(self, nodes: Any, edges: Any) -> Any:
            ops = keras.ops
            graphs = ops.shape(nodes)[0]
            # all graphs of the batch are one graph with numbers of its own, as libraries of graphs have it
            first = ops.reshape(ops.arange(graphs) * _NODES, (-1, 1, 1))
            ends = ops.reshape(edges + ops.cast(first, edges.dtype), (-1, 2))
            flat = ops.reshape(nodes, (-1, nodes.shape[-1]))
            both = ops.concatenate([ops.take(flat, ends[:, 0], axis=0), ops.take(flat, ends[:, 1], axis=0)], axis=-1)
            received = ops.segment_sum(self.message(both), ends[:, 1], num_segments=graphs * _NODES)
            received = ops.reshape(received, (-1, _NODES, 8))
            return self.update(ops.concatenate([nodes, received], axis=-1))

        def compute_output_shape(self, nodes_shape: Any, edges_shape: Any) -> Any:
            return (*nodes_shape[:-1], 8)

    return Messages()


def _graph_network() -> Any:
    nodes = keras.Input((_NODES, _FEATURES), name="nodes")
    edges = keras.Input((_EDGES, 2), dtype="int32", name="edges")
    hidden = nodes
    for _ in range(2):
        hidden = _messages()(hidden, edges)
    outputs = keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(hidden))
    return keras.Model({"nodes": nodes, "edges": edges}, outputs)


def _graphs(random: np.random.Generator, rows: int) -> Examples:
    nodes = random.normal(size=(rows, _NODES, _FEATURES)).astype("float32")
    edges = random.integers(0, _NODES, (rows, _EDGES, 2)).astype("int32")
    degrees = (edges[..., 1] == 0).sum(axis=1, keepdims=True)
    return {"nodes": nodes, "edges": edges}, degrees.astype("float32"), None


def _series_model() -> Any:
    """Dilated causal convolutions and a recurrent layer, over values that a layer has learnt to normalize."""
    layers = keras.layers
    normalize = layers.Normalization()
    normalize.adapt(_series(np.random.default_rng(7), 40)[0])
    inputs = keras.Input((_PAST, _CHANNELS))
    hidden = normalize(inputs)
    for dilation in (1, 2, 4):
        convolved = layers.Conv1D(8, 2, padding="causal", dilation_rate=dilation, activation="tanh")(hidden)
        hidden = layers.LayerNormalization()(convolved if dilation == 1 else layers.Add()([hidden, convolved]))
    return keras.Model(inputs, layers.Dense(_CHANNELS)(layers.GRU(8)(hidden)))


def _series(random: np.random.Generator, rows: int) -> Examples:
    times = np.arange(_PAST + 1)[None, :, None] + random.uniform(0, 9, (rows, 1, _CHANNELS))
    waves = 5 + 3 * np.sin(times * np.array([0.3, 0.7, 1.1])) + 0.1 * random.normal(size=times.shape)
    return waves[:, :-1].astype("float32"), waves[:, -1].astype("float32") / 5, None


ENTRIES = (
    _pictures(
        "MobileNetV3Small",
        "hard swish, squeeze and excite; preprocessing in the model",
        lambda: _application("MobileNetV3Small", alpha=0.5, dropout_rate=0.0),
    ),
    _pictures("MobileNet", "separable convolutions", lambda: _application("MobileNet", alpha=0.25, dropout=0.0)),
    _pictures("MobileNetV2_frozen", "a frozen base and a head that trains", _frozen, ("float32",)),
    _pictures("MobileNet_blocks", "the first block, trained on", _first_blocks, ("float32", "xla", "mixed_bfloat16")),
    Entry(
        name="graph_network",
        package="keras",
        summary="messages along edges, summed by segments of the whole batch",
        make=_graph_network,
        examples=_graphs,
        loss=lambda: "mse",
        optimizer=shared.sgd,
        options=lambda: {"metrics": ["mae"]},
        ways=("float32", "mixed_bfloat16", "compressed"),
    ),
    Entry(
        name="time_series",
        package="keras",
        summary="dilated causal convolutions, a GRU, and a Normalization that was adapted",
        make=_series_model,
        examples=_series,
        loss=lambda: keras.losses.Huber(),
        optimizer=shared.adamw,
        options=lambda: {"metrics": ["mae"]},
        ways=("float32", "compressed"),
    ),
)
