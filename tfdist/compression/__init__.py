"""Gradient compression: fewer bytes between replicas, and what that costs.

Example:
    >>> from tfdist.compression import PowerSGD
    >>> from tfdist.optimizers import DistributedOptimizer
    >>> optimizer = DistributedOptimizer("sgd", compression=PowerSGD(rank=2, start_after=100))
"""

import importlib
from typing import TYPE_CHECKING, Any

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

_WHERE = {
    "Auto": "auto",
    "BFloat16": "codecs.casting",
    "Codec": "codec",
    "DGC": "codecs.sparse",
    "ErrorFeedback": "error_feedback",
    "Float16": "codecs.casting",
    "Natural": "codecs.quantized",
    "OneBit": "codecs.signs",
    "PowerSGD": "codecs.power_sgd",
    "QSGD": "codecs.quantized",
    "RandomK": "codecs.sparse",
    "RowCodec": "codec",
    "SignSGD": "codecs.signs",
    "TernGrad": "codecs.quantized",
    "Threshold": "codecs.sparse",
    "TopK": "codecs.sparse",
    "Whole": "codecs.casting",
    "register": "registry",
}

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


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
