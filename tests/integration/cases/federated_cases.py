"""What the tests of mirrored training run of federated training, in a worker process with two logical CPUs."""

import contextlib
from typing import Any

import keras
import numpy as np
from mirrored_cases import STRATEGY, X, Y, model

from tfdist.federated import App, FedProx, Scaffold, simulate


def clients_of_two_replicas() -> dict[str, float]:
    """The largest difference between clients that train mirrored and clients of one device, for each algorithm."""
    data = [(X[:20], Y[:20]), (X[20:], Y[20:])]

    def trained(algorithm: Any, scope: Any) -> Any:
        def make_model() -> keras.Model:
            with scope():
                return model()

        weights = simulate(App(make_model, data, algorithm), rounds=2).model.get_weights()
        return np.concatenate([one.ravel() for one in weights])

    return {
        type(one).__name__: float(np.abs(trained(one, STRATEGY.scope) - trained(one, contextlib.nullcontext)).max())
        for one in (FedProx(mu=0.5, batch_size=8), Scaffold(batch_size=8))
    }
