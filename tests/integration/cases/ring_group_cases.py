"""Groups of a ring: what the tests run in every worker, whose first strategy has groups."""

import os
from typing import Any

import keras
import numpy as np
from rested import ring

import tfdist.strategies
from tfdist import errors

RANK = int(os.environ["TFDIST_WORKER_INDEX"])
GROUPS = [[0, 2], [1]]


def refused_groups() -> list[str]:
    """Return what is said to groups that cannot be."""
    said = []
    for wrong in ([[0, 1], [1, 2]], [[0], [2]], [[2, 0], [1]], [[0, 1, 2, 3]], [[]], [0, 1, 2], "01"):
        try:
            tfdist.strategies.RingStrategy(groups=wrong)  # type: ignore[arg-type]
            said.append("made")
        except errors.ConfigError as error:
            said.append(str(error))
    return said


def groups() -> dict[str, Any]:
    """Two groups of the job train by themselves, then all workers together."""
    apart = ring(groups=GROUPS)
    x = np.random.RandomState(0).normal(size=(12, 3)).astype(np.float32)
    sign = 1.0 if RANK in GROUPS[0] else -1.0
    weights = []
    for strategy, y in ((apart, sign * x[:, :1]), (tfdist.strategies.RingStrategy(), x[:, :1])):
        with strategy.scope():
            keras.utils.set_random_seed(RANK)
            network = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            keras.utils.set_random_seed(0)
            network.compile(keras.optimizers.SGD(0.1), "mse")
        network.fit(x, y, batch_size=6, epochs=2, verbose=0)
        strategy.barrier()
        weights.append(np.concatenate([w.ravel() for w in network.get_weights()]).tolist())
    return {"replicas": apart.num_replicas_in_sync, "chief": apart.is_chief, "apart": weights[0], "all": weights[1]}


def other_groups() -> str:
    """Return what is said to groups that the first strategy did not have."""
    try:
        tfdist.strategies.RingStrategy(groups=[[0], [1, 2]])
    except errors.ConfigError as error:
        return str(error)
    return "made"
