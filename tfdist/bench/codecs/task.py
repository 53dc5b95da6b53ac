"""What is trained to an accuracy: handwritten digits, by a perceptron large enough for its bytes to count."""

from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

import tfdist.data

__all__ = ["Part", "build", "load", "training"]


class Part(NamedTuple):
    """Examples: images, float32, from 0 to 1, shape (examples, 64); labels, int32, shape (examples,)."""

    images: NDArray[np.float32]
    labels: NDArray[np.int32]


def load(folder: str | Path, part: str) -> Part:
    """Return a part of the data.

    Args:
        folder: of TFRecords, as `tfdist.testing.digits.write_digits` writes it.
        part: "train" or "test".
    """
    examples = list(tfdist.data.open(Path(folder, part)))
    images = np.stack([one["image"] for one in examples]).astype(np.float32).reshape(len(examples), -1)
    return Part(images, np.array([one["label"] for one in examples], np.int32))


def build(seed: int) -> keras.Model:
    """Return the classifier, not compiled, the same for the same seed: 2.2 M parameters, which are 8.7 MB."""
    keras.utils.set_random_seed(seed)
    hidden = [keras.layers.Dense(1024, activation="relu") for _ in range(3)]
    return keras.Sequential([keras.Input((64,)), *hidden, keras.layers.Dense(10)])


def training(part: Part, global_batch_size: int, steps: int, seed: int) -> tf.data.Dataset:
    """Return the batches of all workers for so many steps, in an order that the seed alone decides."""
    draw, count = np.random.default_rng(seed), len(part.labels)
    epochs = -(-global_batch_size * steps // count)
    order = np.concatenate([draw.permutation(count) for _ in range(epochs)])
    examples = tf.data.Dataset.from_tensor_slices((part.images[order], part.labels[order]))
    return examples.batch(global_batch_size, drop_remainder=True).repeat()
