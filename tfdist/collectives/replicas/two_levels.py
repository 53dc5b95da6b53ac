"""Replicas of several processes: among those of a process in its memory, among processes by one of each."""

from collections.abc import Sequence

import tensorflow as tf

from tfdist.collectives import collective, fallbacks
from tfdist.collectives.backends.native_collective import NativeCollective
from tfdist.collectives.collective import Collective
from tfdist.collectives.replicas import in_process
from tfdist.errors import UnsupportedError

__all__ = ["TwoLevelCollective"]


class TwoLevelCollective:
    """One of the replicas of all processes, which have as many each.

    Replicas of a process add up first; then their first one, the leader, meets those of the other processes, and hands
    out what comes of it. So between processes travels as much as if each had one replica. Numbers are added in the
    order of the ranks in each process, and then as ``between`` does; sums of 16 bits in float32, rounded once.

    Costs, of S bytes: `all_reduce` those of ``between`` for one member of each process; `reduce_scatter` as many;
    `all_to_all` an `all_gather` of all that everybody has.
    """

    matches_by_count = False
    keeps_program_order = False

    def __init__(self, local: NativeCollective, between: Collective, *, hosts: Sequence[int], index: int) -> None:
        self.size = local.size * len(hosts)
        self.rank = local.size * index + local.rank
        self.hosts = tuple(host for host in hosts for _ in range(local.size))
        self._local = local
        self._between = between
        self._index = index
        self._leads = local.rank == 0

    def among(self, members: Sequence[int], group_key: int | None = None) -> Collective | None:
        """Return the collective of some of the members; see `Collective.among`."""
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
        between = in_process.in_order(between, f"from {members[0]} on ")
        if len(near) == 1:
            return between
        return TwoLevelCollective(local, between, hosts=between.hosts, index=processes.index(self._index))

    def all_reduce(self, tensors: Sequence[tf.Tensor], *, key: str, op: str = "sum") -> list[tf.Tensor]:
        """Return sums, minima or maxima; see `Collective.all_reduce`."""
        dtypes = [tensor.dtype for tensor in tensors]
        wide = [tf.cast(one, tf.float32) if one.dtype in fallbacks.HALVES and op == "sum" else one for one in tensors]
        totals = self._local.all_reduce(wide, key=f"{key} in the process", op=op)
        if self._leads:
            totals = self._between.all_reduce(totals, key=key, op=op)
        handed = self._local.broadcast_all(totals, key=f"{key} of all")
        return [tf.cast(total, dtype) for total, dtype in zip(handed, dtypes, strict=True)]

    def all_gather(self, tensor: tf.Tensor, *, key: str) -> tf.Tensor:
        """Return the rows of all members; see `Collective.all_gather`."""
        rows = self._local.all_gather(tensor, key=f"{key} in the process")
        # that the others of the process have no rows then is how many there are told to them
        rows = self._between.all_gather(rows, key=key) if self._leads else rows[:0]
        return self._local.all_gather(rows, key=f"{key} of all")

    def reduce_scatter(self, tensor: tf.Tensor, *, key: str) -> tf.Tensor:
        """Return this member's part of the sum; see `Collective.reduce_scatter`."""
        (total,) = self.all_reduce([collective.require_rows(tf.convert_to_tensor(tensor))], key=key)
        return tf.split(total, collective.cut(total, self.size), num=self.size)[self.rank]

    def broadcast(self, tensor: tf.Tensor, *, key: str, root: int = 0) -> tf.Tensor:
        """Return one member's value; see `Collective.broadcast`."""
        process, place = divmod(collective.require_rank("root", root, self.size), self._local.size)
        if process == self._index and place != 0:
            tensor = self._local.broadcast(tensor, key=f"{key} in the process", root=place)
        if self._leads:
            tensor = self._between.broadcast(tensor, key=key, root=process)
        return self._local.broadcast(tensor, key=f"{key} of all")

    def all_to_all(self, tensor: tf.Tensor, *, key: str) -> tf.Tensor:
        """Return this member's part of every member's rows; see `Collective.all_to_all`."""
        tensor = collective.require_rows(tf.convert_to_tensor(tensor))
        sizes = collective.cut(tensor, self.size)
        every = tf.split(self.all_gather(tensor, key=key), [sum(sizes)] * self.size, num=self.size)
        return tf.concat([tf.split(rows, sizes, num=self.size)[self.rank] for rows in every], axis=0)

    def send(self, tensor: tf.Tensor, *, key: str, to: int) -> tf.Operation:
        """Send a tensor to a replica of the same process; see `Collective.send`."""
        return self._local.send(tensor, key=key, to=self._near("to", to))

    def start_of(self, sent: tf.Operation) -> tf.Operation | None:
        """Return the operation behind which a send is under way; see `Collective.start_of`."""
        return self._local.start_of(sent)

    def receive(self, spec: tf.TensorSpec, *, key: str, source: int) -> tf.Tensor:
        """Return what a replica of the same process has sent; see `Collective.receive`."""
        return self._local.receive(spec, key=key, source=self._near("source", source))

    def waits_for(self) -> str:
        """Return what the replicas of this process wait for; see `Collective.waits_for`."""
        return self._local.waits_for()

    def abort(self, reason: str) -> None:
        """End the waits of the replicas of this process, and of the other processes for it."""
        self._local.abort(reason)
        self._between.abort(reason)

    def explain(self, error: BaseException, what: str) -> Exception | None:
        """Return the error of tfdist's for a failure of these collectives, or None if it is another's."""
        return self._local.explain(error, what)

    def _near(self, name: str, rank: int) -> int:
        collective.require_other(name, rank, self)
        process, place = divmod(rank, self._local.size)
        if process != self._index:
            raise UnsupportedError(
                f"{name} is {rank}, a replica of process {process}, and this is one of process {self._index}; only the "
                "first replicas of processes reach each other. Send it by broadcast, or start processes of one replica."
            )
        return place
