"""Steps that use what they have updated, on parameter servers: in parts, eagerly, stale, refused; and numbers there."""

import functools
import signal
import threading
from collections.abc import Callable
from typing import Any

import keras
import number_cases
import numpy as np
import refusal_fields
import tensorflow as tf
from parameter_server_cases import strategy

from tfdist import errors
from tfdist.optimizers import DistributedOptimizer
from tfdist.training.parameter_servers import gradient_push
from tfdist.training.parameter_servers.update import BoundedCalls
from tfdist.training.replica import current_step

X = np.random.default_rng(1).integers(0, 13, size=(40, 3))
Y = np.random.default_rng(2).normal(size=(40, 2)).astype("float32")


class Twice(keras.Model):
    """Updates its weights, and again from what the first update has left."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        return {name: self.update(x, y) for name in ("first", "second")}

    def update(self, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            scaled = self.optimizer.scale_loss(loss)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(scaled, weights), weights)
        return loss


def _model(kind: type[keras.Model], optimizer: Any, **options: Any) -> keras.Model:
    keras.utils.set_random_seed(3)
    inputs = keras.Input((3,))
    middle = keras.layers.Flatten()(keras.layers.Embedding(13, 4)(inputs))
    model = kind(inputs, keras.layers.Dense(2)(keras.layers.Dense(5, activation="relu")(middle)))
    model.compile(optimizer(), **options)
    return model


def _fitted(model: keras.Model, epochs: int = 2) -> dict[str, Any]:
    history = model.fit(X, Y, batch_size=8, epochs=epochs, shuffle=False, verbose=0).history
    return {"logs": history, "weights": model.get_weights()}


def _own_loop(model: keras.Model) -> dict[str, Any]:
    """Train without `fit`, twice on each batch, as `Twice` does."""
    step = tf.function(lambda x, y: model.distribute_strategy.run(model.update, (x, y)))
    for begin in [*np.repeat(range(0, len(X), 8), 2)] * 2:
        step(tf.constant(X[begin : begin + 8]), tf.constant(Y[begin : begin + 8]))
    model.optimizer.finalize_variable_values(model.trainable_variables)  # as `fit` does at its end
    return {"logs": {}, "weights": model.get_weights()}


def _one_at_a_time(model: keras.Model, epochs: int = 2) -> dict[str, Any]:
    """Train with gradients that may be stale, and are not, because each is waited for."""
    for _ in range(epochs):
        for begin in range(0, len(X), 8):
            model.train_on_batch(X[begin : begin + 8], Y[begin : begin + 8])
    return {"logs": {}, "weights": model.get_weights()}


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01, weight_decay=0.1, gradient_accumulation_steps=2),
    "distributed": lambda: DistributedOptimizer(
        keras.optimizers.Adam(0.01), accumulate_steps=3, loss_scale="dynamic", growth_steps=2, global_clipnorm=1.0
    ),
    "averaged": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=3),
}


def differences() -> dict[str, float]:
    """Return the distance of weights and logs from one device's, for each way to train."""
    partitioner = tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    ways: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
        "in parts": ("distributed", {"variable_partitioner": partitioner}, {}),
        "one at a time": ("adam", {"max_staleness": None}, {}),
        "eagerly": ("sgd", {}, {"run_eagerly": True}),
        "a loop of one's own": ("averaged", {"variable_partitioner": partitioner}, {}),
    }
    found = {}
    for way, (optimizer, of_strategy, of_model) in ways.items():
        alone = _fitted(_model(Twice, OPTIMIZERS[optimizer]))
        made = strategy(**{"max_staleness": 0, **of_strategy})
        with made.scope():
            model = _model(Twice, OPTIMIZERS[optimizer], **of_model)
        train = {"one at a time": _one_at_a_time, "a loop of one's own": _own_loop}.get(way, _fitted)
        mine = train(model)
        pairs = [*zip(alone["weights"], mine["weights"], strict=True)]
        pairs += [(alone["logs"][name], mine["logs"][name]) for name in mine["logs"] if name in ("first", "second")]
        found[way] = max(float(np.abs(np.subtract(*pair)).max()) for pair in pairs)
    return found


def stale_and_refused() -> dict[str, Any]:
    """Train a GAN with stale gradients and optimizers that nobody has built; then meet three refusals.

    One model applies inside a condition, one keeps a row of state for each row of a batch, and one loop has a
    coordinator of TensorFlow.
    """

    class Gan(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.parts = [keras.Sequential([keras.Input((3,)), keras.layers.Dense(n)]) for n in (3, 1)]
            self.optimizers = [keras.optimizers.SGD(2.0**-10), keras.optimizers.SGD(2.0**-10)]

        def train_step(self, data: Any) -> dict[str, Any]:
            generator, critic = self.parts
            for part, optimizer in zip((critic, generator), self.optimizers, strict=True):
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(critic(generator(data)))
                optimizer.apply(tape.gradient(loss, part.trainable_variables), part.trainable_variables)
            return {"loss": loss}

    made = strategy(max_staleness=2)
    with made.scope():
        model = Gan()
        model.compile()
    model.fit(X.astype("float32"), batch_size=4, epochs=4, verbose=0)

    class Sometimes(Twice):
        def train_step(self, data: Any) -> dict[str, Any]:
            return {"loss": tf.cond(tf.reduce_mean(data[1]) > 0, lambda: self.update(*data), lambda: 0.0)}

    with made.scope():
        refused = _model(Sometimes, OPTIMIZERS["sgd"])
    try:
        _fitted(refused)
        said = "nothing"
    except errors.UnsupportedError as error:
        said = str(error)

    with made.scope():
        kept = keras.Sequential([keras.Input(batch_shape=(4, 2, 3)), keras.layers.GRU(1, stateful=True, name="kept")])
        kept.compile("sgd", "mse")
    rows = functools.partial(kept.fit, np.ones((4, 2, 3)), np.ones((4, 1)), verbose=0)
    coordinator = functools.partial(tf.distribute.coordinator.ClusterCoordinator, made)
    return {
        "coordinator": refusal_fields.met(coordinator, errors.UnsupportedError),
        "state of rows": refusal_fields.met(rows, errors.UnsupportedError),
        "updates": [int(optimizer.iterations.numpy()) for optimizer in model.optimizers],
        "largest": made.staleness.largest,
        "said": said,
    }


def numbers() -> Any:
    """Return the values whose conversion to numbers differs from one device's."""
    return number_cases.not_as_expected(strategy(max_staleness=0))


def logged(number: int) -> int:
    """Return a whole number of the logs of a step as the chief gets it from its only part."""
    logs, one = gradient_push.Logs(), tf.constant(1)
    shares = list(logs.take({"number": tf.constant(number, tf.int64)}, current_step.Step(rows=one, global_rows=one)))
    return int(logs.put(shares)["number"])


def an_interrupted_call() -> list[str]:
    """Interrupt the wait for a call to servers, and make another one; return what came of both."""
    begun, may_end = threading.Event(), threading.Event()
    calls, main, found = BoundedCalls(600.0, lambda: None), threading.get_ident(), list[str]()

    def first() -> str:
        begun.set()
        may_end.wait(600.0)
        return "first"

    def interrupt() -> None:
        begun.wait(600.0)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        found.append(calls(first))
    except KeyboardInterrupt:
        found.append("interrupted")
    thread.join()
    may_end.set()
    found.append(calls(lambda: "second"))
    return found
