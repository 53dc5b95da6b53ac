"""The task of the recipes: a convolutional classifier on the handwritten digits that scikit-learn ships.

1,797 images of 8x8 pixels from the UCI machine learning repository (E. Alpaydin, C. Kaynak, "Optical Recognition of
Handwritten Digits", 1998, https://doi.org/10.24432/C50P49). They come with scikit-learn; nothing is downloaded.

Example:
    >>> digits = load_digits()
    >>> digits.train_images.shape, len(digits.validation_labels), len(digits.test_labels)
    ((1257, 8, 8, 1), 180, 360)
"""

from dataclasses import dataclass

import keras
import numpy as np
from numpy.typing import NDArray

from tfdist.errors import MissingDependencyError

SEED = 17  # of the split, and of the recipes
_VALIDATION, _TEST = 180, 360
_LARGEST_PIXEL = 16.0


@dataclass(frozen=True, kw_only=True)
class Digits:
    """The three parts of the data; every image is in exactly one.

    Attributes:
        train_images, validation_images, test_images: float32, ``[examples, 8, 8, 1]``, from 0 to 1.
        train_labels, validation_labels, test_labels: int32, ``[examples]``, from 0 to 9.
    """

    train_images: NDArray[np.float32]
    train_labels: NDArray[np.int32]
    validation_images: NDArray[np.float32]
    validation_labels: NDArray[np.int32]
    test_images: NDArray[np.float32]
    test_labels: NDArray[np.int32]


def load_digits() -> Digits:
    """Return the digits in a fixed split: the same 1,257 / 180 / 360 images in the same order on every machine.

    Returns:
        The three parts.
    Raises:
        MissingDependencyError: scikit-learn is not installed.

    Example:
        >>> float(load_digits().test_images.max())
        1.0
    """
    try:
        from sklearn import datasets
    except ImportError as error:
        raise MissingDependencyError(
            "scikit-learn is not installed; the digits come with it. Install it: python -m pip install 'tfdist[demo]'"
        ) from error
    bunch = datasets.load_digits()
    order = np.random.default_rng(SEED).permutation(len(bunch.target))
    images = (bunch.images[order, :, :, np.newaxis] / _LARGEST_PIXEL).astype(np.float32)
    labels = bunch.target[order].astype(np.int32)
    rest = _TEST + _VALIDATION
    return Digits(
        train_images=images[rest:],
        train_labels=labels[rest:],
        validation_images=images[_TEST:rest],
        validation_labels=labels[_TEST:rest],
        test_images=images[:_TEST],
        test_labels=labels[:_TEST],
    )


def build_model() -> keras.Model:
    """Return the classifier, not compiled: three convolutions, 65,994 parameters.

    No layer's result depends on how a batch is divided (no Dropout, no BatchNormalization), so every strategy trains
    it to the numbers of one device.

    Example:
        >>> build_model().count_params()
        65994
    """
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(10, activation="softmax"),
        ],
        name="digits",
    )
