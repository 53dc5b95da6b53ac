"""Sharding stages, and which strategies support them. Loads no TensorFlow."""

from collections.abc import Sequence
from typing import Any

from tfdist import validation
from tfdist.errors import UnsupportedError


def require(name: str, stage: Any) -> None:
    """Raise unless a value is a stage of sharded data parallelism that there is, or None.

    Example:
        >>> require("stage", 2)
    """
    if stage is None:
        return
    validation.integer(name, stage, minimum=1, maximum=3)


def require_one_cpu(stage: int | None, devices: Sequence[str]) -> None:
    """Raise unless a worker has one CPU replica, if anything is sharded."""
    if stage is not None and (len(devices) > 1 or "GPU" in devices[0]):
        raise UnsupportedError(
            f"an optimizer is to be sharded over workers with one CPU replica each, and this one has the replicas "
            f"{', '.join(devices)}. Start a process for each replica (tfdist run -n), on CPUs, or leave "
            "shard_optimizer out.",
            name="shard_optimizer",
            received=stage,
        )
