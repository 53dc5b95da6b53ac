"""Models in parts: the mesh axis that cuts each dim of a weight, and the best division of layers.

Example:
    >>> import keras
    >>> from tfdist import parallel
    >>> parallel.places(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))[0].layout
    (None, None)
"""

from typing import TYPE_CHECKING

from tfdist.lazy_exports import exported

if TYPE_CHECKING:  # for type checkers, and for the API reference
    from tfdist.parallel.description import WeightPlace, describe, places
    from tfdist.parallel.partition.plan_model import plan

__all__ = ["WeightPlace", "describe", "places", "plan"]

__getattr__, __dir__ = exported(__name__, __file__)
