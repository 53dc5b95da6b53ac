"""A variable in parts on several parameter servers, for Keras layers and optimizers that are not aware of parts.

TensorFlow's `ShardedVariable` has no handle, so Keras can neither differentiate by it nor update it. Here the tape
treats reading the whole, or looking up rows, as a function of one handle. The optimizer updates one part after the
other, each with its slots.

Private names, read in TensorFlow 2.21.0 (`record`, `tape`) and Keras 3.15.1 (`Variable._value`; `compute_fans`, the
sizes by which Keras scales initial values).
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Any, Self

import tensorflow as tf
from keras import initializers
from keras.src.initializers.random_initializers import compute_fans
from tensorflow.python.eager import record, tape

from tfdist.compat.keras import keras_variables
from tfdist.compat.tensorflow.whole_variable import WholeVariable

# A table up to this size is made whole and then cut, so that it starts as on one device. A larger table is made in
# parts, each from a seed of its own, because no machine may be able to hold the whole.
WHOLE_BYTES = 256 << 20
# initializers whose values of a part are not a part of their values
_OF_WHOLE = (initializers.Orthogonal, initializers.Identity)


def create(
    next_creator: Any,
    kwargs: dict[str, Any],
    shape: tf.TensorShape,
    dtype: tf.DType,
    devices: Sequence[str],
    boundaries: Sequence[int],
    strategy: Any,
) -> "PartitionedVariable":
    """Return a variable whose rows ``boundaries[p]`` to ``boundaries[p + 1]`` lie on ``devices[p]``."""
    value, known = kwargs["initial_value"], keras_variables.being_made()
    parts = []
    whole = None
    is_large = shape.num_elements() * dtype.size > WHOLE_BYTES
    alone = is_large and known is not None and not isinstance(known[1], _OF_WHOLE)
    if not alone:
        with tf.device(devices[0]):
            whole = tf.convert_to_tensor(value() if callable(value) else value, dtype)
    for index, device in enumerate(devices):
        begin, end = boundaries[index], boundaries[index + 1]
        with tf.device(device):
            if whole is not None:
                initial: Any = whole[begin:end]
            else:
                part = [end - begin, *shape[1:]]
                initial = _initial_part(known[1], index, part, list(shape), dtype)  # type: ignore[index]
            parts.append(next_creator(**{**kwargs, "initial_value": initial, "shape": None}))
    return PartitionedVariable(parts, boundaries, strategy=strategy, trainable=bool(kwargs.get("trainable", True)))


def _initial_part(
    initializer: Any, index: int, part: Sequence[int], whole: Sequence[int], dtype: tf.DType
) -> tf.Tensor:
    """Return the initial values of one part; random values use a seed that is derived from the table's."""
    own = copy.copy(initializer)
    if isinstance(getattr(own, "seed", None), int):  # also where the user has given none
        own.seed = (own.seed + 0x9E3779B1 * index) % (1 << 31)
    if isinstance(own, initializers.VarianceScaling):
        own.scale *= _fan(own, part) / _fan(own, whole)
    return tf.convert_to_tensor(own(part, dtype=dtype.name))


def _fan(initializer: initializers.VarianceScaling, shape: Sequence[int]) -> float:
    """Return the number by which the variance of initial values of a shape is divided."""
    axes = {name: getattr(initializer, name, None) for name in ("input_axes", "output_axes")}
    inputs, outputs = compute_fans(shape, **{name: given for name, given in axes.items() if given is not None})
    return max(1.0, {"fan_in": inputs, "fan_out": outputs}.get(initializer.mode, (inputs + outputs) / 2))


class PartitionedVariable(WholeVariable):
    """One variable for Keras, and a `tf.Variable` for each part on the servers."""

    def __init__(
        self, parts: Sequence[tf.Variable], boundaries: Sequence[int], *, strategy: Any, trainable: bool
    ) -> None:
        self.parts = list(parts)
        self.boundaries = list(boundaries)
        self.trainable = trainable
        self._distribute_strategy = strategy
        self._keras_variables: list[Any] = []

    @property
    def devices(self) -> list[str]:
        return [part.device for part in self.parts]

    @property
    def device(self) -> str:
        """The device of the first part."""
        return str(self.parts[0].device)

    @property
    def handle(self) -> tf.Tensor:
        """The handle of the first part, by which tapes identify the variable."""
        return self.parts[0].handle

    @property
    def name(self) -> str:
        return str(self.parts[0].name)

    @property
    def dtype(self) -> tf.DType:
        return self.parts[0].dtype

    @property
    def shape(self) -> tf.TensorShape:
        return tf.TensorShape([self.boundaries[-1], *self.parts[0].shape[1:]])

    @property
    def _unique_id(self) -> str:
        return str(self.parts[0]._unique_id)

    @property
    def _shared_name(self) -> str:
        return str(self.parts[0]._shared_name)

    @property
    def synchronization(self) -> tf.VariableSynchronization:
        return self.parts[0].synchronization

    @property
    def aggregation(self) -> tf.VariableAggregation:
        return self.parts[0].aggregation

    def read_value(self) -> tf.Tensor:
        tape.variable_accessed(self)
        with record.stop_recording():
            whole = tf.concat([part.read_value() for part in self.parts], axis=0)
        record.record_operation("ReadPartitioned", [whole], [self.handle], lambda gradient: [gradient])
        return whole

    def _changed(self, how: str, value: Any) -> Self:
        value = tf.convert_to_tensor(value, self.dtype)
        for index, part in enumerate(self.parts):
            with tf.device(part.device):
                getattr(part, how)(value[self.boundaries[index] : self.boundaries[index + 1]])
        return self

    def bind(self, variables: Sequence[Any]) -> None:
        """Register the Keras variables that an optimizer updates together: this one and its slots."""
        known = {id(variable): variable for variable in [*self._keras_variables, *variables]}
        others = (variable for variable in known.values() if keras_variables.value_of(variable) is not self)
        self._keras_variables = list(others)

    def focused(self) -> Iterator[tuple[int, tf.Variable]]:
        """Yield each part; meanwhile the bound Keras variables have the values of that part alone."""
        held = [(variable, variable._value) for variable in self._keras_variables]
        try:
            for index, part in enumerate(self.parts):
                for variable, value in held:
                    variable._value = value.parts[index]
                yield index, part
        finally:
            for variable, value in held:
                variable._value = value

    def sparse_read(self, indices: tf.Tensor, name: str | None = None) -> tf.Tensor:
        """Return rows, each from the part that has it; ``indices`` is an int tensor of shape (n,)."""
        del name
        which = tf.searchsorted(tf.constant(self.boundaries[1:-1], indices.dtype), indices, side="right")
        count = len(self.parts)
        positions = tf.dynamic_partition(tf.range(tf.size(indices)), which, count)
        rows = tf.dynamic_partition(indices, which, count)
        read = []
        for index, part in enumerate(self.parts):
            with tf.device(part.device):
                read.append(part.sparse_read(rows[index] - tf.cast(self.boundaries[index], indices.dtype)))
        merged = tf.dynamic_stitch(positions, read)
        merged.set_shape([None, *self.shape[1:]])
        return merged


class PartitionedGradient:
    """A gradient in the parts of its variable, each on the part's server; optimizers may only scale it and apply it."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = list(parts)
        self.dtype = self.parts[0].dtype

    def __mul__(self, factor: tf.Tensor) -> "PartitionedGradient":
        return PartitionedGradient([part * factor for part in self.parts])


def rows_for(variable: PartitionedVariable, index: int, value: Any) -> Any:
    """Return a part's rows of a value for the whole variable; return any other value unchanged."""
    begin, end = variable.boundaries[index], variable.boundaries[index + 1]
    if isinstance(value, tf.IndexedSlices):
        mine = tf.where((value.indices >= begin) & (value.indices < end))[:, 0]
        rows = tf.gather(value.values, mine)
        indices = tf.gather(value.indices, mine) - tf.cast(begin, value.indices.dtype)
        shape = tf.stack([end - begin, *[int(dim) for dim in variable.shape[1:]]])
        return tf.IndexedSlices(rows, indices, shape)
    if isinstance(value, (PartitionedVariable, PartitionedGradient)):
        return value.parts[index]
    shape = getattr(value, "shape", None)
    if shape is not None and tf.TensorShape(shape).rank and tf.TensorShape(shape) == variable.shape:
        return tf.convert_to_tensor(value)[begin:end]
    return value


def lookup(variable: Any, ids: tf.Tensor) -> tf.Tensor:
    """Return rows of a variable on parameter servers. Each distinct row travels once; the gradient has a row per id."""
    flat = tf.reshape(ids, [-1])
    tape.variable_accessed(variable)
    with record.stop_recording():
        unique, inverse = tf.unique(flat)
        rows = variable.sparse_read(unique)
        found = tf.reshape(tf.gather(rows, inverse), tf.concat([tf.shape(ids), tf.shape(rows)[1:]], axis=0))
        found.set_shape(ids.shape.concatenate(variable.shape[1:]))

    def backward(gradient: tf.Tensor) -> list[tf.IndexedSlices]:
        values = tf.reshape(gradient, tf.concat([[-1], tf.shape(rows)[1:]], axis=0))
        return [tf.IndexedSlices(values, flat, tf.constant(variable.shape.as_list(), tf.int32))]

    record.record_operation("LookupOnServers", [found], [variable.handle], backward)
    return found
