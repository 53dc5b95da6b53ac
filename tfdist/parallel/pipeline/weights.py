"""How the weights of a pipeline lie: whole where a stage computes with them, nowhere else."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.collectives.traced import TracedCollective
from tfdist.errors import UnsupportedError
from tfdist.parallel.axes import Axes


class StageSharding:
    """Which stages have a weight; see `compat.tensorflow.meshes.sharded.Sharding`, of which this is one.

    Args:
        axes: of the mesh.
        along: carries tensors between the stages.
        is_first_replica: whether this process is the first among those of its stage.
        shape: of the weight.
        path: of the weight, for messages.
    """

    def __init__(
        self, axes: Axes, along: TracedCollective, *, is_first_replica: bool, shape: Sequence[int], path: str
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


#: the axis of a mesh along which stages lie
PIPELINE = "pipeline"
