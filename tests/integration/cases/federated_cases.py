"""Clients of a federation that train on several devices. Run in a worker process; functions return JSON."""

import functools
from typing import Any

import keras
import numpy as np

import tfdist
from tfdist.federated import App, FedProx, Scaffold, simulate

RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(47, 6)).astype(np.float32)  # batches of 7 and 6, because a mesh traces each size
DATA = [(X[:20], X[:20, 0]), (X[20:], X[20:, 1])]


def distance_to_one_device(*, name: str) -> dict[str, Any]:
    """Train an application on one device and on two, as replicas and with parts of weights.

    The last batch of a client does not divide.
    """
    strategies = {
        "mirrored": tfdist.strategies.from_environment(),
        "model-parallel": tfdist.strategies.ModelParallelStrategy(mesh="batch=1,model=2", layout_map="auto"),
    }
    algorithm = {
        "FedProx": FedProx(mu=0.1, epochs=2, batch_size=7),
        "Scaffold": Scaffold(epochs=2, batch_size=7),  # takes plain SGD alone
    }[name]

    def alone() -> keras.Model:
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9 * (name == "FedProx")), "mse", metrics=["mae"])
        return model

    def under(strategy: Any) -> keras.Model:
        with strategy.scope():
            return alone()

    def run(make_model: Any) -> Any:
        return simulate(App(make_model, DATA, algorithm, test_data=(X, X[:, 0])), rounds=2)

    one, found = run(alone), {}
    for kind, strategy in strategies.items():
        two = run(functools.partial(under, strategy))
        apart = [np.abs(a - b).max() for a, b in zip(one.model.get_weights(), two.model.get_weights(), strict=True)]
        found[kind] = {
            "replicas": two.model.distribute_strategy.num_replicas_in_sync,
            "weights": float(max(apart)),
            "losses": [each.rounds[-1].evaluation["loss"] for each in (one, two)],
        }
    return found
