"""How the weights of a pipeline lie: whole where a stage computes with them, nowhere else; slots may be in parts."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import tensorflow as tf

from tfdist.collectives.traced import TracedCollective
from tfdist.errors import UnsupportedError
from tfdist.parallel.axes import Axes
from tfdist.training.sharding.parts import Stretch


class StageSharding:
    """Which stages have a weight; see `compat.tensorflow.meshes.sharded.Sharding`, of which this is one.

    Args:
        axes: of the mesh.
        along: carries tensors between the stages.
        is_first_replica: whether this process is the first among those of its stage.
        shape: of the weight.
        path: of the weight, for messages.
        replicas: carries tensors between the processes of this stage, where slots are sharded over them; else None.
    """

    def __init__(
        self,
        axes: Axes,
        along: TracedCollective,
        *,
        is_first_replica: bool,
        shape: Sequence[int],
        path: str,
        replicas: TracedCollective | None = None,
    ) -> None:
        self.mesh_axes = axes
        self.shape = tuple(int(size) for size in shape)
        self.path = path
        #: what collectives call it, which must be the same on all processes
        self.label = path
        #: the stages that have it, in rising order; None until the model is cut
        self.holders: tuple[int, ...] | None = None
        #: of this process, where it lies; None: where all that the process has lies
        self.device: str | None = None
        self._along = along
        self._is_first_replica = is_first_replica
        self._replicas = replicas

    @cached_property
    def of_slots(self) -> "StageSharding | SlotSharding":
        """How what an optimizer keeps of it lies."""
        return self if self._replicas is None else SlotSharding(self, self._replicas)

    @property
    def is_settled(self) -> bool:
        """Whether it is known which stages have it."""
        return self.holders is not None

    @property
    def is_held(self) -> bool:
        """Whether this process has it; all have until that is known."""
        return self.holders is None or self._along.rank in self.holders

    @property
    def counts(self) -> bool:
        """Whether it counts here in what is added up over stages, where several have it."""
        return self.holders is None or self._along.rank == self.holders[0]

    @property
    def is_first(self) -> bool:
        """Whether no process before this one has it."""
        return self.is_held and self.counts and self._is_first_replica

    @property
    def axes(self) -> tuple[str, ...]:
        """The axis along which processes have different weights."""
        return (PIPELINE,)

    @property
    def layout(self) -> tuple[str | None, ...]:
        """Whole, on some stages."""
        return (None,) * len(self.shape)

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of what this process has."""
        return self.shape if self.is_held else (0,)

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """Of what this process has, in the whole."""
        return tuple((0, size) for size in self.local_shape)

    def read(self, variable: Any) -> tf.Tensor:
        """Return the weight; every stage has to ask."""
        if self.holders is None:
            return variable.read_value()
        return self.whole(variable.read_value())

    def whole(self, part: tf.Tensor) -> tf.Tensor:
        """Return the weight, which the first stage that has it tells the others."""
        if self.holders is None or len(self.holders) == self._along.size:
            return part

        @tf.custom_gradient
        def told(part: tf.Tensor) -> Any:
            value = part if self.is_held else tf.zeros(self.shape, part.dtype)
            return self._told(value), self._refuse

        return told(part)

    def assembled(self, shardings: Sequence[Any], parts: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the weight of which this process has one part."""
        (part,) = parts
        return self.whole(part)

    def cut(self, whole: Any) -> Any:
        """Return what this process has of a tensor or an array of the weight's shape."""
        if self.is_held:
            return whole
        return whole.reshape(-1)[:0] if hasattr(whole, "reshape") else tf.reshape(whole, [-1])[:0]

    def drawn(self, stretch: Callable[[int, int], tf.Tensor]) -> tf.Tensor:
        """Return what this process has of numbers of which any stretch can be made."""
        numbers = stretch(0, math.prod(self.shape) if self.is_held else 1)
        return tf.reshape(numbers if self.is_held else numbers[:0], self.local_shape)

    def total(self, tensors: Sequence[tf.Tensor], axes: Iterable[str] | None = None) -> list[tf.Tensor]:
        """Return the sums over stages."""
        return self.mesh_axes.all_reduce(tensors, self.axes if axes is None else axes, "stages")

    def _told(self, value: tf.Tensor) -> tf.Tensor:
        assert self.holders is not None
        return self.mesh_axes.broadcast(value, PIPELINE, self.holders[0], self.label)

    def _refuse(self, gradient: tf.Tensor) -> tf.Tensor:
        del gradient
        raise UnsupportedError(
            f"a gradient is taken through the weight {self.path!r} outside of fit, and it lies on a stage of a "
            "pipeline. Train by model.fit, evaluate and predict."
        )


class SlotSharding:
    """A slot of which each replica of a stage has a stretch, see `training.sharding.parts`.

    What a weight is updated with lies so, too. Until it is known which stages have the weight, a slot is whole.

    Args:
        weight: how the weight lies.
        replicas: carries tensors between the processes of this stage.
    """

    layout = ("elements",)
    #: all that the process has lies there
    device = None

    def __init__(self, weight: StageSharding, replicas: TracedCollective) -> None:
        self.shape = weight.shape
        self.mesh_axes = weight.mesh_axes
        #: of a process that has the weight
        self.stretch = Stretch(weight.shape, replicas.rank, replicas.size)
        self._weight = weight
        self._replicas = replicas

    @property
    def path(self) -> str:
        """Of the weight."""
        return self._weight.path

    @property
    def is_settled(self) -> bool:
        """Whether it is known which stages have it."""
        return self._weight.is_settled

    @property
    def is_held(self) -> bool:
        """Whether this process has some of it."""
        return self._weight.is_held

    @property
    def counts(self) -> bool:
        """Whether it counts here in what is added up over stages, where several have it."""
        return self._weight.counts

    @property
    def is_first(self) -> bool:
        """Whether no process before this one has the same elements."""
        return self.is_held and self.counts

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes along which processes have different elements."""
        return (DATA, PIPELINE)

    @property
    def of_slots(self) -> "SlotSharding":
        """How what an optimizer keeps of it lies."""
        return self

    @property
    def local_shape(self) -> tuple[int, ...]:
        """The shape of what this process has."""
        if not self.is_settled:
            return self.shape
        return self.stretch.shape if self.is_held else (0,)

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """Of what this process has, in the flattened whole."""
        return (self.stretch.bounds if self.is_held else (0, 0),)

    def read(self, variable: Any) -> tf.Tensor:
        """Return the whole; every process has to ask."""
        return self.whole(variable.read_value())

    def whole(self, part: tf.Tensor) -> tf.Tensor:
        """Return the whole: replicas of a stage put it together, and the first stage that has it tells the others."""
        if not self.is_settled:
            return part
        if self.is_held:
            part = self.stretch.joined(
                tf.reshape(
                    self._gathered(self.stretch.padded(part), f"the gathering of slots of {self._weight.label}"),
                    [self._replicas.size, self.stretch.width],
                )
            )
        return self._weight.whole(part)

    def assembled(self, shardings: Sequence[Any], parts: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the whole of which this process has one part."""
        (part,) = parts
        return self.whole(part)

    def cut(self, whole: Any) -> Any:
        """Return what this process has of a tensor or an array of the whole's shape."""
        if not self.is_settled:
            return whole
        begin, end = self.bounds[0]
        return (whole.reshape(-1) if hasattr(whole, "reshape") else tf.reshape(whole, [-1]))[begin:end]

    def drawn(self, stretch: Callable[[int, int], tf.Tensor]) -> tf.Tensor:
        """Return what this process has of numbers of which any stretch can be made."""
        if not self.is_settled:
            return tf.reshape(stretch(0, math.prod(self.shape)), self.shape)
        begin, end = self.bounds[0]
        return stretch(begin, end) if begin < end else stretch(0, 1)[:0]

    def total(self, tensors: Sequence[tf.Tensor], axes: Iterable[str] | None = None) -> list[tf.Tensor]:
        """Return the sums over the replicas of a stage, and over stages."""
        return self.mesh_axes.all_reduce(tensors, self.axes if axes is None else axes, "parts")

    def _gathered(self, row: tf.Tensor, what: str) -> tf.Tensor:
        return self.mesh_axes.all_gather(row, DATA, 0, what)


#: the axis of a mesh along which replicas of a stage lie
DATA = "data"
#: the axis of a mesh along which stages lie
PIPELINE = "pipeline"
