"""Activations along a mesh axis: pairs of sums and gatherings, each the gradient of the other.

Each member of an axis has the same activation, or a part of it, or a summand. After `entering`, each member computes
something else from the same activation; its gradient is `summed`. `gathered` and `cut` are each other's
gradients. Between activations in parts, `scattered` sums to parts and `collected` gathers them; these two are each
other's gradients, and move as many bytes as the first pair.

Sources: M. Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism",
2019 (their f is `entering`, their g `summed`); V. Korthikanti et al., "Reducing Activation Recomputation in Large
Transformer Models", 2022 (their g is `collected`, their g with a bar `scattered`).
"""

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist.parallel.mesh_axes import Axes


@dataclass(frozen=True)
class Along:
    """The transfers along one axis of a mesh for one layer, which messages name."""

    axes: Axes
    axis: str
    label: str

    @property
    def size(self) -> int:
        return self.axes.mesh.size_of(self.axis)

    @property
    def place(self) -> int:
        return self.axes.mesh.coordinates(self.axes.rank)[self.axis]

    def all(self, tensor: tf.Tensor) -> tf.Tensor:
        """Gather every member's tensor, shape (members, ...); it has no gradient."""
        return self.axes.all_gather(tensor[tf.newaxis], self.axis, 0, self.label)

    def entering(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return a tensor that is the same on all members, from which each member computes something else."""

        @tf.custom_gradient
        def unchanged(tensor: tf.Tensor) -> Any:
            return tf.identity(tensor), self.summed

        return unchanged(tf.convert_to_tensor(tensor))  # what was gathered from activations has a gradient of rows

    def summed(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return the sum of the members' tensors, the same on all members."""

        @tf.custom_gradient
        def total(tensor: tf.Tensor) -> Any:
            return self.axes.all_reduce([tensor], [self.axis], self.label)[0], self.entering

        return total(tensor)

    def scattered(self, tensor: tf.Tensor, dim: int) -> tf.Tensor:
        """Return this member's part, along a dim, of the sum of the members' tensors."""

        @tf.custom_gradient
        def part(tensor: tf.Tensor) -> Any:
            found = self.axes.reduce_scatter(tensor, self.axis, dim, self.label)
            return found, lambda upstream: self.collected(upstream, dim)

        return part(tensor)

    def collected(self, tensor: tf.Tensor, dim: int) -> tf.Tensor:
        """Return the members' parts, concatenated along a dim; each member computes something else from the result."""

        @tf.custom_gradient
        def whole(tensor: tf.Tensor) -> Any:
            found = self.axes.all_gather(tensor, self.axis, dim, self.label)
            return found, lambda upstream: self.scattered(upstream, dim)

        return whole(tensor)

    def gathered(self, tensor: tf.Tensor, dim: int) -> tf.Tensor:
        """Return the members' parts, concatenated along a dim, the same on all members."""

        @tf.custom_gradient
        def whole(tensor: tf.Tensor) -> Any:
            return self.axes.all_gather(tensor, self.axis, dim, self.label), lambda upstream: self.cut(upstream, dim)

        return whole(tensor)

    def gathered_late(self, tensor: tf.Tensor, dim: int, source: Any) -> tf.Tensor:
        """Return the result of `gathered`, but gather only if the step reads it."""
        shape = tf.shape(tensor) * [self.size if one == dim else 1 for one in range(tensor.shape.rank)]
        static = [known and known * (self.size if one == dim else 1) for one, known in enumerate(tensor.shape)]

        @tf.custom_gradient
        def whole(tensor: tf.Tensor) -> Any:
            found = self.axes.late.promise(
                lambda: self.axes.all_gather(tensor, self.axis, dim, self.label), shape, tensor, source
            )
            return tf.ensure_shape(found, static), lambda upstream: self.cut(upstream, dim)

        return whole(tensor)

    def cut(self, tensor: tf.Tensor, dim: int) -> tf.Tensor:
        """Return this member's part, along a dim, of a tensor that is the same on all members."""

        @tf.custom_gradient
        def part(tensor: tf.Tensor) -> Any:
            return tf.split(tensor, self.size, axis=dim)[self.place], lambda upstream: self.gathered(upstream, dim)

        return part(tensor)
