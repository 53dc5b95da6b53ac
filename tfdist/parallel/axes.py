"""What travels along the axes of a mesh, under keys that follow from the function that is being traced."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tfdist.cluster.mesh import Mesh
from tfdist.collectives.traced import TracedCollective
from tfdist.compat.tensorflow.meshes.late import Late


class Axes:
    """This process's end of the collectives along each axis.

    Args:
        mesh: the mesh.
        rank: of this process.
        collectives: for each axis, of the members that differ from this process there alone.
        waiting: returns a context for code that waits for other processes, given what it does.

    Attributes:
        late: what a step gathers only if it takes it.
    """

    def __init__(
        self,
        mesh: Mesh,
        rank: int,
        collectives: Mapping[str, TracedCollective],
        waiting: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self.mesh = mesh
        self.rank = rank
        self._collectives = dict(collectives)
        self._waiting = waiting
        self.late = Late(
            may_wait=not any(getattr(one.collective, "keeps_program_order", False) for one in collectives.values())
        )

    def all_gather(self, tensor: tf.Tensor, axis: str, dim: int, label: str) -> tf.Tensor:
        """Return the parts of all members along an axis, one behind the other along a dim.

        Args:
            tensor: this process's part, of equal shape on every member.
            axis: along which members differ.
            dim: along which parts lie.
            label: what it is, for messages.
        """
        collective = self._collectives[axis]
        if collective.size == 1:
            return tensor
        front = [dim, *(other for other in range(tensor.shape.rank) if other != dim)]
        rows = tensor if dim == 0 else tf.transpose(tensor, front)
        with self._waits(f"the gathering of {label}"):
            rows = collective.all_gather(rows, f"{label} along {axis}")
        whole = rows if dim == 0 else tf.transpose(rows, [front.index(place) for place in range(tensor.shape.rank)])
        shape = tensor.shape.as_list()
        shape[dim] = None if shape[dim] is None else shape[dim] * collective.size
        return tf.ensure_shape(whole, shape)

    def all_reduce(self, tensors: Sequence[tf.Tensor], axes: Iterable[str], label: str) -> list[tf.Tensor]:
        """Return the sums over the members along some axes, one after the other; equal bit for bit on all of them.

        Args:
            tensors: of equal shapes on every member.
            axes: along which members differ.
            label: what they are, for messages.
        """
        sums = list(tensors)
        for axis in self.mesh.names:
            if axis in axes and self._collectives[axis].size > 1 and sums:
                with self._waits(f"the sum of {label}"):
                    sums = self._collectives[axis].all_reduce(sums, [f"{label} along {axis}"] * len(sums))
        return sums

    def _waits(self, what: str) -> AbstractContextManager[Any]:
        """Return a context that ends a wait in time; in a function it is the step's that waits."""
        return self._waiting(what) if tf.executing_eagerly() else tf.name_scope("")
