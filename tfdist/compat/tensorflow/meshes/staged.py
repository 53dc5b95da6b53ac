"""Variables of a pipeline, which take memory only on the processes whose stage uses them.

The stage of a weight is known once the model is complete. Until then a variable has only a shape. If its value is
needed before, such as to load a file, every process makes the whole variable.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable
from typing import Any, Protocol, Self

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
        """Whether the stages of the weight are known."""

    @property
    def is_held(self) -> bool:
        """Whether this process has the weight."""

    @property
    def device(self) -> str | None:
        """The device of the weight; None: the device of the replica."""

    @property
    def of_slots(self) -> "Staged":
        """The layout of the optimizer's slots of the weight."""

    @property
    def within(self) -> Layout | None:
        """The layout of this process's part within its stage; None: Keras sees only this process's part."""

    @property
    def is_kept(self) -> bool:
        """Whether this process keeps the whole weight that it had before the stages of the weight were known."""

    def kept(self, part: tf.Tensor) -> tf.Tensor:
        """Return the part that this process keeps once the stages of the weight are known."""


class _OnDevice:
    """A stand-in for `colocate_with`, from which TensorFlow reads the device for a new variable."""

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
        #: The variable before this process released the parts of other stages; an optimizer may still refer to it.
        self.former: Any = None
        self._kwargs = {name: kwargs.get(name) for name in ("name", "trainable", "synchronization", "aggregation")}
        self._dtype = dtype
        self.shardings = (sharding,)
        self._distribute_strategy = strategy

    @property
    def sharding(self) -> Any:
        """The layout, which knows the processes that have the variable."""
        return self.shardings[0]

    @property
    def shard(self) -> Any:
        """This process's variable, which may have no elements, or the stand-in for the variable of the stage."""
        if self._made is None:
            with tf.init_scope():
                self._made = self._in_stage(self._make())
            self._is_settled = self.sharding.is_settled
        return self._made

    def _in_stage(self, made: Any) -> Any:
        """Return the stand-in for the stage's variable, given this process's variable."""
        within = self.sharding.within
        return made if within is None else ShardedVariable(made, [within], self._distribute_strategy)

    def _changed(self, how: str, value: Any) -> Self:
        if not isinstance(self.shard, ShardedVariable):
            return super()._changed(how, value)
        getattr(self.shard, how)(value)  # the inner variable cuts the value
        return self

    def read_value(self) -> tf.Tensor:
        """Return the whole; every stage must call this. Return zeros if Keras only infers shapes."""
        if keras_variables.infers_shapes() and not tf.executing_eagerly():
            return tf.zeros(self.sharding.shape, self._dtype)
        return super().read_value()

    def settle(self) -> None:
        """Keep this process's part of the weight, and release the rest, once the stage is known."""
        if self._made is not None and not self._is_settled and not self.sharding.is_kept:
            # other processes do not call this now, so no value may be exchanged
            with tf.init_scope():
                kept = self.sharding.kept(innermost(self._made).read_value())
                self.former = self._made
                self._made = self._in_stage(self._make(initial_value=_Part(lambda: [kept], 0, {})))
        assert self.shard is not None
        self._is_settled = True

    @property
    def dtype(self) -> tf.DType:
        return self._dtype

    @property
    def name(self) -> str:
        return f"{self._kwargs['name']}:0"

    @property
    def trainable(self) -> bool:
        return self._kwargs["trainable"] is not False

    @property
    def synchronization(self) -> tf.VariableSynchronization:
        return self._kwargs["synchronization"] or tf.VariableSynchronization.AUTO

    @property
    def aggregation(self) -> tf.VariableAggregation:
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
        # variables in the order of their creation, which is the same in all processes
        self._variables: list[weakref.ref[StagedVariable]] = []
        super().__init__(container_strategy, **options)

    def settle(self) -> None:
        """Make the variables whose stages are known, in the order of their creation."""
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
        # made later, but by the name that it has on one device, from which optimizers tell what they do not decay
        names = tf.get_current_name_scope()
        kwargs["name"] = "/".join(filter(None, [names, kwargs.get("name") or "Variable"]))
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
        inside = tf.distribute.get_strategy() is strategy  # also true in a replica, which cannot enter a scope
        with contextlib.nullcontext() if inside else strategy.scope(), tf.name_scope(""):
            return super()._create_variable(next_creator, **kwargs)
