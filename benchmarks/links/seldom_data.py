"""The tasks of the trainings over slow links: handwritten digits, and the next character of a text."""

from collections.abc import Callable
from pydoc_data import topics
from typing import Any, NamedTuple

import keras
import numpy as np

from tfdist.testing.digits import load_digits

__all__ = ["TASKS", "Task"]

_CONTEXT = 16  # characters before the one to predict
_TEST_PART = 0.1


class Task(NamedTuple):
    """Examples, a model's first layers and its optimizer."""

    x: Any  # of training
    y: Any  # their classes
    test: tuple[Any, Any]  # examples that no worker trains on, and their classes
    kinds: Any  # of the training examples; those of one kind can go to one worker
    classes: int  # their number
    first: Callable[[], list[Any]]  # layers before the hidden ones
    optimizer: Callable[[], keras.optimizers.Optimizer]  # a function that makes the optimizer of a worker


def _digits() -> Task:
    data = load_digits()
    x, x_test = (images.reshape(len(images), -1) for images in (data.train_images, data.test_images))
    return Task(
        *(x, data.train_labels, (x_test, data.test_labels), data.train_labels, 10),
        first=lambda: [keras.Input((64,))],
        optimizer=lambda: keras.optimizers.SGD(0.02, momentum=0.9),
    )


def _text() -> Task:
    """Python's own manual; its sections, in the order of their names, are of ten kinds."""
    texts = [topics.topics[name] for name in sorted(topics.topics)]
    characters = np.frombuffer("\n".join(texts).encode("ascii", "replace"), np.uint8)
    known, codes = np.unique(characters, return_inverse=True)
    windows = np.lib.stride_tricks.sliding_window_view(codes.astype(np.int32), _CONTEXT + 1)
    drawn = np.random.default_rng(0).permutation(len(windows))
    tested = drawn[: int(_TEST_PART * len(drawn))][:4000]
    trained = np.sort(drawn[int(_TEST_PART * len(drawn)) :])

    def first() -> list[Any]:
        return [keras.Input((_CONTEXT,), dtype="int32"), keras.layers.Embedding(len(known), 16), keras.layers.Flatten()]

    return Task(
        *(windows[trained, :-1], windows[trained, -1], (windows[tested, :-1], windows[tested, -1])),
        kinds=trained * 10 // len(windows),
        classes=len(known),
        first=first,
        optimizer=lambda: keras.optimizers.Adam(2e-3),
    )


TASKS: dict[str, Callable[[], Task]] = {"digits": _digits, "text": _text}
