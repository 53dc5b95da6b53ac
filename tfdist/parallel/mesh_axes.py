"""Collectives along the axes of a mesh, under keys that follow from the function being traced.

A process with several places of the mesh has one end of the collectives for each of its replicas. Replicas of one
process meet in functions, in which they are traced side by side.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tfdist.cluster.mesh import Mesh
from tfdist.collectives.backends.local_collective import LocalCollective
from tfdist.collectives.collective import Collective
from tfdist.collectives.traced import TracedCollective
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compat.tensorflow.meshes.graph_rewrites import Late
from tfdist.errors import UnsupportedError


class Axes:
    """One replica's end of the collectives along each axis; `late` has tensors that are gathered only if read."""

    def __init__(
        self,
        mesh: Mesh,
        rank: int,
        collectives: Mapping[str, TracedCollective],
        waiting: Callable[[str], AbstractContextManager[None]],
        *,
        inside: Collection[str] = (),
        late: Late | None = None,
    ) -> None:
        self.mesh = mesh
        self.rank = rank
        self._collectives = dict(collectives)
        self._waiting = waiting
        self._inside = frozenset(inside)
        self.late = late or Late(may_wait=not any(one.collective.keeps_program_order for one in collectives.values()))

    def along(self, axis: str) -> TracedCollective:
        """Return the collective of the members along an axis."""
        return self._collectives[axis]

    def all_gather(self, tensor: tf.Tensor, axis: str, dim: int, label: str) -> tf.Tensor:
        """Return the parts of all members along an axis, concatenated along a dim."""
        collective = self._collectives[axis]
        if collective.size == 1:
            return tensor
        self._require_side_by_side(axis, label)
        shape = tensor.shape.as_list()
        with self._waits(f"the gathering of {label}, which every worker has to ask for,"):
            whole = _by_rows(
                lambda rows: collective.all_gather(rows, f"{label} along {axis}", equal_rows=shape[dim] is not None),
                tensor,
                dim,
            )
        shape[dim] = None if shape[dim] is None else shape[dim] * collective.size
        return tf.ensure_shape(whole, shape)

    def reduce_scatter(self, tensor: tf.Tensor, axis: str, dim: int, label: str) -> tf.Tensor:
        """Return this member's part, along a dim, of the sum over the members along an axis."""
        collective = self._collectives[axis]
        if collective.size == 1:
            return tensor
        self._require_side_by_side(axis, label)
        with self._waits(f"the sum of {label}"):
            part = _by_rows(lambda rows: collective.reduce_scatter(rows, f"{label} along {axis}"), tensor, dim)
        shape = tensor.shape.as_list()
        shape[dim] = None if shape[dim] is None else shape[dim] // collective.size
        return tf.ensure_shape(part, shape)

    def all_reduce(self, tensors: Sequence[tf.Tensor], axes: Iterable[str], label: str) -> list[tf.Tensor]:
        """Return the sums over the members along some axes, summed axis by axis; equal bit for bit on all members."""
        sums = list(tensors)
        for axis in self.mesh.names:
            if axis in axes and self._collectives[axis].size > 1 and sums:
                self._require_side_by_side(axis, label)
                with self._waits(f"the sum of {label}"):
                    sums = self._collectives[axis].all_reduce(sums, [f"{label} along {axis}"] * len(sums))
        return sums

    def _require_side_by_side(self, axis: str, label: str) -> None:
        if axis in self._inside and tf.executing_eagerly():
            raise UnsupportedError(
                f"{label} is needed along the axis {axis!r} by a replica that runs eagerly, and the others along it "
                "are devices of this process, whose replicas run one after the other then, so that one would wait for "
                "ever. Call it in a tf.function (model.compile(run_eagerly=False)), or start a process at each place "
                f"of the mesh: tfdist run -n {self.mesh.size}."
            )

    def broadcast(self, tensor: tf.Tensor, axis: str, root: int, label: str) -> tf.Tensor:
        """Return the value of one member along an axis, bit for bit."""
        with self._waits(f"the value of {label}, which every worker has to ask for,"):
            return self._collectives[axis].broadcast(tensor, f"{label} along {axis}", root=root)

    def _waits(self, what: str) -> AbstractContextManager[Any]:
        """Limit the time of a wait; in a function the step's own wait has the limit."""
        return self._waiting(what) if tf.executing_eagerly() else tf.name_scope("")


def _by_rows(run: Callable[[tf.Tensor], tf.Tensor], tensor: tf.Tensor, dim: int) -> tf.Tensor:
    """Run a collective that works on rows on a tensor whose parts are along another dim."""
    if dim == 0:
        return run(tensor)
    front = [dim, *(other for other in range(tensor.shape.rank) if other != dim)]
    return tf.transpose(run(tf.transpose(tensor, front)), [front.index(place) for place in range(tensor.shape.rank)])


def along(collective: Collective, mesh: Mesh, axes: Iterable[str]) -> Collective:
    """Return the collective of members that differ from this one along these axes only.

    Every member calls this for the same axes in the same order.
    """
    found: Collective | None = None
    for group in mesh.groups(axes):
        found = among(collective, group) or found
    assert found is not None  # every member is in one of the groups
    return found


def among(collective: Collective, members: Sequence[int], group_key: int | None = None) -> Collective | None:
    """Return the collective of some members, or None if this one is not among them; all of them call this."""
    if list(members) == list(range(collective.size)):
        return collective
    if len(members) == 1:
        return LocalCollective() if collective.rank in members else None
    return collective.among(members, group_key)


def of_replicas(replicas: Sequence[Collective], mesh: Mesh, axes: Iterable[str]) -> list[Collective]:
    """Return, for each replica of this process, the collective of those that differ from it only along these axes.

    Every process calls this for the same axes in the same order.
    """
    found: list[Collective | None] = [None] * len(replicas)
    for group in mesh.groups(axes):
        # one number for a group, of which this process may have several members
        key = tf_strategies.new_group_key(within_worker=False)
        for place, one in enumerate(replicas):
            found[place] = among(one, group, key) or found[place]
    return [one for one in found if one is not None]  # each is in one of the groups
