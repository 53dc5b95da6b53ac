"""Native collectives of replicas: in the memory of one process, and over several processes by one replica of each."""

import itertools
from collections.abc import Sequence

import tensorflow as tf

from tfdist.collectives import collective as base
from tfdist.collectives import fallbacks
from tfdist.collectives.backends.native_collective import NativeCollective
from tfdist.collectives.collective import Collective
from tfdist.errors import TfdistError, UnsupportedError
from tfdist.native import engine as native

_between = itertools.count()


def of_replicas(devices: Sequence[str]) -> list[NativeCollective]:
    """Return the collectives of the replicas of this process, in their order: tensors go straight into all results.

    The last replica at an operation carries it out for all, in the order of replicas, together with helper threads.
    There is one helper thread less than processors, for all strategies together. No thread waits. An operation of a
    failed step is withdrawn.

    Costs, for S bytes on n replicas: `all_reduce` reads and writes n S in all, `all_gather` writes n times all rows.
    """
    try:
        library = native.engines()
    except (TfdistError, OSError) as error:
        raise UnsupportedError(
            f"the native collectives need a C++ compiler ({error}). Fix that, or choose another engine, such as "
            "TensorFlow's."
        ) from error
    return [
        NativeCollective(
            number,
            members=range(len(devices)),
            rank=rank,
            hosts=[0] * len(devices),
            device=device,
            order=_order(number, device),
        )
        for rank, (number, device) in enumerate(zip(library.replicas(len(devices)), devices, strict=True))
    ]


def in_order(collective: NativeCollective, lane: str = "") -> NativeCollective:
    """Return a collective of the same members for functions that also have operations of other replicas."""
    return collective.ordered_by(_order(f"between_{next(_between)}", collective.device), lane)


def _order(name: int | str, device: str) -> tf.Tensor:
    """Return a resource that orders operations and holds nothing."""
    with tf.init_scope(), tf.device(device):
        return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name=f"tfdist_native_order_{name}")


class TwoLevelCollective:
    """The collective of one replica among those of all processes, which have equally many each.

    Replicas of a process sum first; then their leader reduces with those of other processes, and distributes the
    result. So as much travels between processes as with one replica each. Sums of 16 bits are made in float32 and
    rounded once.

    Costs, for S bytes: `all_reduce` and `reduce_scatter` cost as much as in ``between``, for one member of each
    process; `all_to_all` an `all_gather` of everything.
    """

    matches_by_count = False
    keeps_program_order = False
    sends_directly = False

    def __init__(self, local: NativeCollective, between: Collective, *, hosts: Sequence[int], index: int) -> None:
        self.size = local.size * len(hosts)
        self.rank = local.size * index + local.rank
        self.hosts = tuple(host for host in hosts for _ in range(local.size))
        self._local = local
        self._between = between
        self._index = index
        self._leads = local.rank == 0

    def among(self, members: Sequence[int], group_key: int | None = None) -> Collective | None:
        if self.rank not in members:
            return None
        near = [rank % self._local.size for rank in members if rank // self._local.size == self._index]
        if len(near) == len(members):
            return self._local.among(near)
        processes = list(dict.fromkeys(rank // self._local.size for rank in members))
        assert isinstance(self._between, NativeCollective)  # which alone has several replicas per process
        local, between = self._local.among(near), self._between.among(processes)
        if local is None or between is None:
            return None
        between = in_order(between, f"from {members[0]} on ")
        if len(near) == 1:
            return between
        return TwoLevelCollective(local, between, hosts=between.hosts, index=processes.index(self._index))

    def all_reduce(self, tensors: Sequence[tf.Tensor], *, key: str, op: str = "sum") -> list[tf.Tensor]:
        dtypes = [tensor.dtype for tensor in tensors]
        wide = [tf.cast(one, tf.float32) if one.dtype in fallbacks.HALVES and op == "sum" else one for one in tensors]
        totals = self._local.all_reduce(wide, key=f"{key} in the process", op=op)
        if self._leads:
            totals = self._between.all_reduce(totals, key=key, op=op)
        handed = self._local.broadcast_all(totals, key=f"{key} of all")
        return [tf.cast(total, dtype) for total, dtype in zip(handed, dtypes, strict=True)]

    def all_gather(self, tensor: tf.Tensor, *, key: str, equal_rows: bool = False) -> tf.Tensor:
        rows = self._local.all_gather(tensor, key=f"{key} in the process")
        # the others of the process have no rows then, and get those of all from the next operation
        rows = self._between.all_gather(rows, key=key, equal_rows=equal_rows) if self._leads else rows[:0]
        return self._local.all_gather(rows, key=f"{key} of all")

    def reduce_scatter(self, tensor: tf.Tensor, *, key: str) -> tf.Tensor:
        (total,) = self.all_reduce([base.require_rows(tensor)], key=key)
        return tf.split(total, base.cut(total, self.size), num=self.size)[self.rank]

    def broadcast(self, tensor: tf.Tensor, *, key: str, root: int = 0) -> tf.Tensor:
        process, place = divmod(base.require_rank("root", root, self.size), self._local.size)
        if process == self._index and place != 0:
            tensor = self._local.broadcast(tensor, key=f"{key} in the process", root=place)
        if self._leads:
            tensor = self._between.broadcast(tensor, key=key, root=process)
        return self._local.broadcast(tensor, key=f"{key} of all")

    def all_to_all(self, tensor: tf.Tensor, *, key: str) -> tf.Tensor:
        tensor = base.require_rows(tensor)
        sizes = base.cut(tensor, self.size)
        every = tf.split(self.all_gather(tensor, key=key), [sum(sizes)] * self.size, num=self.size)
        return tf.concat([tf.split(rows, sizes, num=self.size)[self.rank] for rows in every], axis=0)

    def send(self, tensor: tf.Tensor, *, key: str, to: int) -> tf.Operation:
        return self._local.send(tensor, key=key, to=self._near("to", to))

    def start_of(self, sent: tf.Operation) -> tf.Operation | None:
        return self._local.start_of(sent)

    def receive(self, spec: tf.TensorSpec, *, key: str, source: int) -> tf.Tensor:
        return self._local.receive(spec, key=key, source=self._near("source", source))

    def waits_for(self) -> str:
        return self._local.waits_for()

    def abort(self, reason: str) -> None:
        """End the waits of the replicas of this process, and the waits of other processes for it."""
        self._local.abort(reason)
        self._between.abort(reason)

    def explain(self, error: BaseException, what: str) -> Exception | None:
        """Return an error of tfdist for a failure of these collectives, or None if the failure is not theirs."""
        return self._local.explain(error, what)

    def _near(self, name: str, rank: int) -> int:
        base.require_other(name, rank, self)
        process, place = divmod(rank, self._local.size)
        if process != self._index:
            raise UnsupportedError(
                f"{name} is {rank}, a replica of process {process}, and this is one of process {self._index}; only the "
                "first replicas of processes reach each other. Send it by broadcast, or start processes of one replica."
            )
        return place
