"""Placement of a pipeline's weights: whole on the stages that compute with them; slots may be cut."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import tensorflow as tf

from tfdist.collectives.traced import TracedCollective
from tfdist.errors import UnsupportedError
from tfdist.gradients.sharding.variable_parts import Stretch
from tfdist.parallel.mesh_axes import Axes
from tfdist.parallel.weight_layouts import MeshLayout, PartLayout, flat_range

#: the axes of a mesh along which processes have parts of a stage's weights, replicas of a stage, and stages
MODEL = "model"
DATA = "data"
PIPELINE = "pipeline"


class StageLayout(PartLayout):
    """The layout of a weight on the stages that have it, a `compat.tensorflow.meshes.sharded_variable.Layout`."""

    def __init__(
        self,
        axes: Axes,
        along: TracedCollective,
        *,
        is_first_replica: bool,
        shape: Sequence[int],
        path: str,
        replicas: TracedCollective | None = None,
        within: MeshLayout | None = None,
    ) -> None:
        super().__init__(shape, path)
        self.mesh_axes = axes
        #: the stages that have it, in rising order; None until the model is cut
        self.holders: tuple[int, ...] | None = None
        #: the device on which this process has it; None: the one on which the process has everything
        self.device: str | None = None
        self._along, self._is_first_replica = along, is_first_replica
        self._replicas, self._within = replicas, within
        place = axes.mesh.coordinates(axes.rank)
        self._is_first_of_copies = within is not None or place.get(MODEL, 0) == 0

    @property
    def within(self) -> MeshLayout | None:
        """The layout of this process's part within its stage's part; None: the process has all of it."""
        return self._within if self.is_held else None

    @property
    def is_kept(self) -> bool:
        """Whether this process keeps all that it had before settling."""
        return self.is_held and self.device is None

    def kept(self, part: tf.Tensor) -> tf.Tensor:
        """Select the elements that this process keeps of those that it had before settling."""
        return part if self.is_held else tf.reshape(part, [-1])[:0]

    @cached_property
    def of_slots(self) -> "StageLayout | SlotLayout":
        """The layout of the optimizer's slots of the weight."""
        return self if self._replicas is None else SlotLayout(self, self._replicas)

    @property
    def is_settled(self) -> bool:
        """Whether it is known which stages have the weight."""
        return self.holders is not None

    @property
    def is_held(self) -> bool:
        """Whether this process has the weight; all processes do before settling."""
        return self.holders is None or self._along.rank in self.holders

    @property
    def is_cut(self) -> bool:
        return self._within is not None

    @property
    def counts(self) -> bool:
        """Whether the weight counts here in sums over stages, if several have it."""
        return self.holders is None or self._along.rank == self.holders[0]

    @property
    def is_first(self) -> bool:
        """Whether no process before this one has the same part."""
        return self.is_first_in_replica and self._is_first_replica

    @property
    def is_first_in_replica(self) -> bool:
        """Whether no process of this replica before this one has the same part."""
        return self.is_held and self.counts and self._is_first_of_copies

    @property
    def axes(self) -> tuple[str, ...]:
        return (PIPELINE, *(() if self._within is None else self._within.axes))

    @property
    def layout(self) -> tuple[str | None, ...]:
        return (None,) * len(self.shape) if self._within is None else self._within.layout

    @property
    def held_shape(self) -> tuple[int, ...]:
        """The shape of the part on a process, at this place of a stage, that computes with the weight."""
        return self.shape if self._within is None else self._within.local_shape

    @property
    def local_shape(self) -> tuple[int, ...]:
        return self.held_shape if self.is_held else (0,)

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """The bounds, in the whole, of the part that this process has."""
        return tuple((0, size) for size in self.local_shape) if self.within is None else self.within.bounds

    def read(self, variable: Any) -> tf.Tensor:
        return self.told(variable.read_value())

    def gather(self, part: tf.Tensor) -> tf.Tensor:
        return self.told(part if self.within is None else self.within.gather(part))

    def told(self, value: tf.Tensor) -> tf.Tensor:
        """Return the weight, which the first stage that has it sends to the others, given the part of this stage."""
        if self.holders is None or len(self.holders) == self._along.size:
            return value

        @tf.custom_gradient
        def told(value: tf.Tensor) -> Any:
            own = value if self.is_held else tf.zeros(self.shape, value.dtype)
            return self._told(own), self._refuse

        return told(value)

    def cut(self, whole: Any) -> Any:
        if self.is_held:
            return whole if self.within is None else self.within.cut(whole)
        return flat_range(whole, 0, 0)

    def drawn(self, stretch: Callable[[int, int], tf.Tensor]) -> tf.Tensor:
        if self.within is not None:
            return self.within.drawn(stretch)
        numbers = stretch(0, math.prod(self.shape) if self.is_held else 1)
        return tf.reshape(numbers if self.is_held else numbers[:0], self.local_shape)

    def total(self, tensors: Sequence[tf.Tensor], axes: Iterable[str] | None = None) -> list[tf.Tensor]:
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


class SlotLayout(PartLayout):
    """A slot, or the updated weight, cut over the replicas of a stage by elements; whole before settling."""

    layout = ("elements",)
    #: all that the process has lies there
    device = None

    def __init__(self, weight: StageLayout, replicas: TracedCollective) -> None:
        super().__init__(weight.shape, weight.path)
        self.mesh_axes = weight.mesh_axes
        #: the elements of this replica, in a process that has the weight
        self.stretch = Stretch(weight.held_shape, replicas.rank, replicas.size)
        self._weight = weight
        self._replicas = replicas

    @property
    def is_settled(self) -> bool:
        return self._weight.is_settled

    @property
    def is_held(self) -> bool:
        return self._weight.is_held

    @property
    def counts(self) -> bool:
        return self._weight.counts

    @property
    def is_first(self) -> bool:
        return self._weight.is_first_in_replica

    @property
    def axes(self) -> tuple[str, ...]:
        return (DATA, *self._weight.axes)

    @property
    def within(self) -> MeshLayout | None:
        """The layout of this process's part within its stage's part; None: Keras sees only what this process has."""
        return None if self.is_settled else self._weight.within

    #: a stretch is less
    is_kept = False

    def kept(self, part: tf.Tensor) -> tf.Tensor:
        return self.stretch.of(part) if self.is_held else tf.reshape(part, [-1])[:0]

    @property
    def of_slots(self) -> "SlotLayout":
        """The layout of the optimizer's slots, which is this one."""
        return self

    @property
    def local_shape(self) -> tuple[int, ...]:
        if not self.is_settled:
            return self._weight.local_shape
        return self.stretch.shape if self.is_held else (0,)

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """The bounds, in the whole, of the stage's part; if that is the whole, of this process's flat elements."""
        if self._weight.within is not None:
            return self._weight.within.bounds
        return (self.stretch.bounds if self.is_held else (0, 0),)

    @property
    def elements(self) -> tuple[int, int] | None:
        return None if self._weight.within is None else self.stretch.bounds

    def read(self, variable: Any) -> tf.Tensor:
        if not self.is_settled:
            return self._weight.read(variable)
        return self.gather(variable.read_value())

    def gather(self, part: tf.Tensor) -> tf.Tensor:
        """Return the whole: a stage's replicas join their parts, and the first stage that has it sends it to others."""
        if self.is_settled and self.is_held:
            what = f"the gathering of slots of {self._weight.label}"
            rows = self.mesh_axes.all_gather(self.stretch.padded(part), DATA, 0, what)
            part = self.stretch.joined(tf.reshape(rows, [self._replicas.size, self.stretch.width]))
        return self._weight.gather(part)

    def cut(self, whole: Any) -> Any:
        part = self._weight.cut(whole)
        if not self.is_settled or not self.is_held:
            return part
        return flat_range(part, *self.stretch.bounds)

    def drawn(self, stretch: Callable[[int, int], tf.Tensor]) -> tf.Tensor:
        part = self._weight.drawn(stretch)
        return self.kept(part) if self.is_settled else part

    def total(self, tensors: Sequence[tf.Tensor], axes: Iterable[str] | None = None) -> list[tf.Tensor]:
        return self.mesh_axes.all_reduce(tensors, self.axes if axes is None else axes, "parts")
