"""Sharding stages, and which strategies support them. Loads no TensorFlow."""

from collections.abc import Mapping, Sequence
from typing import Any

from tfdist import validation
from tfdist.cluster.strategy_table import STAGE_VARIABLE
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


def stage_from(environ: Mapping[str, str]) -> int:
    """Return the stage that variables name, or else 1.

    Example:
        >>> stage_from({}), stage_from({"TFDIST_SHARDING_STAGE": "2"})
        (1, 2)
    """
    given = environ.get(STAGE_VARIABLE)
    return validation.parse_integer(STAGE_VARIABLE, given, minimum=1, maximum=3) if given else 1
