"""The sharding of one weight over a mesh: whole from parts, part from whole, and their gradients.

The rule for gradients. Members that differ along an axis which is not the examples' compute with the same rows. What
each of them computes from whole weights is the same on all, and so is the gradient that comes back to a whole weight:
it is the gradient of their common loss, and not a part of it. So what goes back through a gathering is this process's
part of that gradient, cut out, and no sum: a sum over the members would be their number times too large. The sum over
examples comes later, along the axis of the examples alone, as for any other gradient.

The other way round, what is cut out of something that is alike on all members has a gradient of which each has a part:
gathered it is alike on all again.

Source: M. Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism",
2019, whose f and g are the two sums where computation itself is split; here whole weights are gathered and computation
is repeated.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat.tensorflow import sparse_rows
from tfdist.errors import UnsupportedError
from tfdist.parallel import layouts
from tfdist.parallel.auto_layout import Layout
from tfdist.parallel.axes import Axes
from tfdist.parallel.compute.activations import Along
from tfdist.training.replica import current_step

_BLOCK_ELEMENTS = 1 << 22  # drawn at once, and then cut


class Sharding:
    """The layout of one weight, and this process's part of it."""

    #: within the bounds: all
    elements: tuple[int, int] | None = None
    is_cut = True

    def __init__(self, axes: Axes, layout: Layout, shape: Sequence[int], path: str) -> None:
        self.layout = layout
        self.shape = tuple(int(size) for size in shape)
        self.path = path
        #: what collectives call it, which must be the same on all members
        self.label = path
        self.local_shape = layouts.local_shape(axes.mesh, layout, self.shape)
        self.bounds = layouts.bounds(axes.mesh, layout, self.shape, axes.rank)
        place = axes.mesh.coordinates(axes.rank)
        #: whether no member before this one has the same part
        self.is_first = all(place[name] == 0 for name in axes.mesh.names if name not in layout)
        #: what travels along the axes
        self.mesh_axes = axes

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes along which members have different parts."""
        return tuple(axis for axis in self.layout if axis is not None)

    def read(self, variable: Any) -> tf.Tensor:
        """Return the whole of a variable with this process's part."""
        return self.whole(variable.read_value())

    def whole(self, part: tf.Tensor) -> tf.Tensor:
        """Return the whole of which every member has its part; see the head of this file for the gradient."""
        self.require_collectives()

        @tf.custom_gradient
        def gathered(part: tf.Tensor) -> Any:
            return self._gathered(part), self.part

        return gathered(part)

    def require_collectives(self) -> None:
        """Raise where nothing can travel between processes."""
        current = current_step.current()
        if current is not None and current.is_one_program:
            raise UnsupportedError(
                f"jit_compile is True, and the weight {self.path!r} lies in parts on several processes or devices, "
                "which a program of XLA cannot gather: it is made for one device. Pass jit_compile=False to "
                "model.compile().",
                name="jit_compile",
                received=self.path,
            )

    def assembled(self, shardings: Sequence[Any], parts: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the whole of the parts of all replicas of this process, where no replica runs."""
        ends = {one.mesh_axes.rank: one.mesh_axes for one in shardings}
        held = dict(zip(ends, parts, strict=True))
        cuts = [(dim, axis) for dim, axis in enumerate(self.layout) if axis is not None]

        def made(rank: int, cuts: list[tuple[int, str]]) -> tf.Tensor:
            if not cuts:
                return held[rank]
            *before, (dim, axis) = cuts
            group = self.mesh_axes.mesh.group(rank, [axis])
            near = [made(member, before) for member in group if member in ends]
            if len(near) == len(group):
                return near[0] if len(near) == 1 else tf.concat(near, axis=dim)
            return Along(ends[rank], axis, self.label).gathered(near[0], dim)

        return made(self.mesh_axes.rank, cuts)

    def part(self, whole: Any) -> Any:
        """Return this process's part of something that has the whole's shape and is alike on all members."""
        if isinstance(whole, tf.IndexedSlices):
            return self._rows(whole)

        @tf.custom_gradient
        def cut(whole: tf.Tensor) -> Any:
            return self.cut(whole), self.whole

        return cut(tf.convert_to_tensor(whole))

    def cut(self, whole: Any) -> Any:
        """Return this process's part of a tensor or an array of the whole's shape."""
        return whole[tuple(slice(begin, end) for begin, end in self.bounds)]

    def drawn(self, stretch: Callable[[int, int], tf.Tensor]) -> tf.Tensor:
        """Return this process's part of numbers of which any stretch can be made; a few rows are whole at a time."""
        row = math.prod(self.shape[1:])
        (begin, end), inner = self.bounds[0], self.bounds[1:]
        rows = max(1, _BLOCK_ELEMENTS // max(row, 1))
        cut = (slice(None), *(slice(*edges) for edges in inner))
        part = None
        for first in range(begin, end, rows):
            last = min(first + rows, end)
            block = tf.reshape(stretch(first * row, last * row), [-1, *self.shape[1:]])[cut]
            if last - first == end - begin:
                return block
            if part is None:
                part = tf.raw_ops.Empty(shape=self.local_shape, dtype=block.dtype)
            # in place: to join the blocks would take the part twice
            part = tf.raw_ops.InplaceUpdate(x=part, i=tf.range(first - begin, last - begin), v=block)
        return part

    def total(self, tensors: Sequence[tf.Tensor], axes: Iterable[str] | None = None) -> list[tf.Tensor]:
        """Return the sums of what members with different parts have, such as of their squares."""
        along = self.axes if axes is None else axes
        return self.mesh_axes.all_reduce(tensors, along, f"parts of {self.label}" if axes is None else "parts")

    def _gathered(self, part: tf.Tensor) -> tf.Tensor:
        for dim, axis in enumerate(self.layout):
            if axis is not None:
                part = self.mesh_axes.all_gather(part, axis, dim, self.label)
        return part

    def _rows(self, slices: tf.IndexedSlices) -> tf.IndexedSlices:
        """Return this process's part of rows; rows of one index stay apart, and of which kind they are stays known."""
        values = slices.values[(slice(None), *(slice(begin, end) for begin, end in self.bounds[1:]))]
        indices, (begin, end) = slices.indices, self.bounds[0]
        if (begin, end) != (0, self.shape[0]):
            first = tf.constant(0, tf.int64)
            places, mine = [], []
            for part, kind in sparse_rows.parts(indices):
                rows = tf.reshape(part, [-1])
                here = tf.where((rows >= begin) & (rows < end))[:, 0]
                own = tf.gather(rows, here) - tf.cast(begin, rows.dtype)
                places.append(first + here)
                mine.append(sparse_rows.marked(own, kind))
                first += tf.size(rows, tf.int64)
            values = tf.gather(values, places[0] if len(places) == 1 else tf.concat(places, axis=0))
            indices = mine[0] if len(mine) == 1 else tf.concat(mine, axis=0)
        return tf.IndexedSlices(values, indices, tf.constant(self.local_shape, tf.int32))
