"""A script's first `fit`, called otherwise, and the batch with which it begins.

Private names, read in Keras 3.15.1 (`keras/src/backend/tensorflow/trainer.py`): `TFEpochIterator` makes batches of
whatever `fit` takes. That `keras.Model.fit` is replaced is public and for the whole process: it is done in a process
that ends with this call (`tfdist.tune.profiling`), never in a user's.
"""

import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TFEpochIterator

__all__ = ["call_instead_of_fit"]

_TAKEN = ("x", "y", "batch_size", "steps_per_epoch", "class_weight", "sample_weight")


def call_instead_of_fit(function: Callable[[keras.Model, Any, Callable[..., Any]], Any]) -> None:
    """Let every `fit` of this process call a function with the model, its first batch, and Keras' own `fit`.

    The batch is a tuple (x, y, sample_weight) of tensors; the last two may be None.

    Args:
        function: what is called; what it returns is returned.
    """
    original = keras.Model.fit
    signature = inspect.signature(original)

    def fit(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        given = {name: bound.arguments[name] for name in _TAKEN}
        iterator = TFEpochIterator(
            **given, shuffle=False, distribute_strategy=tf.distribute.get_strategy(), steps_per_execution=1
        )
        batch = keras.utils.unpack_x_y_sample_weight(next(iter(iterator.data_adapter.get_tf_dataset())))
        return function(self, batch, original)

    keras.Model.fit = fit
