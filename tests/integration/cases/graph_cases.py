"""Batches that are one graph, with fewer nodes than edges, under any strategy; functions return JSON values."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from data_cases import strategy
from hearing import heard

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


class Asked(keras.Model):
    """Computes a number for each node that is asked for, of all nodes of a graph and their neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.named = keras.layers.Embedding(9, 2)
        self.own, self.of_others, self.last = (keras.layers.Dense(2) for _ in range(3))

    def call(self, given: dict[str, Any]) -> Any:
        """Combine the values of nodes and their neighbours, and take the rows of the examples."""
        nodes = tf.concat([given["nodes"], self.named(given["kind"])], axis=1)
        source, target = tf.unstack(given["all edges"], axis=1)
        brought = tf.math.unsorted_segment_sum(tf.gather(self.of_others(nodes), source), target, tf.shape(nodes)[0])
        near = keras.ops.matmul(given["near"], brought)
        return self.last(tf.nn.tanh(tf.gather(self.own(nodes) + brought + near, given["asked"][:, 0])))


WHOLE = ("all edges", "x/kind", "nodes", "near")
TARGETS = np.random.RandomState(2).normal(size=(NODES, 2)).astype(np.float32)


def asked(nodes: Any) -> tuple[dict[str, Any], Any]:
    """Return the graph with these nodes as examples, and their targets."""
    near = tf.sparse.from_dense(np.eye(NODES, k=1, dtype=np.float32) + np.eye(NODES, k=-3, dtype=np.float32))
    kind = tf.constant(np.arange(NODES) ** 2 % 7, tf.int32)  # some several times, and two of them by nobody
    whole = {"all edges": tf.constant(EDGES), "kind": kind, "nodes": tf.constant(FEATURES), "near": near}
    return {"asked": tf.reshape(nodes, [-1, 1]), **whole}, tf.gather(tf.constant(TARGETS), nodes)


def squares(y: Any, predicted: Any) -> Any:
    """Return one number for a batch, which tfdist tries on a few of its rows."""
    return tf.reduce_mean((y - predicted) ** 2)


def whole(name: str) -> dict[str, list[float]]:
    """Train, test and predict on some nodes of a graph, of which replicas have all inputs but these whole."""
    scope = strategy(name)
    if name != "one":
        scope.whole_inputs = WHOLE
    with scope.scope():
        keras.utils.set_random_seed(1)
        made = Asked()
        made.compile(keras.optimizers.Adam(0.05), squares, metrics=["mae"])
        made(asked([1])[0])
    batches = tf.data.Dataset.range(NODES - 1).shuffle(NODES, seed=3).batch(4).map(asked)
    with heard() as said:  # a trial that cannot be is said
        fitted = made.fit(batches, epochs=2, verbose=0, validation_data=batches)
    found = {**fitted.history, "said": [len(said)]}
    found["evaluate"] = made.evaluate(batches, verbose=0)
    found["predict"] = made.predict(batches.map(lambda x, y: x), verbose=0).ravel().tolist()
    found["train_on_batch"] = list(map(float, made.train_on_batch(*asked([3, 5, 7]))))
    found["test_on_batch"] = list(map(float, made.test_on_batch(*asked([3, 8]))))
    found["predict_on_batch"] = np.ravel(made.predict_on_batch(asked([2, 4, 1])[0])).tolist()
    found["weights"] = np.concatenate([np.ravel(w) for w in made.get_weights()]).tolist()
    if name != "one":
        scope.whole_inputs = ()
    return found


def noise(name: str) -> list[float]:
    """Return the gradient noise scale of each epoch, from small batches of which each has the graph whole."""
    scope = tfdist.strategies.MirroredStrategy(["CPU:0"]) if name == "one" else strategy(name)
    scope.whole_inputs = WHOLE
    with scope.scope():
        keras.utils.set_random_seed(1)
        made = Asked()
        made.compile(keras.optimizers.SGD(0.05), "mse")
        made(asked([1])[0])
    data = tf.data.Dataset.range(NODES).batch(4).map(asked)
    measuring = tfdist.callbacks.GradientNoiseScale(data, batch_size=4, every=1, parts=2, verbose=False)
    fitted = made.fit(data, epochs=2, callbacks=[measuring], verbose=0)
    scope.whole_inputs = ()
    return list(map(float, fitted.history["noise_scale"]))


def looped(name: str) -> list[float]:
    """Train in a loop of the user's own on replicas that have the graph whole; return the weights."""
    scope = strategy(name)
    batches = tf.data.Dataset.range(NODES - 1).batch(5).map(asked)
    if name != "one":
        scope.whole_inputs = WHOLE
        batches = scope.experimental_distribute_dataset(batches)
        scope.whole_inputs = ()
    with scope.scope():
        keras.utils.set_random_seed(1)
        made, optimizer = Asked(), keras.optimizers.SGD(0.1)
        made(asked([1])[0])
        optimizer.build(made.trainable_variables)

    @tf.function(reduce_retracing=True)
    def train(batch: Any) -> None:
        def on_replica(given: Any) -> None:
            x, y = given
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((made(x) - y) ** 2) / 5.0
            gradients = tape.gradient(loss, made.trainable_variables)
            optimizer.apply_gradients(zip(gradients, made.trainable_variables, strict=True))

        scope.run(on_replica, args=(batch,))

    for batch in batches:
        train(batch)
    return np.concatenate([np.ravel(w) for w in made.get_weights()]).tolist()


def cut_by_hand(name: str) -> list[str]:
    """Return the errors of a user's own loop over batches with unlike rows, known before a step and in it."""
    scope, seen = strategy(name), []
    known = tf.data.Dataset.from_tensors(graph(20))
    for data in (known, batches(12, 12, 20)):
        try:
            list(scope.experimental_distribute_dataset(data))
        except Exception as error:  # noqa: BLE001 - which one is what is asked
            seen.append(f"{type(error).__name__}: {error}")
    alike = tf.data.Dataset.range(6).batch(3).map(lambda numbers: (numbers, numbers))
    seen.append(str(len(list(scope.experimental_distribute_dataset(alike)))))
    return seen


def eagerly(name: str) -> list[str]:
    """Return the warnings where a table is looked up by a whole input, and the model runs eagerly."""
    scope = strategy(name)
    scope.whole_inputs = WHOLE
    with scope.scope():
        made = Asked()
        made.compile("adam", "mse", run_eagerly=True)
        made(asked([1])[0])
    with heard() as said:
        made.train_on_batch(*asked([3, 5, 7]))
        made.train_on_batch(*asked([3, 5]))
    scope.whole_inputs = ()
    return [sentence.replace(made.named.embeddings.path, "THE TABLE") for sentence in said]


def misnamed(name: str) -> dict[str, Any]:
    """Name inputs that a batch does not have, all that it has, and some where workers have data of their own."""
    scope = strategy(name)
    made = model(scope.scope())
    own = tf.data.Options()
    own.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    found = {}
    cases = {"other": ["edge"], "target": ["y"], "all": ["edges", "nodes"], "own data": ["edges"]}
    for kind, names in cases.items():
        scope.whole_inputs = names
        data = batches(12).with_options(own) if kind == "own data" else batches(12)
        calls = {"fit": lambda data=data: made.fit(data, verbose=0)}
        if kind != "own data":
            calls["batch"] = lambda: made.train_on_batch(*graph(12))
        for way, call in calls.items():
            try:
                call()
            except Exception as error:  # noqa: BLE001 - which one is what is asked
                found[f"{kind} {way}"] = [type(error).__name__, getattr(error, "name", ""), str(error)]
        scope.whole_inputs = ()
    return found


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
