"""A variable of which this process has a part, for Keras layers and optimizers that are not aware of parts.

Keras sees the shape of the whole: reading gathers the whole, and assigning keeps this process's part. Only in an update
(`local`) do Keras' variables, slots included, have the value and shape of the part. The parts of the replicas of one
process have the same shape.

Private names, read in Keras 3.15.1 (`keras/src/backend/common/variables.py`): `Variable._value`, `_shape`,
`_constraint`; in TensorFlow 2.21.0: `_unique_id`, `_shared_name`, `_get_on_device_or_primary`,
`_distribute_strategy`, `_serialize_to_tensors`, `_restore_from_tensors`.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, Self

import numpy as np
import tensorflow as tf

from tfdist.compat.keras import keras_variables
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compat.tensorflow.whole_variable import WholeVariable, let_operate


class Layout(Protocol):
    """The layout of a variable in parts; `tfdist.parallel.weight_layouts` has the implementations."""

    shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    bounds: tuple[tuple[int, int], ...]
    is_first: bool  # no member before this one has the same part
    layout: tuple[str | None, ...]
    path: str

    @property
    def elements(self) -> tuple[int, int] | None:
        """The range of the part's elements within the bounds; None: all elements."""

    @property
    def is_cut(self) -> bool:
        """Whether the members that hold the variable hold less than the whole."""

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes along which members have different parts."""

    def read(self, variable: Any) -> tf.Tensor:
        """Return the whole, given the variable with this process's part; tapes record that variable."""

    def gather(self, part: tf.Tensor) -> tf.Tensor:
        """Return the whole, given the part of each member."""

    def assembled(self, layouts: Sequence[Any], parts: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the whole, given the parts of all replicas of this process; called outside of replicas."""

    def cut(self, whole: Any) -> Any:
        """Return this process's part of a whole."""

    def drawn(self, stretch: Callable[[int, int], tf.Tensor]) -> tf.Tensor:
        """Return this process's part, given a function that makes any range of the flattened whole."""

    def total(self, tensors: Sequence[tf.Tensor], axes: Iterable[str] | None = None) -> list[tf.Tensor]:
        """Return the sums over members with different parts."""


class ShardedVariable(WholeVariable):
    """A whole variable for Keras, and a `tf.Variable` with this process's part for TensorFlow; gradients are cut."""

    def __init__(self, shard: Any, shardings: Sequence[Layout], strategy: Any) -> None:
        self.shard = shard
        self.shardings: Sequence[Layout] = tuple(shardings)
        self._distribute_strategy = strategy

    @property
    def sharding(self) -> Layout:
        """The layout of the current replica's part; outside of replicas, that of the first replica."""
        if len(self.shardings) == 1:
            return self.shardings[0]
        return self.shardings[tf_strategies.local_replica(self._distribute_strategy) or 0]

    @property
    def has_part(self) -> bool:
        """Whether there is one part to compute with; False outside of replicas if the process has several."""
        return len(self.shardings) == 1 or tf_strategies.local_replica(self._distribute_strategy) is not None

    @property
    def shape(self) -> tf.TensorShape:
        return tf.TensorShape(self.sharding.shape)

    @property
    def dtype(self) -> tf.DType:
        return self.shard.dtype

    @property
    def name(self) -> str:
        return str(self.shard.name)

    @property
    def device(self) -> str:
        return str(self.shard.device)

    @property
    def handle(self) -> tf.Tensor:
        """The handle of the part, by which tapes identify the variable."""
        return self.shard.handle

    @property
    def trainable(self) -> bool:
        return bool(self.shard.trainable)

    @property
    def synchronization(self) -> tf.VariableSynchronization:
        return self.shard.synchronization

    @property
    def aggregation(self) -> tf.VariableAggregation:
        return self.shard.aggregation

    @property
    def _unique_id(self) -> str:
        return str(self.shard._unique_id)

    @property
    def _shared_name(self) -> str:
        return str(self.shard._shared_name)

    def _get_on_device_or_primary(self) -> Any:
        return self.shard._get_on_device_or_primary()

    def _serialize_to_tensors(self) -> Any:
        raise NotImplementedError  # makes Keras read the whole

    def _restore_from_tensors(self, restored_tensors: Any) -> Any:
        raise NotImplementedError  # makes Keras assign the whole

    def read_value(self) -> tf.Tensor:
        """Return the whole; every member along the axes of the layout must call this."""
        if self.has_part:
            return self.sharding.read(self.shard)
        parts = [copy.read_value() for copy in tf_strategies.copies(self.shard)]
        return self.shardings[0].assembled(self.shardings, parts)

    def _changed(self, how: str, value: Any) -> Self:
        """Change this process's parts by their parts of a value for the whole, which is the same on every member."""
        # an array becomes a tensor only after it is cut, so that no device ever holds the whole
        whole = value if isinstance(value, np.ndarray) else tf.convert_to_tensor(value, self.dtype)
        parts = [self.shard] if self.has_part else tf_strategies.copies(self.shard)
        for part, sharding in zip(parts, [self.sharding] if self.has_part else self.shardings, strict=True):
            getattr(part, how)(tf.convert_to_tensor(sharding.cut(whole), self.dtype))
        return self


_COMPARING = {"__eq__", "__ne__"}  # identity
let_operate(ShardedVariable, tf.Tensor.OVERLOADABLE_OPERATORS - _COMPARING, lambda variable: variable.read_value())


def sharding_of(variable: Any) -> Any:
    """Return the layout of a Keras variable on the mesh; None if this process has the whole."""
    value = keras_variables.value_of(variable)
    return value.sharding if isinstance(value, ShardedVariable) else None


def own_sharding_of(variable: Any) -> Any:
    """Return the layout of the part with which the running replica computes, or None if there is no such part."""
    value = keras_variables.value_of(variable)
    return value.sharding if isinstance(value, ShardedVariable) and value.has_part else None


def shardings_of(variable: Any) -> Sequence[Any]:
    """Return the layout of a Keras variable on the mesh for each replica of this process; empty if it is whole."""
    value = keras_variables.value_of(variable)
    return value.shardings if isinstance(value, ShardedVariable) else ()


def innermost(value: Any) -> Any:
    """Return the TensorFlow variable within any number of `ShardedVariable` wrappers; return other values unchanged."""
    while isinstance(value, ShardedVariable):
        value = value.shard
    return value


def part_of(variable: Any) -> Any:
    """Return the TensorFlow variable that holds this process's part of a Keras variable."""
    return innermost(keras_variables.value_of(variable))


def rows_of_part(variable: Any, indices: tf.Tensor) -> tf.Tensor:
    """Return rows of the current replica's part, without a read of the whole part, which an update would copy."""
    value = keras_variables.value_of(variable)
    replica = 0 if len(value.shardings) == 1 else tf_strategies.local_replica(value._distribute_strategy)
    return tf.gather(tf_strategies.copies(innermost(value))[replica or 0], indices)


def parts_of(variable: Any) -> list[tuple[Any, Any]]:
    """Return the layout and the TensorFlow variable of each part of a Keras variable in this process."""
    return list(zip(shardings_of(variable), tf_strategies.copies(part_of(variable)), strict=True))


@contextlib.contextmanager
def local(variables: Iterable[Any], *, once: bool = False) -> Iterator[None]:
    """Give Keras variables in parts the value and shape of this process's part within the context."""
    unique = {id(variable): variable for variable in variables}
    held = [(one, one._value, one._shape, one._constraint) for one in unique.values() if sharding_of(one) is not None]
    try:
        for variable, value, _, constraint in held:
            variable._value = value.shard if once else innermost(value)
            variable._shape = tuple(value.shard.shape) if once else value.sharding.local_shape
            if constraint is not None:
                variable._constraint = functools.partial(_constrained, constraint, value.sharding)
        yield
    finally:
        for variable, value, shape, constraint in held:
            variable._value, variable._shape, variable._constraint = value, shape, constraint


def _constrained(constraint: Any, sharding: Layout, variable: Any) -> tf.Tensor:
    """Apply a constraint to the whole, and return this process's part of the result."""
    return sharding.cut(tf.convert_to_tensor(constraint(sharding.gather(tf.convert_to_tensor(variable)))))
