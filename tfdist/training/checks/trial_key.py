"""The key of a step's verdicts: the step, the way it is tried, and the code that it reaches.

Values of variables and rows of batches are left out: verdicts that may depend on them are not kept, see `row_sums`.
"""

import dis
import functools
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.compat import dry_run
from tfdist.compat.keras import keras_trainer
from tfdist.compat.keras.symbolic import graphs
from tfdist.compat.tensorflow.steps import traced_call
from tfdist.training.checks.code_fingerprint import Digest, OpaqueError, attributes_of, digest_of, is_of_library
from tfdist.training.epoch import flat

_MOST_BYTES = 1 << 26  # of one constant tensor
# What Keras keeps of an object is in its configuration, or is made of that; of these classes the rest is the user's.
_OF_KERAS = (keras.Model, keras.Sequential, graphs.Functional, keras.Metric, keras.Loss, keras.optimizers.Optimizer)
_DESCRIBED = (keras.Layer, keras.Metric, keras.Loss, keras.optimizers.Optimizer, keras.Operation)
_CONFIGURED = (
    *(keras.initializers.Initializer, keras.regularizers.Regularizer, keras.constraints.Constraint),
    *(keras.DTypePolicy, keras.random.SeedGenerator, keras.optimizers.schedules.LearningRateSchedule),
)


def key_of(model: keras.Model, user_step: Callable[[Any], Any], data: Any, how: dict[str, Any]) -> str:
    try:
        with warnings.catch_warnings(action="ignore"):  # of Keras, on functions without a name in configurations
            return digest_of([_versions(), how, _structure(data), model, user_step], describe=_describe)
    except OpaqueError:
        raise
    except Exception as error:
        raise OpaqueError(f"{type(error).__name__}: {error}") from error


def _versions() -> list[Any]:
    settings = (keras.config.floatx(), keras.config.epsilon(), keras.config.image_data_format())
    policy = str(keras.config.dtype_policy().name)
    return [tfdist.__version__, _own_code(), tf.__version__, keras.__version__, sys.version, *settings, policy]


@functools.cache
def _own_code() -> str:
    """Return a digest of the files with which tfdist tries a step, which may change between releases."""
    root = Path(__file__).parents[1]
    files = sorted([*root.glob("*.py"), *root.glob("checks/*.py"), *root.glob("replica/*.py")])
    return digest_of([file.read_bytes() for file in files])


def _structure(data: Any) -> list[Any]:
    specs = [repr(dry_run.relaxed(leaf)) for leaf in flat((data,))]
    return [repr(tf.nest.map_structure(lambda leaf: leaf is not None, data, expand_composites=False)), *specs]


def _describe(value: Any, digest: Digest) -> bool:
    """Write an object of TensorFlow, Keras or tfdist; True if it was one."""
    if isinstance(value, (keras.Variable, tf.Variable)):
        path = getattr(value, "path", value.name)
        digest.mark("variable", path, tuple(value.shape), str(value.dtype), value.trainable, str(value.aggregation))
    elif isinstance(value, keras.KerasTensor):
        digest.mark("symbol", tuple(value.shape), str(value.dtype))
    elif isinstance(value, tf.Tensor):
        _write_tensor(value, digest)
    elif isinstance(value, (tf.DType, tf.TensorShape, tf.TypeSpec)):
        digest.mark("type", repr(value))
    elif isinstance(value, tf.distribute.Strategy):
        digest.mark("strategy", type(value).__qualname__)
    elif isinstance(value, keras.callbacks.History):  # of the training before
        digest.mark("history")
    elif isinstance(value, tf.types.experimental.PolymorphicFunction):
        digest.mark("function", repr(getattr(value, "input_signature", None)))
        digest.write(traced_call.written_by_user(value))
    elif isinstance(value, _DESCRIBED):
        _write_object(value, digest)
    elif isinstance(value, _CONFIGURED):
        digest.mark("configured")
        digest.write(type(value))
        digest.write(_config(value) if is_of_library(type(value)) else attributes_of(value))
    else:
        return False
    return True


def _write_tensor(value: tf.Tensor, digest: Digest) -> None:
    if not hasattr(value, "numpy"):
        raise OpaqueError("it reaches a tensor of another graph")
    if value.dtype in (tf.resource, tf.variant) or value.shape.num_elements() * value.dtype.size > _MOST_BYTES:
        raise OpaqueError(f"it reaches a tensor of {value.dtype.name} {value.shape}")
    digest.mark("tensor", value.dtype.name)
    digest.write(np.asarray(value.numpy()).tolist() if value.dtype == tf.string else np.asarray(value.numpy()))


def _write_object(value: Any, digest: Digest) -> None:
    wrapped = getattr(value, "tfdist_wraps", None)
    kind = type(value)
    digest.mark("object", kind.__qualname__, getattr(value, "name", None))
    digest.write(kind)
    if wrapped is not None:
        digest.write(wrapped)
    if isinstance(value, keras.Layer):
        digest.mark(value.dtype_policy.name, value.trainable, value.supports_masking, value.built)
        digest.write(value.activity_regularizer)
    if isinstance(value, keras.Model):
        _write_model(value, digest)
    elif is_of_library(kind):
        digest.write(_config(value))
    own = _names_of_keras(kind)
    for name, one in sorted(attributes_of(value).items()):
        if name in own or _is_planted(name, one):
            continue
        if is_of_library(kind):  # what its configuration names and does not tell
            one = _of_users(one)
        if one is not None:
            digest.mark("attribute", name)
            digest.write(one)


def _write_model(model: keras.Model, digest: Digest) -> None:
    digest.mark(model.jit_compile, model.run_eagerly, type(model.optimizer).__qualname__)
    digest.write(keras_trainer.compile_arguments(model))
    digest.write(model.optimizer)
    graph = graphs.graph_of(model)
    if graph is not None:
        digest.write(list(graph.inputs))
        for call in graphs.calls(graph):
            digest.mark("call", call.name)
            digest.write(call.operation)
            digest.write([list(call.node.arguments.args), call.node.arguments.kwargs])
        digest.write(list(graph.outputs))
    for layer in keras_trainer.layers(model):
        if layer is not model:
            digest.write(layer)


def _config(value: Any) -> Any:
    try:
        return value.get_config()
    except Exception as error:  # what an object of the user's within it raises
        raise OpaqueError(f"the configuration of {type(value).__name__} cannot be read: {error}") from error


def _names_of_keras(kind: type) -> frozenset[str]:
    """Return the attributes that the general classes of Keras give their objects."""
    return frozenset().union(*(_names_by(base) for base in kind.__mro__ if base in _general()))


@functools.cache
def _general() -> frozenset[type]:
    return frozenset(base for one in _OF_KERAS for base in one.__mro__ if is_of_library(base))


@functools.cache
def _names_by(base: Any) -> frozenset[str]:
    codes = [getattr(_inner(value), "__code__", None) for value in vars(base).values()]
    return frozenset().union(*map(_stored, codes))


def _inner(function: Any) -> Any:
    function = getattr(function, "fset", None) or getattr(function, "__func__", function)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def _stored(code: types.CodeType | None) -> set[str]:
    if code is None:
        return set()
    found, argument = set(), 0
    for operation, last in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        argument = argument << 8 | last
        if operation == dis.opmap["STORE_ATTR"]:
            found.add(code.co_names[argument])
        if operation != dis.EXTENDED_ARG:
            argument = 0
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    return found.union(*map(_stored, inner))


def _is_planted(name: str, value: Any) -> bool:
    """True if tfdist gave the attribute to the object, for one training."""
    function = getattr(value, "func", value)
    module = str(getattr(function, "__module__", ""))
    return name.startswith("_tfdist") or (callable(function) and module.split(".")[0] == "tfdist")


def _of_users(value: Any) -> Any:
    """Return the part of a Keras object's attribute that is the user's or consists of layers; None if there is none."""
    if isinstance(value, (list, tuple)):
        return [one for one in map(_of_users, value) if one is not None] or None
    if isinstance(value, dict):
        return {name: one for name, one in value.items() if _of_users(one) is not None} or None
    if isinstance(value, _DESCRIBED):
        return value
    of_code = isinstance(value, (types.FunctionType, types.MethodType, functools.partial, type))
    kind = getattr(value, "func", value) if of_code else type(value)
    return None if is_of_library(kind) else value
