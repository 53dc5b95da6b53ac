"""One Keras step over several replicas: every sum, mean and decision is taken over all of them.

The package adapts the model, optimizer, losses and layers that live in a tfdist strategy's scope, object by object.
Classes stay as they are, so a plain Keras model in the same process behaves as before.

Example:
    >>> import tfdist.training
    >>> tfdist.training.reduced_gradients([1.0, None])  # outside of a step there is nothing to add up
    [1.0, None]
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers, and for the API reference
    from tfdist.training.replica.across import reduced_gradients

_WHERE = {"reduced_gradients": "replica.across"}

__all__ = ["reduced_gradients"]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
