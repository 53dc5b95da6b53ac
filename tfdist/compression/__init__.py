"""Gradient compression: fewer bytes between replicas, and what that costs.

Example:
    >>> from tfdist.compression import PowerSGD
    >>> from tfdist.optimizers import DistributedOptimizer
    >>> optimizer = DistributedOptimizer("sgd", compression=PowerSGD(rank=2, start_after=100))
"""

from typing import TYPE_CHECKING

from tfdist.lazy_exports import exported

if TYPE_CHECKING:  # for type checkers, and for the API reference
    from tfdist.compression.auto import Auto
    from tfdist.compression.codec import Codec, RowCodec
    from tfdist.compression.codecs.casting import BFloat16, Float16, Whole
    from tfdist.compression.codecs.power_sgd import PowerSGD
    from tfdist.compression.codecs.quantized import QSGD, Natural, TernGrad
    from tfdist.compression.codecs.signs import OneBit, SignSGD
    from tfdist.compression.codecs.sparse import DGC, RandomK, Threshold, TopK
    from tfdist.compression.error_feedback import ErrorFeedback
    from tfdist.compression.registry import register

__all__ = [
    "DGC",
    "QSGD",
    "Auto",
    "BFloat16",
    "Codec",
    "ErrorFeedback",
    "Float16",
    "Natural",
    "OneBit",
    "PowerSGD",
    "RandomK",
    "RowCodec",
    "SignSGD",
    "TernGrad",
    "Threshold",
    "TopK",
    "Whole",
    "register",
]

__getattr__, __dir__ = exported(__name__, __file__)
