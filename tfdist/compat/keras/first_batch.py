"""The interception of a script's `fit`, which takes its first batches.

Private names, read in Keras 3.15.1: `TFEpochIterator` (`keras/src/backend/tensorflow/trainer.py`) batches whatever
`fit` takes; `train_validation_split` (`keras/src/trainers/data_adapters/array_slicing.py`). `keras.Model.fit` is
replaced for the whole process, so only in processes that end with this call (`tfdist.tune.profiling`,
`tfdist.verify.proof`).
"""

import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TFEpochIterator
from keras.src.trainers.data_adapters.array_slicing import train_validation_split

_TAKEN = ("x", "y", "batch_size", "steps_per_epoch", "class_weight", "sample_weight")


def replace_fit(function: Callable[[keras.Model, dict[str, Any], Callable[..., Any]], Any]) -> None:
    """Let every `fit` of this process call a function with the model, the arguments by name, and Keras' own `fit`."""
    original = keras.Model.fit
    signature = inspect.signature(original)

    def fit(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        return function(self, {name: value for name, value in bound.arguments.items() if name != "self"}, original)

    keras.Model.fit = fit


def call_instead_of_fit(function: Callable[[keras.Model, Any, Callable[..., Any]], Any]) -> None:
    """Let `fit` call a function with the model, its first batch (x, y, sample_weight), and Keras' own `fit`."""

    def of_first_batch(model: keras.Model, arguments: dict[str, Any], original: Callable[..., Any]) -> Any:
        batches = _epochs({name: arguments[name] for name in _TAKEN}, shuffle=False).get_tf_dataset()
        return function(model, keras.utils.unpack_x_y_sample_weight(next(iter(batches))), original)

    replace_fit(of_first_batch)


def batches_of_fit(arguments: dict[str, Any]) -> Any:
    """Return Keras' adapter of the input of `fit`, whose `get_tf_dataset` has the global batches of one device."""
    taken = {name: arguments[name] for name in _TAKEN}
    if arguments["validation_split"] and arguments["validation_data"] is None:
        data = tuple(arguments[name] for name in ("x", "y", "sample_weight"))
        kept, _ = train_validation_split(data, validation_split=arguments["validation_split"])
        taken |= dict(zip(("x", "y", "sample_weight"), kept, strict=True))
    return _epochs(taken, shuffle=arguments["shuffle"])


def _epochs(taken: dict[str, Any], *, shuffle: Any) -> Any:
    given = {"shuffle": shuffle, "distribute_strategy": tf.distribute.get_strategy(), "steps_per_execution": 1}
    return TFEpochIterator(**taken, **given).data_adapter
