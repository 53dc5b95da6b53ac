"""Strategies of which a process holds parts of weights: over a mesh, and of sharded data parallelism.

Private names, read in TensorFlow 2.21.0: those of `ring.py`, whose strategy that over a mesh is, with the collective of
the axis of the examples in the place of that of all processes; `_validate_colocate_with_variable` (a slot is made where
its weight is, and TensorFlow knows a weight by its class).
"""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.trackable import base

from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.compat.keras import variables as keras_variables
from tfdist.compat.tensorflow.meshes.gathering import Gathers
from tfdist.compat.tensorflow.meshes.late import Late
from tfdist.compat.tensorflow.meshes.sharded import ShardedVariable, Sharding
from tfdist.compat.tensorflow.partitioned import shape_of_new_variable
from tfdist.compat.tensorflow.ring import RingReplicas
from tfdist.compat.tensorflow.strategies import MultiWorkerReplicas


class HoldsParts:
    """Lets this process have parts of weights, of which Keras sees the wholes.

    Attributes:
        sharding_of: returns how a new weight lies, given path, shape, dtype and whether it is trainable; None: whole.
        part_of_initial: returns this process's part of the first process's initial value, given a callable that returns
            a whole one, the initializer of Keras' behind it or None, the dtype and the sharding.
    """

    sharding_of: Callable[[str, tuple[int, ...], tf.DType, bool], Sharding | None] = staticmethod(lambda *_: None)
    part_of_initial: Callable[..., tf.Tensor]

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        create = super()._create_variable  # type: ignore[misc]
        shape, dtype = shape_of_new_variable(kwargs["initial_value"], kwargs.get("shape"), kwargs.get("dtype"))
        reference, sharding = kwargs.get("colocate_with"), None
        if isinstance(reference, ShardedVariable):
            kwargs["colocate_with"] = reference.shard
            sharding = reference.sharding if shape == reference.shape else None
        elif shape is not None and _is_weight(kwargs):
            path = keras_variables.path_of_new_variable(kwargs.get("name") or "variable")
            sharding = self.sharding_of(path, tuple(shape.as_list()), dtype, kwargs.get("trainable") is not False)
        if sharding is None:
            return create(next_creator, **kwargs)
        known = keras_variables.being_made()
        made = _Part(self.part_of_initial, kwargs["initial_value"], known and known[1], dtype, sharding)
        shard = create(next_creator, **{**kwargs, "initial_value": made, "shape": None})
        return ShardedVariable(shard, sharding, self._container_strategy())  # type: ignore[attr-defined]

    def _validate_colocate_with_variable(self, colocate_with_variable: Any) -> None:
        if not isinstance(colocate_with_variable, ShardedVariable):
            super()._validate_colocate_with_variable(colocate_with_variable)  # type: ignore[misc]

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        # What Keras does to a weight outside of an optimizer's `apply`, such as to swap it with
        # its moving average, is done to its parts.
        own, others, named = tf.nest.map_structure(_part_of, (var, args, kwargs), expand_composites=False)
        return super()._update(own, fn, others, named, group)  # type: ignore[misc]

    def _get_variable_creator_initial_value(
        self, replica_id: int, device: Any, primary_var: Any, **kwargs: Any
    ) -> Callable[[], tf.Tensor]:
        if isinstance(kwargs["initial_value"], _Part):
            return kwargs["initial_value"]
        made: Callable[[], tf.Tensor] = super()._get_variable_creator_initial_value(  # type: ignore[misc]
            replica_id, device, primary_var, **kwargs
        )
        return made


class FullyShardedReplicas(HoldsParts, MultiWorkerReplicas):
    """`MultiWorkerReplicas` of one replica in each process, which has a part of every weight.

    Attributes:
        gathers: what a step gathers, see `gathering.Gathers`; None until there are collectives.
    """

    gathers: Gathers | None = None

    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        is_traced = self.gathers is not None and not tf.executing_eagerly()
        with self.gathers.step() if is_traced else contextlib.nullcontext():  # type: ignore[union-attr]
            return super()._call_for_each_replica(fn, args, kwargs)


class ModelParallelReplicas(HoldsParts, RingReplicas):
    """`RingReplicas` along the axis of the examples; processes that differ along the others are one replica.

    Args:
        container_strategy: the strategy.
        everybody: a `tfdist.collectives.traced.TracedCollective` of all processes, whose first has the initial values.
        late: what a step makes late.
        sharding_of: see `HoldsParts`.
        part_of_initial: see `HoldsParts`.
        options: of `RingReplicas`.
    """

    def __init__(
        self,
        container_strategy: Any,
        *,
        everybody: Any,
        late: Late,
        sharding_of: Callable[[str, tuple[int, ...], tf.DType, bool], Sharding | None],
        part_of_initial: Callable[..., tf.Tensor],
        **options: Any,
    ) -> None:
        self._everybody = everybody
        self._late = late
        self.sharding_of = sharding_of
        self.part_of_initial = part_of_initial
        super().__init__(container_strategy, **options)

    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        if tf.executing_eagerly():
            return super()._call_for_each_replica(fn, args, kwargs)
        with self._late.step() as returned:
            results = super()._call_for_each_replica(fn, args, kwargs)
            returned.append(results)
        return results

    def _get_variable_creator_initial_value(
        self, replica_id: int, device: str, primary_var: Any, **kwargs: Any
    ) -> Callable[[], tf.Tensor]:
        value = kwargs["initial_value"]
        if isinstance(value, _Part):
            return value  # of this process alone
        if keras_optimizer.creating_variable():  # constants, and what the user gave: alike everywhere
            return lambda: tf.convert_to_tensor(value() if callable(value) else value, kwargs.get("dtype"))
        path = keras_variables.path_of_new_variable(kwargs.get("name") or "a variable")

        def initial_value() -> tf.Tensor:
            whole = value() if callable(value) else value
            if isinstance(whole, base.CheckpointInitialValue):
                whole = whole.wrapped_value
            whole = tf.convert_to_tensor(whole, dtype=kwargs.get("dtype"))
            what = f"the initial value of {path} {whole.dtype.name} {whole.shape}"
            with tf.device(device), self._waiting(what):
                return self._everybody.broadcast(whole, what)

        return initial_value


def _part_of(value: Any) -> Any:
    return value.shard if isinstance(value, ShardedVariable) else value


def _is_weight(kwargs: dict[str, Any]) -> bool:
    """Return whether a variable is neither of a metric nor of an optimizer nor the state of random numbers."""
    return kwargs.get("synchronization") != tf.VariableSynchronization.ON_READ and not isinstance(
        keras_variables.creator(), (keras.Optimizer, keras.Metric, keras.random.SeedGenerator)
    )


class _Part:
    """The part of an initial value, when it is asked for."""

    def __init__(self, part_of: Callable[..., tf.Tensor], *arguments: Any) -> None:
        self._part_of = part_of
        self._arguments = arguments

    def __call__(self) -> tf.Tensor:
        return self._part_of(*self._arguments)
