"""Groups of a ring: what the tests run in every worker, whose first strategy has groups."""

import functools
import os
from typing import Any

import keras
import numpy as np
import psutil
import refusal_fields
from rested import ring

import tfdist.strategies
from tfdist import errors

RANK = int(os.environ["TFDIST_WORKER_INDEX"])
GROUPS = [[0, 2], [1]]


def refused_groups() -> list[list[Any]]:
    """Return the reports of the errors for groups that cannot be."""
    reports = []
    for wrong in ([[0, 1], [1, 2]], [[0], [2]], [[2, 0], [1]], [[0, 1, 2, 3]], [[]], [0, 1, 2], "01"):
        make = functools.partial(tfdist.strategies.RingStrategy, groups=wrong)  # type: ignore[arg-type]
        reports.append(refusal_fields.met(make, errors.ConfigError))
    return reports


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
    mine = {connection.laddr.ip for connection in psutil.Process().net_connections("tcp")}
    return {
        "addresses": sorted(mine),
        "replicas": apart.num_replicas_in_sync,
        "chief": apart.is_chief,
        "apart": weights[0],
        "all": weights[1],
    }


def other_groups() -> list[Any]:
    """Return the report of the error for groups that the first strategy did not have."""
    return refusal_fields.met(lambda: tfdist.strategies.RingStrategy(groups=[[0], [1, 2]]), errors.ConfigError)
