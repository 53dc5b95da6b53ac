"""What the tests of workers that meet seldom run in every worker at once; each returns JSON values.

The reference is a simulation on one device: a plain Keras model for each worker, which trains on the worker's rows.
"""

import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

import tfdist.strategies
from tfdist.cluster.shares import Shares

RANK = int(os.environ["TFDIST_WORKER_INDEX"])
WORKERS = len(os.environ["TFDIST_WORKERS"].split(","))
BATCH = 12
X = np.random.RandomState(0).normal(size=(82, 4)).astype(np.float32)
Y = np.sin(X.sum(axis=1, keepdims=True)).astype(np.float32)
_STRATEGIES: dict[str, Any] = {}
OPTIMIZERS: dict[str, Callable[[], keras.optimizers.Optimizer]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.02),
}


def strategy(synchronization: str | None) -> Any:
    """Return the strategy of this synchronization; one for each in a process."""
    key = str(synchronization)
    if key not in _STRATEGIES:
        os.environ.pop("TFDIST_SYNCHRONIZATION", None)
        if synchronization is not None:
            os.environ["TFDIST_SYNCHRONIZATION"] = synchronization
        _STRATEGIES[key] = tfdist.strategies.from_environment()
    return _STRATEGIES[key]


strategy(None)  # before TensorFlow's first operation


def network(optimizer: str, *, normalizes: bool = False, **options: Any) -> keras.Model:
    keras.utils.set_random_seed(0)
    layers: list[Any] = [keras.Input((4,)), keras.layers.Dense(5, activation="tanh")]
    layers += [keras.layers.BatchNormalization(momentum=0.5)] if normalizes else []
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    model.compile(OPTIMIZERS[optimizer](), "mse", metrics=["mae"], **options)
    return model


def trained(synchronization: str | None, optimizer: str, *, epochs: int = 2, **options: Any) -> dict[str, Any]:
    """Train over all workers, and return what is seen at the end."""
    chosen = strategy(synchronization)
    with chosen.scope():
        model = network(optimizer, **options)
    history = model.fit(X, Y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, validation_data=(X, Y))
    return {"weights": flat(model.get_weights()), "history": history.history}


def flat(weights: list[Any]) -> list[float]:
    return np.concatenate([np.asarray(w, np.float64).ravel() for w in weights]).tolist()


class Simulation:
    """Workers side by side on one device: each a plain model, which trains on the rows that the worker would have."""

    def __init__(self, optimizer: str, **options: Any) -> None:
        self.models = [network(optimizer, **options) for _ in range(WORKERS)]
        for model in self.models:
            model.optimizer.build(model.trainable_variables)

    def run(self, epochs: int, after: Callable[[int], None]) -> None:
        """Train; ``after`` is called with the number of steps that all workers have taken."""
        step = 0
        for _ in range(epochs):
            for first in range(0, len(X), BATCH):
                x, y = X[first : first + BATCH], Y[first : first + BATCH]
                bounds = Shares.equal(WORKERS).bounds(len(x))
                for model, begin, end in zip(self.models, bounds, bounds[1:], strict=False):
                    model.train_on_batch(x[begin:end], y[begin:end])
                step += 1
                after(step)

    def average(self, *, moments: bool = True) -> None:
        """Let all models have the mean of weights, states and slots."""
        kinds = [model.weights + (model.optimizer.variables if moments else []) for model in self.models]
        for variables in zip(*kinds, strict=True):
            if "float" in variables[0].dtype:
                mean = np.mean([variable.numpy() for variable in variables], axis=0)
                for variable in variables:
                    variable.assign(mean)

    def mean(self) -> list[float]:
        return np.mean([flat(model.get_weights()) for model in self.models], axis=0).tolist()


def local_sgd(every: int, optimizer: str, normalizes: bool, moments: bool = True) -> dict[str, Any]:
    """Return the end of a training of local steps, and of its simulation."""
    text = f"local-sgd:every={every},average_moments={str(moments).lower()}"
    seen = trained(text, optimizer, normalizes=normalizes)
    simulation = Simulation(optimizer, normalizes=normalizes)
    simulation.run(2, lambda step: simulation.average(moments=moments) if step % every == 0 else None)
    return seen | {"simulated": simulation.mean()}


def post_local_sgd(after: int, every: int, optimizer: str) -> dict[str, Any]:
    """Return the end of a training whose first steps reduce gradients, and of its simulation."""
    seen = trained(f"post-local-sgd:after={after},every={every}", optimizer)
    simulation = Simulation(optimizer)
    whole = network(optimizer)  # trains the first steps, on whole batches
    whole.optimizer.build(whole.trainable_variables)
    batches = iter([(X[first : first + BATCH], Y[first : first + BATCH]) for first in range(0, len(X), BATCH)] * 2)

    def meet(step: int) -> None:
        x, y = next(batches)
        if step <= after:
            whole.train_on_batch(x, y)
            for model in simulation.models:
                for variable, other in zip(everything(model), everything(whole), strict=True):
                    variable.assign(other)
        elif (step - after) % every == 0:
            simulation.average()

    simulation.run(2, meet)
    return seen | {"simulated": simulation.mean()}


def everything(model: keras.Model) -> list[Any]:
    return [*model.weights, *model.optimizer.variables]


def data_parallel(optimizer: str, normalizes: bool) -> dict[str, Any]:
    """Return the ends of a training that meets in every step, and of data parallelism."""
    met = trained("local-sgd:every=1", optimizer, normalizes=normalizes)
    return {"met": met, "reduced": trained(None, optimizer, normalizes=normalizes)}
