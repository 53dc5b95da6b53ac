"""A user's `decode` and `augment` on each example of a batch: what they return is looked at before anything is read."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import tensorflow as tf

from tfdist import validation
from tfdist.errors import ConfigError

Features = dict[str, Any]


def mapped(name: str, function: Callable[..., Features], found: Features, *more: tf.Tensor) -> Features:
    """Return the features that a function makes of each example of a batch."""
    specs = [tf.nest.map_structure(_spec_of_one, given) for given in (found, *more)]
    graph: Any = tf.function(function)
    returned = graph.get_concrete_function(*specs).structured_outputs
    _need_features(name, returned)
    signature = tf.nest.map_structure(_signature, returned)
    return tf.map_fn(lambda row: graph(*row), (found, *more), fn_output_signature=signature)


def _need_features(name: str, returned: Any) -> None:
    if not isinstance(returned, Mapping):
        is_tensor = isinstance(returned, (tf.Tensor, tf.TypeSpec))
        what = "None" if returned is None else "one tensor" if is_tensor else f"a {type(returned).__name__}"
        hint = " Is its `return` missing?" if returned is None else ""
        raise ConfigError(
            f"{name} returned {what}; it must return a dict of the example's features: "
            f"{{**example, 'name': tensor}}, label and weight included.{hint}"
        )
    if not returned:
        raise ConfigError(f"{name} returned a dict without features; it must return those that `fit` is to have.")
    for feature, value in returned.items():
        if not isinstance(feature, str):
            raise ConfigError(f"{name} returned a feature called {feature!r}; a feature's name must be text.")
        for leaf in tf.nest.flatten(value, expand_composites=False):
            if not isinstance(leaf, (tf.Tensor, tf.TensorSpec)):
                _refuse(name, feature, leaf)


def _refuse(name: str, feature: str, leaf: Any) -> NoReturn:
    if leaf is None:
        what, way = "None", "Leave it out of the dict, or give it a value in every example."
    elif isinstance(leaf, (tf.RaggedTensor, tf.RaggedTensorSpec)):
        what, way = (
            "a RaggedTensor",
            "Pad it with to_tensor(); a list of any length is a plain tensor of one dimension.",
        )
    elif isinstance(leaf, (tf.SparseTensor, tf.SparseTensorSpec)):
        what, way = "a SparseTensor", "Make it dense: tf.sparse.to_dense(...)."
    else:
        what, way = f"{validation.shown(leaf)} ({type(leaf).__name__})", "Return a tensor, or what tf.constant takes."
    raise ConfigError(f"{name} returned {what} for the feature {feature!r}; it must be a dense tensor. {way}")


def _spec_of_one(value: Any) -> Any:
    if isinstance(value, tf.RaggedTensor):
        return tf.TensorSpec([None], value.dtype)
    return tf.TensorSpec(value.shape[1:], value.dtype)


def _signature(out: Any) -> Any:
    if out.shape.rank == 1 and out.shape[0] is None:  # a list of any length
        return tf.RaggedTensorSpec([None], out.dtype)
    return tf.TensorSpec(out.shape, out.dtype)
