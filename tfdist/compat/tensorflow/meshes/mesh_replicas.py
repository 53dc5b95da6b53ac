"""Strategies whose processes hold parts of weights, over a mesh or in sharded data parallelism.

Private names, read in TensorFlow 2.21.0: those of `ring_extended.py`, here with the collective along the axis of the
examples; `_validate_colocate_with_variable`, by which TensorFlow checks the class of the weight beside which it makes a
slot.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras import keras_variables
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.compat.tensorflow.meshes.graph_rewrites import Late
from tfdist.compat.tensorflow.meshes.sharded_variable import ShardedVariable, innermost
from tfdist.compat.tensorflow.mirrored_extended import MultiWorkerReplicas, ReduceInReplicas, one_of_each
from tfdist.compat.tensorflow.new_variables import shape_of_new_variable
from tfdist.compat.tensorflow.ring_extended import RingReplicas
from tfdist.compat.tensorflow.steps.replica_services import HasServices
from tfdist.errors import UnsupportedError


class HoldsParts(HasServices):
    """A mix-in that lets this process hold parts of weights, while Keras sees the whole weights; see `WeightParts`."""

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        create = super()._create_variable  # type: ignore[misc]
        shape, dtype = shape_of_new_variable(kwargs["initial_value"], kwargs.get("shape"), kwargs.get("dtype"))
        reference, shardings, weights = kwargs.get("colocate_with"), None, self.services.weights
        if isinstance(reference, ShardedVariable):
            kwargs["colocate_with"] = reference.shard
            shardings = reference.shardings if shape == reference.shape else None
        elif weights is not None and shape is not None and _is_weight(kwargs):
            path = keras_variables.path_of_new_variable(kwargs.get("name") or "variable")
            shardings = weights.shardings_of(path, tuple(shape.as_list()), dtype, kwargs.get("trainable") is not False)
        if weights is None or shardings is None:
            return create(next_creator, **kwargs)
        known = keras_variables.being_made()
        make = functools.partial(weights.initial, kwargs["initial_value"], known and known[1], dtype, shardings)
        shard = create(next_creator, **{**kwargs, "initial_value": _Part(make, 0, {}), "shape": None})
        return ShardedVariable(shard, shardings, self._container_strategy())  # type: ignore[attr-defined]

    def _validate_colocate_with_variable(self, colocate_with_variable: Any) -> None:
        if not isinstance(colocate_with_variable, ShardedVariable):
            super()._validate_colocate_with_variable(colocate_with_variable)  # type: ignore[misc]

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        # Keras also updates weights outside of an optimizer's `apply`, such as to swap a weight with its moving
        # average. Such updates apply to the parts.
        own, others, named = tf.nest.map_structure(innermost, (var, args, kwargs), expand_composites=False)
        return super()._update(own, fn, others, named, group)  # type: ignore[misc]

    def _get_variable_creator_initial_value(
        self, replica_id: int, device: Any, primary_var: Any, **kwargs: Any
    ) -> Callable[[], tf.Tensor]:
        if isinstance(kwargs["initial_value"], _Part):
            return kwargs["initial_value"].of(replica_id)  # no other replica has this part
        made: Callable[[], tf.Tensor] = super()._get_variable_creator_initial_value(  # type: ignore[misc]
            replica_id, device, primary_var, **kwargs
        )
        return made


class FullyShardedReplicas(HoldsParts, MultiWorkerReplicas):
    """`MultiWorkerReplicas` with one replica in each process, which has a part of every weight."""

    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        weights = self.services.weights
        with contextlib.nullcontext() if weights is None or tf.executing_eagerly() else weights.gathers.step():
            return super()._call_for_each_replica(fn, args, kwargs)


class Place(int):
    """The index of a replica's part of the examples, with the number of the replica in its process as `replica`."""

    replica: int

    @classmethod
    def of(cls, examples: int, replica: int) -> "Place":
        made = cls(examples)
        made.replica = replica
        return made


class ModelParallelReplicas(HoldsParts, RingReplicas):
    """`RingReplicas` along the axis of the examples. Members that differ only along other axes count as one replica."""

    def __init__(self, container_strategy: Any, *, examples: Sequence[int], late: Late, **options: Any) -> None:
        self._examples = list(examples)
        self._late = late
        super().__init__(container_strategy, **options)

    @property
    def _num_replicas_in_sync(self) -> int:
        return int(self.services.traced[0].size)

    def _get_replica_id_in_sync_group(self, replica_id: Any) -> Any:
        return Place.of(self._examples[replica_id], replica_id)

    def _get_local_replica_id(self, replica_id_in_sync_group: Any) -> Any:
        return replica_id_in_sync_group.replica

    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        if tf.executing_eagerly():
            return super()._replica_ctx_all_reduce(reduce_op, value, options)
        return self.reduced_between(reduce_op, value, options)

    # each replica has its own end of the axis of the examples, so none exchanges for the others of its process
    all_gather_in_replica = ReduceInReplicas.all_gather_in_replica
    sum_in_replica = ReduceInReplicas.sum_in_replica
    all_to_all_in_replica = ReduceInReplicas.all_to_all_in_replica

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        if len(one_of_each(self)) < len(self._devices):
            raise UnsupportedError(
                "TensorFlow would give the devices of this process that have the same rows of a batch different ones. "
                "Call model.fit, or give strategy.run tensors in a loop of your own; or start a process at each place "
                "of the mesh.",
                name="experimental_distribute_dataset",
            )
        return super()._experimental_distribute_dataset(dataset, options)

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
        if replica_id == 0 and not isinstance(value, _Part) and keras_optimizer.creating_variable():
            # constants or arguments, equal on all processes
            return lambda: tf.convert_to_tensor(value() if callable(value) else value, kwargs.get("dtype"))
        return super()._get_variable_creator_initial_value(replica_id, device, primary_var, **kwargs)


def _is_weight(kwargs: dict[str, Any]) -> bool:
    """Return whether a variable belongs to no metric, no optimizer and no seed generator."""
    return kwargs.get("synchronization") != tf.VariableSynchronization.ON_READ and not isinstance(
        keras_variables.creator(), (keras.Optimizer, keras.Metric, keras.random.SeedGenerator)
    )


class _Part:
    """A replica's part of an initial value. The first use makes the parts of all replicas of the process."""

    def __init__(self, make: Callable[[], Sequence[tf.Tensor]], replica: int, made: dict[int, tf.Tensor]) -> None:
        self._make = make
        self._replica = replica
        self._made = made

    def of(self, replica: int) -> "_Part":
        """Return another replica's part of the same value."""
        return _Part(self._make, replica, self._made)

    def __call__(self) -> tf.Tensor:
        if self._replica not in self._made:
            self._made.update(enumerate(self._make()))
        return self._made.pop(self._replica)
