"""Native collectives of the replicas of one process: from their tensors straight into all results, without a copy.

Who comes last to an operation does it for all, in the order of the replicas, together with helpers: one thread less
than there are processors, which all strategies of a process share. Nobody waits in a thread. An operation whose step
fails is taken back, so the next step finds nothing of it.

Costs, of S bytes on n replicas: `all_reduce` reads and writes n S in all, `all_gather` writes n times the rows of all.
"""

import itertools
from collections.abc import Sequence

import tensorflow as tf

from tfdist.collectives import collective as base
from tfdist.collectives.backends.native_collective import NativeCollective
from tfdist.errors import TfdistError, UnsupportedError
from tfdist.native import engine as native

__all__ = ["Replicas", "in_order", "of_replicas"]

_between = itertools.count()


class Replicas:
    """The replicas of this process."""

    def __init__(self, devices: Sequence[str]) -> None:
        try:
            library = native.engines()
        except (TfdistError, OSError) as error:
            raise UnsupportedError(
                f"the native collectives need a C++ compiler ({error}). Mend that, or choose another engine, such as "
                "TensorFlow's."
            ) from error
        self._devices = list(devices)
        self._numbers = library.replicas(len(self._devices))

    def collective(self, rank: int, members: Sequence[int] | None = None) -> NativeCollective | None:
        """Return a replica's collective, of some replicas or of all; None where it is none of them."""
        group = list(range(len(self._devices))) if members is None else list(members)
        base.require_rank("rank", rank, len(self._devices))
        if rank not in group:
            return None
        return NativeCollective(
            self._numbers[rank],
            members=group,
            rank=group.index(rank),
            hosts=[0] * len(group),
            device=self._devices[rank],
            order=_order(self._numbers[rank], self._devices[rank]),
        )


def of_replicas(devices: Sequence[str]) -> list[NativeCollective]:
    """Return the collectives of the replicas of this process, in their order.

    Example:
        >>> of_replicas(["/device:CPU:0", "/device:CPU:1"])[1].rank                      # doctest: +SKIP
        1
    """
    replicas = Replicas(devices)
    found = [replicas.collective(rank) for rank in range(len(devices))]
    return [one for one in found if one is not None]


def in_order(collective: NativeCollective, lane: str = "") -> NativeCollective:
    """Return a collective of the same members for functions that hold other replicas' operations as well."""
    return collective.ordered_by(_order(f"between_{next(_between)}", collective.device), lane)


def _order(name: int | str, device: str) -> tf.Tensor:
    """Return a resource, for `NativeCollective`, that nothing is ever kept in."""
    with tf.init_scope(), tf.device(device):
        return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name=f"tfdist_native_order_{name}")
