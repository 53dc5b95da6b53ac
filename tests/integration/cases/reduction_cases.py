"""Cases of a user's own step: the warnings about its reductions, and the trial of a step, which changes nothing."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from hearing import heard
from keras import ops
from mirrored_cases import STRATEGY, X, Y, model


def _masked(y: Any, p: Any) -> Any:
    mask = ops.cast(y > 0, "float32")
    return ops.sum(ops.square(y - p) * mask) / (ops.sum(mask) + 0.1)


class Own(keras.Model):
    """A model whose loss is a function of the batch."""

    def __init__(self, loss: Callable[[Any, Any], Any], layers: Any = ()) -> None:
        super().__init__()
        self.net, self.of = keras.Sequential([model(), *layers]), loss
        self.steps = tf.Variable(0)
        self.counts = False

    def call(self, inputs: Any) -> Any:
        return self.net(inputs)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        if self.counts:
            self.steps.assign_add(1)
        with tf.GradientTape() as tape:
            loss = self.of(y, self.net(x, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


class Called(Own):
    """The same model, whose step is Keras'."""

    train_step = keras.Model.train_step


def _trained(
    loss: Any, *, own: type[Own] | None = None, settled: str = "detect", fits: int = 1, **options: Any
) -> dict[str, Any]:
    keras.utils.set_random_seed(0)
    STRATEGY.loss_reduction = settled
    try:
        with STRATEGY.scope():
            network = own(loss, options.pop("layers", list)()) if own else model()
            network.compile(keras.optimizers.SGD(0.01), None if own is Own else loss, **options)
        with heard() as said:
            for _ in range(fits):
                network.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
        return {"said": said, "weights": [w.tolist() for w in network.get_weights()], "sums": _sums(network)}
    finally:
        STRATEGY.loss_reduction = "detect"


def _sums(network: keras.Model) -> list[list[Any]]:
    return sorted([kind, number] for kind, number in _sums_of(network) if number < 3)


def _sums_of(network: keras.Model) -> list[tuple[str, int]]:
    return [key for key, verdict in network.train_function.source.tried.rules.values.items() if verdict == "sum"]


def _mean(y: Any, p: Any) -> Any:
    return ops.mean(ops.square(y - p))


def _sum(y: Any, p: Any) -> Any:
    return ops.sum(ops.square(y - p))


def what_is_said() -> dict[str, Any]:
    noise = lambda: [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), keras.layers.Dense(1)]  # noqa: E731
    return {
        "mask": _trained(_masked, fits=2),
        "mask in a step": _trained(_masked, own=Own),
        "mask that is meant": _trained(_masked, settled="mean"),
        "mean in a step": _trained(_mean, own=Own, layers=noise),
        "sum in a step": _trained(_sum, own=Own, layers=noise),
        "sum in a step, said": _trained(_sum, own=Own, settled="sum"),
        "sum in a step, found": _trained(_sum, own=Own),
        "mask over a softmax": _trained(_masked, own=Called, layers=lambda: [keras.layers.Dense(3, "softmax")]),
        "eagerly": _trained(_sum, own=Own, run_eagerly=True),
    }


def steps_with_a_counter() -> dict[str, Any]:
    """Count the steps in a variable of TensorFlow's own, which trying the step must not move."""
    with STRATEGY.scope():
        network = Own(_mean)
        network.counts = True
        network.compile(keras.optimizers.SGD(0.01))
    with heard() as said:
        network.fit(X, Y, batch_size=8, verbose=0)
    counts = [int(copy) for copy in STRATEGY.experimental_local_results(network.steps)]
    return {"counts": counts, "steps": int(network.optimizer.iterations.numpy()), "said": said}


def states_around_a_trial() -> dict[str, Any]:
    """Return the variables before and after a step is tried, and whether the batch after it draws the same numbers."""

    def run(settled: str) -> list[Any]:
        keras.utils.set_random_seed(5)
        STRATEGY.loss_reduction = settled
        with STRATEGY.scope():
            network = Own(_mean, [keras.layers.Dropout(0.5), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
            network.compile(keras.optimizers.Adam(0.01))
        logs = network.fit(X, Y, batch_size=8, shuffle=False, verbose=0).history
        everything = [*network.variables, *network.optimizer.variables]
        return [*(v.numpy().tolist() for v in everything), logs["loss"]]

    try:
        return {"tried": run("detect"), "told": run("mean")}
    finally:
        STRATEGY.loss_reduction = "detect"


def slots_on_every_replica() -> dict[str, Any]:
    """Return the slots of an optimizer that is built in the first step: their copies, and their names."""
    with STRATEGY.scope():
        network = Own(_mean)
        network.compile(keras.optimizers.Adam(0.01))
    network.fit(X, Y, batch_size=8, verbose=0)
    slots = network.optimizer.variables
    return {
        "copies": [[c.numpy().tolist() for c in STRATEGY.experimental_local_results(v.value)] for v in slots],
        "names": [v.path for v in slots],
        "built": [v.path for v in network.trainable_variables],
    }


class Penalised(keras.Model):
    """A model whose loss has a gradient in it, through statistics of the batch."""

    def __init__(self) -> None:
        super().__init__()
        normalization = keras.layers.BatchNormalization(synchronized=True)
        self.net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5), normalization, keras.layers.Dense(1)])

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = ops.mean(ops.square(y - self.net(x, training=True)))
            loss += ops.sum(ops.square(inner.gradient(loss, self.net.trainable_variables[0])))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def a_gradient_of_a_gradient() -> dict[str, Any]:
    """Return the warnings about a loss with a gradient in it, which come once, however often the step is traced."""
    with STRATEGY.scope():
        network = Penalised()
        network.compile(keras.optimizers.SGD(0.01))
    with heard() as said:
        network.fit(X, Y, batch_size=8, verbose=0)
        network.fit(X[:12], Y[:12], batch_size=4, verbose=0)
    return {"said": said}
