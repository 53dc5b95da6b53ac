"""The task of the recipes: a convolutional classifier on the handwritten digits that scikit-learn ships.

1,797 images of 8x8 pixels from the UCI machine learning repository (E. Alpaydin, C. Kaynak, "Optical Recognition of
Handwritten Digits", 1998, https://doi.org/10.24432/C50P49). They come with scikit-learn; nothing is downloaded.

Example:
    >>> digits = load_digits()
    >>> digits.train_images.shape, len(digits.validation_labels), len(digits.test_labels)
    ((1257, 8, 8, 1), 180, 360)
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
from numpy.typing import NDArray

from tfdist import cache
from tfdist.data.format import data_manifest
from tfdist.data.writing import dataset_writer
from tfdist.errors import MissingDependencyError

PARTS = ("train", "validation", "test")
SEED = 17  # of the split, and of the recipes
_VALIDATION, _TEST = 180, 360
_LARGEST_PIXEL = 16.0


@dataclass(frozen=True, kw_only=True)
class Digits:
    """The three parts of the data; every image is in exactly one.

    Attributes:
        train_images, validation_images, test_images: images, float32 ``[examples, 8, 8, 1]``, from 0 to 1.
        train_labels, validation_labels, test_labels: labels, int32 ``[examples]``, from 0 to 9.
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
        The three parts of the data.
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


def write_digits(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder with the digits as TFRecords, and write them if they are not there yet.

    Any number of processes may call this at once: one writes, the others wait for it. Other digits, or another version
    of the format, would get another folder, so an existing folder has the right content.

    Args:
        folder: the parent folder. Default: the user's cache, see `tfdist.cache.folder`.
    Returns:
        A folder with three directories for `tfdist.data.read`: ``train``, ``validation`` and ``test``. Their examples
        are those of `load_digits` in the same order: ``image``, float32 ``[8, 8, 1]``, and ``label``, int32.
    Raises:
        MissingDependencyError: scikit-learn is not installed.
        ConfigError, StorageError: the folder cannot be written.

    Example:
        >>> import tempfile, tfdist
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     {part: len(tfdist.data.open(write_digits(folder) / part)) for part in PARTS}
        {'train': 1257, 'validation': 180, 'test': 360}
    """
    digits = load_digits()
    arrays = {
        part: {"image": getattr(digits, f"{part}_images"), "label": getattr(digits, f"{part}_labels")} for part in PARTS
    }
    if folder is None:
        folder = cache.folder(os.environ)
        cache.make(folder, ("digits",))
        folder = folder / "digits"
    place = Path(folder, _version(arrays)).absolute()
    for part, examples in arrays.items():
        dataset_writer.write(examples, place / part, exists="keep")
    return place


def _version(arrays: dict[str, dict[str, NDArray[np.generic]]]) -> str:
    digest = hashlib.sha256(f"{data_manifest.FORMAT} {data_manifest.VERSION}".encode())
    for examples in arrays.values():
        for name, values in examples.items():
            digest.update(repr((name, values.dtype.str, values.shape)).encode() + values.tobytes())
    return digest.hexdigest()[:12]


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
