"""Steps that look at the whole batch or at their own gradients, beside one device."""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from hearing import heard

import tfdist.strategies
import tfdist.training
from tests.integration.cases import refusal_fields
from tfdist import errors

STRATEGY = tfdist.strategies.from_environment()
# batches of 8, 8 and 1 examples; the last one leaves replicas empty
X = np.random.RandomState(0).normal(size=(17, 4)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)
BATCH = 8

Step = Callable[[Any, Any], dict[str, Any]]


class Own(keras.Model):
    """A model with two networks and a step that is given to it."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.net = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(3)]
        )
        self.late, self.late_optimizer = keras.layers.Dense(1), keras.optimizers.SGD(0.05)
        self.step = step

    def call(self, inputs: Any) -> Any:
        return self.net(inputs)

    def train_step(self, data: Any) -> dict[str, Any]:
        return self.step(self, data)


def _trained(step: Step, scope: Any, *, rows: int = len(X), rate: float = 0.05, **options: Any) -> list[Any]:
    keras.utils.set_random_seed(3)
    with scope:
        model = Own(step)
        model.build((None, 4))
        model.compile(keras.optimizers.SGD(rate), **options)
    history = model.fit(X[:rows], Y[:rows], batch_size=BATCH, shuffle=False, verbose=0).history
    return [*model.get_weights(), *map(np.array, history.values())]


def _both(step: Step, *, rows: int = len(X), rate: float = 0.05, **options: Any) -> dict[str, Any]:
    """Return the distance of weights and logs from one device's, and the warnings."""
    with heard() as said:
        under = _trained(step, STRATEGY.scope(), rows=rows, rate=rate, **options)
    one = _trained(step, contextlib.nullcontext(), rows=rows, rate=rate, run_eagerly=True)
    return {"apart": max(float(np.abs(a - b).max()) for a, b in zip(under, one, strict=True)), "said": said}


def _contrast(reduce: Callable[[Any], Any], axis: int) -> Step:
    def step(model: Own, data: Any) -> dict[str, Any]:
        replica = tf.distribute.get_replica_context()
        number = replica.replica_id_in_sync_group
        owners = replica.all_gather(tf.fill(tf.shape(data[0])[:1], number), axis=0)
        places = tf.where(tf.equal(owners, number))[:, 0]
        with tf.GradientTape() as tape:
            queries, keys = model.net(data[0]), model.net(data[0] + 0.1 * data[1])
            keys = keys if axis == 0 else tf.transpose(keys)
            candidates = replica.all_gather({"keys": keys}, axis=axis)["keys"]
            similar = 3.0 * tf.matmul(queries, candidates, transpose_b=axis == 0)
            places = places[: tf.shape(queries)[0]]  # a replica without examples computes one, and has no place
            similar = similar[: tf.shape(places)[0]]
            loss = reduce(tf.nn.sparse_softmax_cross_entropy_with_logits(places, similar))
        model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return {"contrast": loss}

    return step


def _masked(model: Own, data: Any) -> dict[str, Any]:
    """A loss with a mask, divided by what all replicas have of it."""
    replica, mask = tf.distribute.get_replica_context(), tf.cast(data[1] > 0, tf.float32)
    valid = replica.all_reduce("SUM", {"valid": tf.reduce_sum(mask)})["valid"]
    rows = replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.shape(mask)[0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(mask * tf.square(model.net(data[0])[:, :1] - data[1])) / (valid + 0.1)
    model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    mean = replica.all_reduce(tf.distribute.ReduceOp.MEAN, tf.reduce_mean(data[0]))
    return {"rows": tf.cast(rows, tf.float32), "mean": mean, "masked": loss}


def _those_of(runs: dict[str, Callable[[], Any]], names: list[str] | None) -> dict[str, Any]:
    return {name: run() for name, run in runs.items() if names is None or name in names}


def contrast(names: list[str] | None = None) -> dict[str, Any]:
    """Train with a contrastive loss whose candidates come from all replicas."""
    runs = {
        "mean": lambda: _both(_contrast(tf.reduce_mean, 0)),
        "columns": lambda: _both(_contrast(tf.reduce_mean, 1), steps_per_execution=3),
        "reduced": lambda: _both(_masked),
        "sum": lambda: _both(_contrast(tf.reduce_sum, 0), rate=0.0005),
        "eagerly": lambda: _both(_contrast(tf.reduce_mean, 0), rows=BATCH + 5, run_eagerly=True),
    }
    return _those_of(runs, names)


Use = Callable[[list[Any]], list[Any]]


def _gradients(model: Own, data: Any, reduce: Callable[[Any], Any] = tf.reduce_mean) -> tuple[list[Any], Any]:
    with tf.GradientTape() as tape:
        loss = reduce(tf.square(tf.reduce_sum(model.net(data[0]), axis=1, keepdims=True) - data[1]))
    return tape.gradient(loss, model.trainable_variables), loss


def _using(use: Use, reduce: Callable[[Any], Any] = tf.reduce_mean) -> Step:
    def step(model: Own, data: Any) -> dict[str, Any]:
        gradients, loss = _gradients(model, data, reduce)
        model.optimizer.apply(use(gradients), model.trainable_variables)
        return {"value": loss}

    return step


def _clipped(norm: float) -> Use:
    return lambda gradients: tf.clip_by_global_norm(gradients, norm)[0]


def _first_reduced(use: Use) -> Use:
    return lambda gradients: use(tfdist.training.reduced_gradients(gradients))


def _logged(model: Own, data: Any) -> dict[str, Any]:
    gradients, loss = _gradients(model, data)
    model.optimizer.apply(gradients, model.trainable_variables)
    return {"value": loss, "norm": tf.linalg.global_norm(gradients)}


def _sharpness_aware(reduce: Callable[[Any], Any]) -> Step:
    """SAM: the gradient at weights that were moved along the first one, applied to the weights from before."""

    def step(model: Own, data: Any) -> dict[str, Any]:
        first = reduce(_gradients(model, data)[0])
        norm = tf.linalg.global_norm(first)
        moves = [0.1 * gradient / (norm + 1e-12) for gradient in first]
        for weight, move in zip(model.trainable_variables, moves, strict=True):
            weight.assign_add(move)
        second, loss = _gradients(model, data)
        for weight, move in zip(model.trainable_variables, moves, strict=True):
            weight.assign_sub(move)
        model.optimizer.apply(second, model.trainable_variables)
        return {"value": loss}

    return step


def _late(model: Own, data: Any) -> dict[str, Any]:
    """A step that trains a layer whose weights it makes."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model.late(data[0]) - data[1]))
    weights = model.late.trainable_variables
    model.late_optimizer.apply(tape.gradient(loss, weights), weights)
    return {"value": loss}


def what_is_said() -> dict[str, list[str]]:
    """Return the warnings about steps that use their gradients, linearly and otherwise."""

    def said(step: Step) -> list[str]:
        with heard() as sentences:
            _trained(step, STRATEGY.scope(), rows=BATCH)
        return sentences

    return {
        "clipped": said(_using(_clipped(0.1))),
        "clipped late": said(_using(_clipped(1e6))),
        "by value": said(_using(lambda gradients: [tf.clip_by_value(one, -1e6, 1e6) for one in gradients])),
        "logged": said(_logged),
        "sharpness": said(_sharpness_aware(lambda gradients: gradients)),
        "centred": said(_using(lambda gradients: [one - tf.reduce_mean(one, axis=0) for one in gradients])),
        "scaled": said(_using(lambda gradients: [2.0 * tf.cast(one, tf.float32) for one in gradients])),
        "late": said(_late),
    }


def reduced(names: list[str] | None = None) -> dict[str, Any]:
    """Steps that reduce their gradients before they use them."""
    clip = _first_reduced(_clipped(0.5))
    runs = {
        "clipped": lambda: _both(_using(clip)),
        "clipped late": lambda: _both(_using(_first_reduced(_clipped(30.0))), steps_per_execution=3),
        "of a sum": lambda: _both(_using(clip, tf.reduce_sum)),
        "eagerly": lambda: _both(_using(clip), rows=BATCH + 5, run_eagerly=True),
        "sharpness": lambda: _both(_sharpness_aware(tfdist.training.reduced_gradients)),
    }
    return _those_of(runs, names)


def _deciding(deciding: Callable[[Any], Any], *, in_a_condition: bool = False) -> Step:
    """A step that leaves out an update when the loss, or what is made of it, is large."""

    def step(model: Own, data: Any) -> dict[str, Any]:
        gradients, loss = _gradients(model, data)
        is_small, weights = deciding(loss) < 2.0, model.trainable_variables
        if in_a_condition:
            tf.cond(is_small, lambda: model.optimizer.apply(gradients, weights), lambda: None)
        else:
            model.optimizer.apply([tf.cast(is_small, tf.float32) * one for one in gradients], weights)
        return {"value": loss}

    return step


def _of_all(loss: Any) -> Any:
    return tf.distribute.get_replica_context().all_reduce("MEAN", loss)


def decisions() -> dict[str, Any]:
    """Steps that decide by the loss of all replicas, or of their own."""

    def own_condition() -> None:
        _trained(_deciding(lambda loss: loss, in_a_condition=True), STRATEGY.scope())

    return {
        "of all": _both(_deciding(_of_all)),
        "of all, in a condition": _both(_deciding(_of_all, in_a_condition=True))["apart"],
        "own": _both(_deciding(lambda loss: loss - 1e6), rows=BATCH)["said"],  # small on all rows that are tried
        "own, in a condition": refusal_fields.met(own_condition, errors.TfdistError),
    }


def rows_that_are_said() -> dict[str, list[str]]:
    """Return the warnings about a table in two steps."""
    x, y = np.arange(4 * BATCH).reshape(-1, 2) % 5, np.ones((2 * BATCH, 1))

    def said(optimizer: str, **options: Any) -> list[str]:
        with heard() as sentences:
            with STRATEGY.scope():
                table = keras.layers.Embedding(5, 2, name="looked_up")
                layers = [keras.Input((2,), dtype="int32"), table, keras.layers.Flatten(), keras.layers.Dense(1)]
                model = keras.Sequential(layers)
                model.compile(optimizer, "mse", **options)
            model.fit(x, y, batch_size=BATCH, verbose=0)
        return sentences

    return {
        "eagerly": said("adam", run_eagerly=True),
        "eagerly, added up": said("sgd", run_eagerly=True),
        "traced": said("adam"),
    }


def refusals() -> dict[str, str]:
    """Return the errors where gradients cannot be reduced in the step."""
    rows = tf.IndexedSlices(tf.ones((1, 2)), tf.constant([0]), tf.constant([5, 2]))

    def sparse(gradients: list[Any]) -> list[Any]:
        tfdist.training.reduced_gradients([rows])
        return gradients

    def outside() -> None:
        STRATEGY.run(tf.autograph.experimental.do_not_convert(lambda: tfdist.training.reduced_gradients([tf.ones(2)])))

    def error(function: Callable[[], Any]) -> str:
        try:
            function()
        except Exception as error:  # noqa: BLE001 - its type is what is asked for
            return type(error).__name__
        return "none"

    step = _using(_first_reduced(_clipped(0.5)))
    return {
        "sparse eagerly": error(lambda: _trained(_using(sparse), STRATEGY.scope(), rows=BATCH, run_eagerly=True)),
        "compiled": error(lambda: _trained(step, STRATEGY.scope(), rows=BATCH, jit_compile=True)),
        "outside of fit": error(outside),
    }
