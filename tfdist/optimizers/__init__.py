"""Optimizers and learning rates for large batches, and the wrapper around any optimizer.

Example:
    >>> from tfdist.optimizers import scale_learning_rate
    >>> scale_learning_rate(0.1, 256, 1024)
    0.4
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers, and for the API reference
    from tfdist.optimizers.distributed_optimizer import DistributedOptimizer
    from tfdist.optimizers.lars import LARS
    from tfdist.optimizers.residual import zero_last_gammas
    from tfdist.optimizers.scaling import scale_learning_rate
    from tfdist.optimizers.warmup import Warmup

_WHERE = {
    "DistributedOptimizer": "distributed_optimizer",
    "LARS": "lars",
    "Warmup": "warmup",
    "scale_learning_rate": "scaling",
    "zero_last_gammas": "residual",
}

__all__ = ["LARS", "DistributedOptimizer", "Warmup", "scale_learning_rate", "zero_last_gammas"]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
