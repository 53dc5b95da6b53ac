"""Keras' layers with statistics and random numbers: methods that one object can be given of its own.

Private names, read in Keras 3.15.1: `BatchNormalization._moments` and `_reduction_axes`
(`keras/src/layers/normalization/batch_normalization.py`); `SeedGenerator.next` is public, but meant to be called, not
replaced; `current_path` (`keras/src/backend/common/name_scope.py`): TensorFlow's variables know their own names alone.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras.src.backend.common.name_scope import current_path


def path_of_new_variable(name: str) -> str:
    """Return the path that Keras gives a variable of this name that is being created, such as ``dense/kernel``."""
    return "/".join(filter(None, [current_path(), name]))


def override_moments(layer: keras.layers.BatchNormalization, moments: Callable[..., Any]) -> None:
    """Let one layer take its mean and variance from ``moments(inputs, mask)``, once."""
    vars(layer).setdefault("_moments", moments)


def own_moments(layer: keras.layers.BatchNormalization, inputs: Any, mask: Any) -> Any:
    """Return mean and variance as Keras takes them."""
    return type(layer)._moments(layer, inputs, mask)


def reduction_axes(layer: keras.layers.BatchNormalization) -> list[int]:
    """Return the axes over which a batch normalisation takes its statistics."""
    return list(layer._reduction_axes)


def override_next(generator: keras.random.SeedGenerator, draw: Callable[..., Any]) -> None:
    """Let one seed generator draw from ``draw(ordered=True)``, once."""
    vars(generator).setdefault("next", draw)


def own_next(generator: keras.random.SeedGenerator, ordered: bool) -> Any:
    """Draw a seed as Keras does."""
    return type(generator).next(generator, ordered=ordered)
