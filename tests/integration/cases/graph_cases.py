"""Batches that are one graph, with fewer nodes than edges, under any strategy; functions return JSON values."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from data_cases import strategy

import tfdist

NODES = 12
FEATURES = np.random.RandomState(0).normal(size=(NODES, 3)).astype(np.float32)
EDGES = np.random.RandomState(1).randint(0, NODES, (20, 2)).astype(np.int32)


class Graph(keras.Model):
    """Computes a number for each node from the node and its neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.of_others = keras.layers.Dense(1), keras.layers.Dense(1)

    def call(self, given: dict[str, Any]) -> Any:
        """Add up what the edges bring to each node."""
        nodes, (source, target) = given["nodes"], tf.unstack(given["edges"], axis=1)
        count = tf.shape(nodes)[0]
        brought = tf.gather(self.of_others(nodes), source % count)
        return self.own(nodes) + tf.math.unsorted_segment_sum(brought, target % count, count)


def graph(edges: Any) -> tuple[dict[str, Any], Any]:
    """Return a graph and a target for each of its nodes."""
    return {"nodes": FEATURES, "edges": EDGES[:edges]}, FEATURES.sum(1, keepdims=True)


def batches(*edges: int) -> tf.data.Dataset:
    """Return graphs whose numbers of edges are not known before they come."""
    tables = tf.constant(FEATURES), tf.constant(EDGES)

    def made(count: tf.Tensor) -> tuple[dict[str, Any], Any]:
        (nodes, known), (_, target) = tables, graph(1)
        return {"nodes": nodes, "edges": known[:count]}, target

    return tf.data.Dataset.from_tensor_slices(list(edges)).map(made)


def model(scope: Any, **options: Any) -> keras.Model:
    """Return a compiled model that is the same everywhere, and built."""
    with scope:
        keras.utils.set_random_seed(1)
        made = Graph()
        made.compile("sgd", "mse", **options)
        made(graph(1)[0])
    return made


def refused(name: str) -> dict[str, list[str]]:
    """Train, test and predict with as many edges as nodes and then with more; return what was raised."""

    def raised(call: Callable[[], Any]) -> list[str]:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - which one is what is asked
            return [type(error).__name__, str(error)]
        return ["nothing", ""]

    def new(**options: Any) -> keras.Model:
        return model(strategy(name).scope(), **options)

    later, plain = batches(12, 12, 20), new()
    known = tf.data.Dataset.from_tensors(graph(20))
    return {
        "fit": raised(lambda: plain.fit(later, verbose=0)),
        "evaluate": raised(lambda: plain.evaluate(later, verbose=0)),
        "predict": raised(lambda: plain.predict(later, verbose=0)),
        "fit, known": raised(lambda: plain.fit(known, verbose=0)),
        "fit, several steps": raised(lambda: new(steps_per_execution=3).fit(later, verbose=0)),
        "train_on_batch": raised(lambda: plain.train_on_batch(*graph(20))),
        "test_on_batch": raised(lambda: plain.test_on_batch(*graph(20))),
        "predict_on_batch": raised(lambda: plain.predict_on_batch(graph(20)[0])),
    }


def on_one_replica(name: str) -> dict[str, list[float]]:
    """Train on whole graphs with one replica, which cuts nothing, and without a strategy; return the weights."""
    del name
    found = {}
    kinds = {"plain": tf.distribute.get_strategy(), "replica": tfdist.strategies.MirroredStrategy(["CPU:0"])}
    for kind, one in kinds.items():
        trained = model(one.scope())
        trained.fit(batches(20, 7, 12), verbose=0, shuffle=False)
        trained.train_on_batch(*graph(5))
        found[kind] = np.concatenate([w.ravel() for w in trained.get_weights()]).tolist()
        found[f"{kind} predicts"] = trained.predict(batches(20, 3), verbose=0).ravel().tolist()
    return found
