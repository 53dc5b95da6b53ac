"""Models in parts: which axis of a mesh each dim of a weight is cut along, and how layers are best divided.

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
    from tfdist.parallel.partition.plan_model import plan

__all__ = ["WeightPlace", "describe", "places", "plan"]

_WHERE = {
    "WeightPlace": "tfdist.parallel.description",
    "describe": "tfdist.parallel.description",
    "places": "tfdist.parallel.description",
    "plan": "tfdist.parallel.partition.plan_model",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
