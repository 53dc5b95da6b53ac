"""Layouts of weights in parts: cut, gather, and their gradients.

Members along an axis other than the examples' compute with the same rows and whole weights, so the gradient of a
gathered weight is the same on all. In the backward pass it is cut, not summed: a sum would be too large by the number
of members. The sum over examples comes later, along their axis. The gradient of a cut is gathered likewise. Under ZeRO
stage 3 (`ElementLayout`) the reduction of gradients cuts and sums them, as where weights are whole.

Sources: M. Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism",
2019, whose f and g are the sums of a split computation; here computation is repeated. S. Rajbhandari, J. Rasley, O.
Ruwase, Y. He, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020, where the weights of a
layer are gathered at once; here each by itself, as many ahead as fit a window.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tfdist.collectives.traced import TracedCollective
from tfdist.compat.tensorflow import sparse_rows
from tfdist.compat.tensorflow.meshes.weight_gathering import Gathers
from tfdist.errors import UnsupportedError
from tfdist.gradients.sharding.variable_parts import Stretch
from tfdist.parallel import layouts
from tfdist.parallel.compute.activations import Along
from tfdist.parallel.mesh_axes import Axes
from tfdist.training.replica import current_step

_BLOCK_ELEMENTS = 1 << 22  # drawn at once, and then cut


class PartLayout:
    """The common base of the layouts of `compat.tensorflow.meshes.sharded_variable.Layout`."""

    #: advice to the user if nothing can travel
    alternative = ""

    def __init__(self, shape: Sequence[int], path: str) -> None:
        self.shape = tuple(int(size) for size in shape)
        self.path = path
        #: the name in collectives, which is the same on all members
        self.label = path

    @property
    def elements(self) -> tuple[int, int] | None:
        """The range of elements that this process has within the bounds; None: all."""
        return None

    @property
    def is_cut(self) -> bool:
        """Whether a process that has some of the weight has less than the whole."""
        return True

    def read(self, variable: Any) -> tf.Tensor:
        """Return the whole of a variable with this process's part."""
        return self.gather(variable.read_value())

    def gather(self, part: tf.Tensor) -> tf.Tensor:
        """Return the whole of a weight of which every member has a part."""
        raise NotImplementedError

    def assembled(self, layouts: Sequence[Any], parts: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the whole from the only part of this process."""
        (part,) = parts
        return self.gather(part)

    def require_collectives(self) -> None:
        """Raise if nothing can travel between processes."""
        current = current_step.current()
        if current is not None and current.is_one_program:
            raise UnsupportedError(
                f"jit_compile is True, and the weight {self.path!r} is in parts on several processes or devices, "
                "which a program of XLA cannot gather: it is made for one device. Pass jit_compile=False to "
                "model.compile()" + self.alternative + ".",
                name="jit_compile",
                received=self.path,
            )


def flat_range(whole: Any, begin: int, end: int) -> Any:
    """Return elements of a flattened tensor or array."""
    return (whole.reshape(-1) if hasattr(whole, "reshape") else tf.reshape(whole, [-1]))[begin:end]


class MeshLayout(PartLayout):
    """A weight that axes of a mesh cut, and this process's part of it."""

    def __init__(self, axes: Axes, layout: layouts.DimAxes, shape: Sequence[int], path: str) -> None:
        super().__init__(shape, path)
        self.layout = layout
        self.local_shape = layouts.local_shape(axes.mesh, layout, self.shape)
        self.bounds = layouts.bounds(axes.mesh, layout, self.shape, axes.rank)
        place = axes.mesh.coordinates(axes.rank)
        #: whether no member before this one has the same part
        self.is_first = all(place[name] == 0 for name in axes.mesh.names if name not in layout)
        #: the axes along which parts travel
        self.mesh_axes = axes

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(axis for axis in self.layout if axis is not None)

    def gather(self, part: tf.Tensor) -> tf.Tensor:
        self.require_collectives()

        @tf.custom_gradient
        def gathered(part: tf.Tensor) -> Any:
            return self._gathered(part), self.part

        return gathered(part)

    def assembled(self, layouts: Sequence[Any], parts: Sequence[tf.Tensor]) -> tf.Tensor:
        ends = {one.mesh_axes.rank: one.mesh_axes for one in layouts}
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
        if isinstance(whole, tf.IndexedSlices):
            return self._rows(whole)

        @tf.custom_gradient
        def cut(whole: tf.Tensor) -> Any:
            return self.cut(whole), self.gather

        return cut(tf.convert_to_tensor(whole))

    def cut(self, whole: Any) -> Any:
        return whole[tuple(slice(begin, end) for begin, end in self.bounds)]

    def drawn(self, stretch: Callable[[int, int], tf.Tensor]) -> tf.Tensor:
        """Return this process's part of numbers that can be made by stretches; a few rows are whole at a time."""
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
            # in place, because joining the blocks would need the memory of the part twice
            part = tf.raw_ops.InplaceUpdate(x=part, i=tf.range(first - begin, last - begin), v=block)
        return part

    def total(self, tensors: Sequence[tf.Tensor], axes: Iterable[str] | None = None) -> list[tf.Tensor]:
        along = self.axes if axes is None else axes
        return self.mesh_axes.all_reduce(tensors, along, f"parts of {self.label}" if axes is None else "parts")

    def _gathered(self, part: tf.Tensor) -> tf.Tensor:
        for dim, axis in enumerate(self.layout):
            if axis is not None:
                part = self.mesh_axes.all_gather(part, axis, dim, self.label)
        return part

    def _rows(self, slices: tf.IndexedSlices) -> tf.IndexedSlices:
        """Return this process's part of rows; rows with the same index stay separate, and their kind stays known."""
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


class ElementLayout(PartLayout):
    """A weight of which each worker has a range of the elements: ZeRO stage 3."""

    #: no two workers have the same element
    is_first = True
    layout = ("elements",)
    axes = ("elements",)
    alternative = ", or take stage 2"

    def __init__(
        self,
        traced: TracedCollective,
        waiting: Callable[[str], AbstractContextManager[None]],
        gathers: Gathers,
        shape: Sequence[int],
        dtype: tf.DType,
        path: str,
    ) -> None:
        super().__init__(shape, path)
        self._traced, self._waiting, self._gathers = traced, waiting, gathers
        self._stretch = Stretch(self.shape, traced.rank, traced.size)
        self.local_shape = self._stretch.shape
        #: the bounds in the flattened weight
        self.bounds = (self._stretch.bounds,)
        gathers.expect(self._stretch.count * dtype.size)

    def read(self, variable: Any) -> tf.Tensor:
        """Return the weight of which a variable has this worker's part; a step gathers each weight in its turn."""
        return self._gathers.read(variable, self.gather)

    def gather(self, part: tf.Tensor) -> tf.Tensor:
        self.require_collectives()
        what = f"the gathering of {self.label}"
        asked = f"{what}, which every worker has to ask for,"
        with self._waiting(asked) if tf.executing_eagerly() else tf.name_scope(""):
            rows = self._traced.all_gather(self._stretch.padded(part), what, equal_rows=True)
        return self._stretch.joined(tf.reshape(rows, [self._traced.size, self._stretch.width]))

    def cut(self, whole: Any) -> Any:
        return flat_range(whole, *self._stretch.bounds)

    def drawn(self, stretch: Callable[[int, int], tf.Tensor]) -> tf.Tensor:
        return stretch(*self._stretch.bounds)

    def total(self, tensors: Sequence[tf.Tensor], axes: Iterable[str] | None = None) -> list[tf.Tensor]:
        del axes
        return self._traced.all_reduce(tensors, [f"parts of {self.label}"] * len(tensors))
