"""Variables of a pipeline: whole on the processes whose stage uses them, without memory elsewhere.

A weight's stage is known once the model is. Until then a variable has only a shape, or is whole everywhere once its
value is needed, as when a file is loaded into it.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf

from tfdist.compat.keras import keras_variables
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.compat.tensorflow.meshes.mesh_replicas import ModelParallelReplicas, _is_weight, _Part
from tfdist.compat.tensorflow.meshes.sharded_variable import Layout, ShardedVariable, innermost
from tfdist.compat.tensorflow.new_variables import shape_of_new_variable


class Staged(Layout, Protocol):
    """The layout of a weight of a pipeline."""

    @property
    def is_settled(self) -> bool:
        """Whether it is known which stages have the weight."""

    @property
    def is_held(self) -> bool:
        """Whether this process has the weight."""

    @property
    def device(self) -> str | None:
        """The device on which the weight lies; None: that of the replica."""

    @property
    def of_slots(self) -> "Staged":
        """The layout of the optimizer's slots of the weight."""

    @property
    def within(self) -> Layout | None:
        """The layout of this process's part within its stage's; None: Keras sees only what this process has."""

    @property
    def is_kept(self) -> bool:
        """Whether this process keeps all that it had before the stages of the weight were known."""

    def kept(self, part: tf.Tensor) -> tf.Tensor:
        """Return the part that this process keeps once the stages of the weight are known."""


class _OnDevice:
    """Stands for a variable beside which another one is made, of which TensorFlow asks its devices."""

    def __init__(self, device: str) -> None:
        self._devices = (device,)


class StagedVariable(ShardedVariable):
    """A `ShardedVariable` that is made when its stage is known, or when its value is read."""

    def __init__(
        self, make: Callable[..., Any], sharding: Staged, strategy: Any, kwargs: dict[str, Any], dtype: tf.DType
    ) -> None:
        self._make = make
        self._made: Any = None
        self._is_settled = False
        #: what this process had before it let go of it, by which an optimizer may know the variable
        self.former: Any = None
        self._kwargs = {name: kwargs.get(name) for name in ("name", "trainable", "synchronization", "aggregation")}
        self._dtype = dtype
        self.shardings = (sharding,)
        self._distribute_strategy = strategy

    @property
    def sharding(self) -> Any:
        """The layout that says which processes have the variable."""
        return self.shardings[0]

    @property
    def shard(self) -> Any:
        """This process's variable, or one without elements; or what stands for all that the stage has."""
        if self._made is None:
            with tf.init_scope():
                self._made = self._in_stage(self._make())
            self._is_settled = self.sharding.is_settled
        return self._made

    def _in_stage(self, made: Any) -> Any:
        """Return the stand-in for the stage's variable, given this process's variable."""
        within = self.sharding.within
        return made if within is None else ShardedVariable(made, [within], self._distribute_strategy)

    def _changed(self, how: str, value: Any) -> "ShardedVariable":
        if not isinstance(self.shard, ShardedVariable):
            return super()._changed(how, value)
        getattr(self.shard, how)(value)  # which cuts it
        return self

    def read_value(self) -> tf.Tensor:
        """Return the whole; every stage has to ask. Where shapes alone are inferred, zeros stand for it."""
        if keras_variables.infers_shapes() and not tf.executing_eagerly():
            return tf.zeros(self.sharding.shape, self._dtype)
        return super().read_value()

    def settle(self) -> None:
        """Keep what this process has of the weight, and let go of the rest; the stage is known now."""
        if self._made is not None and not self._is_settled and not self.sharding.is_kept:
            # no other process makes it now, so nothing may travel for it
            with tf.init_scope():
                kept = self.sharding.kept(innermost(self._made).read_value())
                self.former = self._made
                self._made = self._in_stage(self._make(initial_value=_Part(lambda: [kept], 0, {})))
        assert self.shard is not None
        self._is_settled = True

    @property
    def dtype(self) -> tf.DType:
        """The dtype."""
        return self._dtype

    @property
    def name(self) -> str:
        """The name that it was made with."""
        return f"{self._kwargs['name'] or 'Variable'}:0"

    @property
    def trainable(self) -> bool:
        """Whether tapes watch it."""
        return self._kwargs["trainable"] is not False

    @property
    def synchronization(self) -> tf.VariableSynchronization:
        """The same as of any variable."""
        return self._kwargs["synchronization"] or tf.VariableSynchronization.AUTO

    @property
    def aggregation(self) -> tf.VariableAggregation:
        """The same as of any variable."""
        return self._kwargs["aggregation"] or tf.VariableAggregation.NONE


class PipelineReplicas(ModelParallelReplicas):
    """`ModelParallelReplicas` whose weights belong to stages."""

    def __init__(
        self,
        container_strategy: Any,
        *,
        staged: Callable[..., Any],
        shards_slots_of: Callable[[Any], bool],
        **options: Any,
    ) -> None:
        self._staged = staged
        self._shards_slots_of = shards_slots_of
        # in the order in which they were made, which is the same on all processes
        self._variables: list[weakref.ref[StagedVariable]] = []
        super().__init__(container_strategy, **options)

    def settle(self) -> None:
        """Make the variables whose stages are known, in the order in which they were described."""
        found = [(reference, reference()) for reference in self._variables]
        self._variables = [reference for reference, one in found if one is not None and not one.sharding.is_settled]
        for _, one in found:
            if one is not None and one.sharding.is_settled:
                one.settle()

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        shape, dtype = shape_of_new_variable(kwargs["initial_value"], kwargs.get("shape"), kwargs.get("dtype"))
        reference, sharding = kwargs.get("colocate_with"), None
        if isinstance(reference, StagedVariable):
            sharding = reference.sharding if shape == reference.shape else None
            if sharding is not None and self._shards_slots_of(keras_optimizer.creating_variable()):
                sharding = sharding.of_slots
        elif shape is not None and shape.rank and _is_weight(kwargs):
            path = keras_variables.path_of_new_variable(kwargs.get("name") or "variable")
            sharding = self._staged(path, tuple(shape.as_list()), dtype)
        weights = self.services.weights
        if weights is None or sharding is None:
            if isinstance(reference, StagedVariable):
                kwargs["colocate_with"] = innermost(reference)
            return super()._create_variable(next_creator, **kwargs)
        known = keras_variables.being_made()
        parts = functools.partial(weights.initial, kwargs["initial_value"], known and known[1], dtype, [sharding])
        value = _Part(parts, 0, {})
        make = functools.partial(self._make, next_creator, {**kwargs, "initial_value": value, "shape": None}, sharding)
        made = StagedVariable(make, sharding, self._container_strategy(), kwargs, dtype)
        if sharding.is_settled:
            made.settle()
        else:
            self._variables.append(weakref.ref(made))
        return made

    def _make(self, next_creator: Any, kwargs: dict[str, Any], sharding: Staged, **others: Any) -> Any:
        kwargs = {**kwargs, **others}
        reference = kwargs.get("colocate_with")
        if sharding.device is not None:
            kwargs["colocate_with"] = _OnDevice(sharding.device)
        elif isinstance(reference, StagedVariable):
            kwargs["colocate_with"] = innermost(reference)
        strategy = self._container_strategy()
        inside = tf.distribute.get_strategy() is strategy  # also in a replica, which can enter no scope
        with contextlib.nullcontext() if inside else strategy.scope():
            return super()._create_variable(next_creator, **kwargs)
