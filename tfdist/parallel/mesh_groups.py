"""Collectives of the groups along a mesh's axes."""

from collections.abc import Iterable, Sequence

from tfdist.cluster.mesh import Mesh
from tfdist.collectives.backends.local_collective import LocalCollective
from tfdist.collectives.collective import Collective
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies

__all__ = ["along", "among", "of_replicas"]


def along(collective: Collective, mesh: Mesh, axes: Iterable[str]) -> Collective:
    """Return the collective of the members that differ from this one along some axes alone.

    Every member of the mesh calls it, for the same axes in the same order.
    """
    found: Collective | None = None
    for group in mesh.groups(axes):
        found = among(collective, group) or found
    assert found is not None  # every member is in one of the groups
    return found


def among(collective: Collective, members: Sequence[int], group_key: int | None = None) -> Collective | None:
    """Return the collective of some members, or None where this one is none of them; all of them call it."""
    if list(members) == list(range(collective.size)):
        return collective
    if len(members) == 1:
        return LocalCollective() if collective.rank in members else None
    return collective.among(members, group_key)


def of_replicas(replicas: Sequence[Collective], mesh: Mesh, axes: Iterable[str]) -> list[Collective]:
    """Return for each replica of this process the collective of those that differ from it along some axes alone.

    Every process of the mesh calls it, for the same axes in the same order.
    """
    found: list[Collective | None] = [None] * len(replicas)
    for group in mesh.groups(axes):
        # one number for a group, of which this process may have several members
        key = tf_strategies.new_group_key(within_worker=False)
        for place, one in enumerate(replicas):
            found[place] = among(one, group, key) or found[place]
    return [one for one in found if one is not None]  # each is in one of the groups
