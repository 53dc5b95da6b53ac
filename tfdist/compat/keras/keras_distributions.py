"""The layout map of a Keras distribution.

Private name, read in Keras 3.15.1 (`keras/src/distribution/distribution_lib.py`): `ModelParallel._layout_map`; its
methods return the layout of a variable, not the patterns.
"""

from typing import Any

import keras


def layout_map(distribution: keras.distribution.ModelParallel) -> Any:
    return distribution._layout_map
