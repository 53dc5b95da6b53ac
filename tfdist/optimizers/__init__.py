"""Optimizers and learning rates for large batches, and the wrapper around any optimizer.

Example:
    >>> from tfdist.optimizers import scale_learning_rate
    >>> scale_learning_rate(0.1, 256, 1024)
    0.4
"""

from typing import TYPE_CHECKING

from tfdist.lazy_exports import exported

if TYPE_CHECKING:  # for type checkers, and for the API reference
    from tfdist.optimizers.distributed_optimizer import DistributedOptimizer
    from tfdist.optimizers.lars import LARS
    from tfdist.optimizers.learning_rates import Warmup, scale_learning_rate
    from tfdist.optimizers.residual import zero_last_gammas

__all__ = ["LARS", "DistributedOptimizer", "Warmup", "scale_learning_rate", "zero_last_gammas"]

__getattr__, __dir__ = exported(__name__, __file__)
