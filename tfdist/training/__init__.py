"""A Keras step over several replicas, in which every sum, mean and decision is taken over all of them.

The package adapts the model, optimizer, losses and layers that live in a tfdist strategy's scope, object by object.
Classes stay as they are, so a plain Keras model in the same process behaves as before.

Example:
    >>> import tfdist.training
    >>> tfdist.training.reduced_gradients([1.0, None])  # outside of a step there is nothing to add up
    [1.0, None]
"""

from typing import TYPE_CHECKING

from tfdist.lazy_exports import exported

if TYPE_CHECKING:  # for type checkers, and for the API reference
    from tfdist.training.replica.across import reduced_gradients

__all__ = ["reduced_gradients"]

__getattr__, __dir__ = exported(__name__, __file__)
