"""A ring whose processes are stopped between calls, see `tests.integration.resting`."""

import os
from typing import Any

import tfdist.strategies

# however long the others work meanwhile, on one processor too: who does not answer is taken for lost
LOST_AFTER_SECONDS = 3600.0


def ring(**options: Any) -> tfdist.strategies.RingStrategy:
    """Return the strategy that the environment asks for."""
    replicas = int(os.environ["TFDIST_REPLICAS_PER_WORKER"])
    tfdist.strategies.use_logical_cpus(replicas)
    return tfdist.strategies.RingStrategy(
        replicas_per_worker=replicas, lost_after_seconds=LOST_AFTER_SECONDS, **options
    )
