"""Initial values of a weight in parts: one device's numbers, bit for bit, without the whole tensor.

TensorFlow's stateless random numbers are counted: number i follows from a key and from a counter i / 4 steps ahead, so
any range can be made alone. Scale, shift and cast are read from the initializer's graph, and applied to the range.

Source: J. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011 (Philox). TensorFlow's layout was read in
2.21.0 (`core/kernels/random_op_cpu.h`): each group of 16 bytes takes one step of the counter; one of a truncated
normal, which may be drawn again, 256 steps.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.collectives.traced import TracedCollective
from tfdist.compat.keras import keras_variables
from tfdist.compat.tensorflow.meshes.sharded_variable import Layout

_LARGE_BYTES = 1 << 30
_SMALL = 1 << 18  # elements, which are drawn whole in less time than a graph takes to read how
_BYTES_PER_STEP = 16
_SMALLEST = 4  # what is smaller is drawn as four bytes
_PHILOX = 1
_ALGORITHMS = (1, 3)  # Philox, and what TensorFlow chooses: Philox on a CPU
_STEPS = {"StatelessRandomUniformV2": 1, "StatelessRandomNormalV2": 1, "StatelessTruncatedNormalV2": 256}
_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "AddV2": lambda op, a, b: a + b,
    "Mul": lambda op, a, b: a * b,
    "Sub": lambda op, a, b: a - b,
    "RealDiv": lambda op, a, b: a / b,
    "FloorMod": lambda op, a, b: a % b,
    "Cast": lambda op, a: tf.cast(a, op.get_attr("DstT")),
    "Identity": lambda op, a: a,
}
_log = logging.getLogger("tfdist")


class Numbers:
    """The numbers of an initializer."""

    def __init__(self, output: tf.Tensor, drawn: Mapping[str, tuple[Any, Any]]) -> None:
        self._output = output
        self._drawn = dict(drawn)

    def stretch(self, begin: int, end: int) -> tf.Tensor:
        """Return the numbers with these flat indices, shape (end - begin,)."""
        return self._value(self._output, begin, end)

    def _value(self, tensor: tf.Tensor, begin: int, end: int) -> tf.Tensor:
        op = tensor.op
        if op.type in _STEPS:
            return self._draw(op, begin, end)
        if op.type == "Const":
            known = tf.constant(tf.get_static_value(tensor), tensor.dtype)
            return known if tensor.shape.rank == 0 else tf.reshape(known, [-1])[begin:end]
        if op.type == "Fill":
            return tf.fill([end - begin], tf.constant(tf.get_static_value(op.inputs[1]), tensor.dtype))
        return _ELEMENTWISE[op.type](op, *(self._value(one, begin, end) for one in op.inputs))

    def _draw(self, op: tf.Operation, begin: int, end: int) -> tf.Tensor:
        key, counter = self._drawn[op.name]
        dtype = op.outputs[0].dtype
        per_step = _BYTES_PER_STEP // max(dtype.size, _SMALLEST)
        first = begin // per_step
        low = int(counter[0]) + first * _STEPS[op.type]
        moved = np.array([low % 2**64, (int(counter[1]) + low // 2**64) % 2**64], np.uint64)
        count = end - first * per_step
        drawn = getattr(tf.raw_ops, op.type)(shape=[count], dtype=dtype, key=key, counter=moved, alg=_PHILOX)
        return drawn[begin - first * per_step :]


def numbers_of(initializer: Any, shape: Sequence[int], dtype: str) -> Numbers | None:
    """Return the numbers of an initializer, or None if they cannot be made by stretches."""
    try:
        with tf.Graph().as_default():  # which is read and never run: a traced function would take five times as long
            output = tf.convert_to_tensor(initializer(tuple(shape), dtype=dtype))
    except (TypeError, ValueError, NotImplementedError, RuntimeError):
        return None  # the error comes again where it is made whole
    drawing = _drawing(output, tuple(shape))
    if drawing is None:
        return None
    found = {op.name: _key_and_counter(op) for op in drawing}
    drawn = {name: one for name, one in found.items() if one is not None}
    return Numbers(output, drawn) if len(drawn) == len(found) else None


def _key_and_counter(op: tf.Operation) -> tuple[Any, Any] | None:
    """Return the key and the counter of the first number that an operation draws; None if they are not known."""
    made, alg = op.inputs[1].op, tf.get_static_value(op.inputs[3])
    if made.type != "StatelessRandomGetKeyCounter" or alg is None or int(alg) not in _ALGORITHMS:
        return None
    if op.inputs[2].op is not made or (seed := _computed(made.inputs[0])) is None:
        return None
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
    return key, counter.numpy()


def _computed(tensor: tf.Tensor) -> tf.Tensor | None:
    """Return the value of a tensor that follows from constants; None if it does not."""
    op = tensor.op
    if op.type == "Const":
        return tf.constant(tf.get_static_value(tensor), tensor.dtype)
    inputs = [_computed(one) for one in op.inputs] if op.type in _ELEMENTWISE else [None]
    return None if any(one is None for one in inputs) else _ELEMENTWISE[op.type](op, *inputs)


def _drawing(tensor: tf.Tensor, shape: tuple[int, ...]) -> list[tf.Operation] | None:
    """Return the operations that draw a tensor's numbers, or None if it is made in another way."""
    op = tensor.op
    if tuple(tensor.shape.as_list()) not in ((), shape):
        return None
    if (op.type, tensor.dtype) == ("StatelessTruncatedNormalV2", tf.float64):
        return None  # laid out otherwise
    if op.type in _STEPS:
        return [op]
    if op.type == "Const" or (op.type == "Fill" and tf.get_static_value(op.inputs[1]) is not None):
        return []
    inner = [_drawing(one, shape) for one in op.inputs] if op.type in _ELEMENTWISE else [None]
    return None if None in inner else [drawn for one in inner for drawn in one or ()]


class InitialParts:
    """Maker of the parts of the first process's initial values that this process's replicas have."""

    def __init__(
        self,
        everybody: TracedCollective,
        waiting: Callable[[str], AbstractContextManager[None]],
        agree: Callable[[str, Sequence[int], tf.DType], None] | None = None,
    ) -> None:
        self._everybody, self._waiting, self._agree = everybody, waiting, agree

    def __call__(self, value: Any, initializer: Any, dtype: tf.DType, shardings: Sequence[Layout]) -> list[tf.Tensor]:
        # else those of all replicas would be on the device of the first
        with contextlib.nullcontext() if len(shardings) == 1 else tf.device("/device:CPU:0"):
            return self._made(value, initializer, dtype, shardings)

    def _made(self, value: Any, initializer: Any, dtype: tf.DType, shardings: Sequence[Layout]) -> list[tf.Tensor]:
        sharding = shardings[0]
        if self._agree is not None:
            self._agree(sharding.path, sharding.shape, dtype)
        known = self._alike(initializer, sharding.path)
        is_large = math.prod(sharding.shape) > _SMALL
        found = numbers_of(known, sharding.shape, dtype.name) if known is not None and is_large else None
        if found is not None:
            return [one.drawn(found.stretch) for one in shardings]
        size = math.prod(sharding.shape) * dtype.size
        if size > _LARGE_BYTES:
            _log.warning(
                "The weight %s of %.1f GB lies in parts, and its first value is made whole on each process and then "
                "cut: tfdist does not see how to make parts of what %s makes. Keras' initializers that draw each "
                "element by itself (uniform, normal, glorot, he, ...) or fill with a constant need no more "
                "than a part.",
                sharding.path,
                size / 1e9,
                "an array" if initializer is None else type(initializer).__name__,
            )
        if known is not None:
            whole = tf.convert_to_tensor(known(sharding.shape, dtype=dtype.name))
        else:
            whole = tf.convert_to_tensor(value() if callable(value) else value, dtype)
            whole = self._from_first(whole, f"the initial value of {sharding.path}")
        return [one.cut(whole) for one in shardings]

    def _alike(self, initializer: Any, path: str) -> Any:
        """Return an initializer with the first process's values on all processes, or None if it is unknown.

        Keras' initializers depend on their seed alone. Without one, Keras draws one that the configuration does not
        have.
        """
        if not keras_variables.is_own_initializer(initializer):
            return None
        config = initializer.get_config()
        if "seed" not in config:
            return initializer
        seed = getattr(initializer, "seed", None)
        if not isinstance(seed, int):
            return None
        first = int(self._from_first(tf.constant([seed], tf.int64), f"the seed of {path}")[0])
        return initializer if first == seed else type(initializer).from_config({**config, "seed": first})

    def _from_first(self, tensor: tf.Tensor, what: str) -> tf.Tensor:
        with self._waiting(what):
            return self._everybody.broadcast(tensor, what)
