"""Weights in parts: which axis of a mesh each dim is cut along, and what travels for it.

Example:
    >>> import keras
    >>> from tfdist import parallel
    >>> parallel.places(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))[0].layout
    (None, None)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers, and for the API reference
    from tfdist.parallel.description import WeightPlace, describe, places

__all__ = ["WeightPlace", "describe", "places"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module("tfdist.parallel.description"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
