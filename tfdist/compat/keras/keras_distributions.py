"""Keras' distributions: what they were given.

Private names, read in Keras 3.15.1 (`keras/src/distribution/distribution_lib.py`): `ModelParallel._layout_map`; its
methods tell the layout of a variable, and not which patterns there are.
"""

from typing import Any

import keras


def layout_map(distribution: keras.distribution.ModelParallel) -> Any:
    """Return the `keras.distribution.LayoutMap` that a distribution was made of."""
    return distribution._layout_map
