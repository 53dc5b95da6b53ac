"""Keras and TensorFlow for feature files, imported when a feature runs: listing features loads neither."""

import importlib
from typing import TYPE_CHECKING, Any


class _Lazy:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


if TYPE_CHECKING:
    import keras
    import tensorflow as tf
else:
    keras = _Lazy("keras")
    tf = _Lazy("tensorflow")

__all__ = ["keras", "tf"]
