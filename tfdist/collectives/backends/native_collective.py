"""The collectives of tfdist itself: in shared memory between processes of one host, over TCP between hosts.

An operation is a TensorFlow op in C++ (`tfdist/native/collectives`), compiled on first use. Members copy chunks into a
few megabytes of shared memory; each sums its part of a chunk in the order of ranks, and copies the others' parts. Up to
4 KiB go at once. Operations match by key, in any order. Over several hosts with as many members each, `all_reduce` sums
in each host, then between members of equal index, and distributes in each host; all other operations go over TCP alone.

Between hosts, size, latency and bandwidth, measured at the start, decide whether each member sums everything or its
part. Both add in the order of ranks, so neither changes a bit of a sum. Integers may be summed in other ways.
`algorithm`, or ``TFDIST_ALL_REDUCE_ALGORITHM``, sets one for all sizes; `ring`, `halving-doubling` and `double-tree`
add in other orders, which are the same in every run.

Costs, for S bytes on n members: `all_reduce` reads and writes about 4 S per member; `all_gather` the rows of all;
`reduce_scatter` and `all_to_all` 2 S; `broadcast` and `send` 2 S. Nothing is negotiated: a small operation takes some
ten microseconds once all members are there.
"""

import atexit
import hashlib
import os
import secrets
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist import validation
from tfdist.cluster import job_key
from tfdist.collectives import byte_exchange, wire_dtypes
from tfdist.collectives import collective as base
from tfdist.collectives.byte_exchange import Exchange, agreed, exchange_over
from tfdist.collectives.collective import Collective
from tfdist.compat.tensorflow import traced_uses
from tfdist.errors import ConfigError, DeadlineError, TfdistError, cause_of
from tfdist.native import engine as native
from tfdist.variables import ALL_REDUCE_ALGORITHM, HOST_ID, JOB_KEY

_REDUCED = (
    *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.bool),
    *(tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32),
)
_START = "the start of the native collectives"


class NativeCollective:
    """The collective of some members of a job; `Job.collective` makes it."""

    def __init__(
        self,
        number: int,
        *,
        members: Sequence[int],
        rank: int,
        hosts: Sequence[int],
        device: str,
        beside: Collective | None = None,
        order: tf.Tensor | None = None,
        job: "Job | None" = None,
        lane: str = "",
    ) -> None:
        self.size = len(members)
        self.rank = base.require_rank("rank", rank, self.size)
        self.hosts = tuple(hosts)
        self.matches_by_count = number > 0  # operations of replicas whose step fails are taken back
        self.keeps_program_order = False
        self.sends_directly = len(set(self.hosts)) == self.size > 1
        self.device = device
        self._number = number
        self._members = list(members)
        self._beside = beside
        self._order = order
        self._job = job
        self._lane = lane
        self._library = native.engines()

    def ordered_by(self, order: tf.Tensor, lane: str = "") -> "NativeCollective":
        """Return the same collective, with a lane and a resource by which its operations begin in order."""
        return self._like(order=order, lane=lane)

    def among(self, members: Sequence[int], group_key: int | None = None) -> "NativeCollective | None":
        """Return the collective of some of the members, which costs nothing; see `Collective.among`."""
        if self.rank not in members:
            return None
        return self._like(
            members=[self._members[rank] for rank in members],
            rank=list(members).index(self.rank),
            hosts=base.hosts_of([self.hosts[rank] for rank in members]),
        )

    def _like(self, **others: Any) -> "NativeCollective":
        kept = {"members": self._members, "rank": self.rank, "hosts": self.hosts, "device": self.device}
        kept |= {"beside": self._beside, "order": self._order, "job": self._job, "lane": self._lane}
        return NativeCollective(self._number, **{**kept, **others})

    def all_reduce(self, tensors: Sequence[tf.Tensor], *, key: str, op: str = "sum") -> list[tf.Tensor]:
        base.require_op(op)
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        carried = [wire_dtypes.for_op(tensor, _REDUCED, op) for tensor in tensors]
        if self.size == 1:
            return tensors

        def reduced(number: int, same: list[tf.Tensor]) -> Any:
            return self._run("all_reduce", f"{key} {number}" if number else key, base.OPS.index(op), tensors=same)

        totals = base.by_dtype([tensor for tensor, _ in carried], reduced)
        return [restore(total) for total, (_, restore) in zip(totals, carried, strict=True)]

    def all_gather(self, tensor: tf.Tensor, *, key: str, equal_rows: bool = False) -> tf.Tensor:
        tensor = base.require_rows(wire_dtypes.copyable(tensor))
        if self.size == 1:
            return tensor
        rows = self._run("all_gather", key, int(equal_rows), tensor=tensor)
        count = self.size * tensor.shape[0] if equal_rows and tensor.shape[0] is not None else None
        return tf.ensure_shape(rows, [count, *tensor.shape[1:]])

    def reduce_scatter(self, tensor: tf.Tensor, *, key: str) -> tf.Tensor:
        tensor = base.require_rows(wire_dtypes.copyable(tensor))
        wire_dtypes.require_op(tensor.dtype, "sum")
        if self.size == 1:
            return tensor
        if tensor.dtype.is_complex:  # rows stay rows: the parts lie in an axis of their own
            part = tensor.dtype.real_dtype
            pair = tf.stack([tf.math.real(tensor), tf.math.imag(tensor)], axis=-1)
            total = self.reduce_scatter(pair, key=f"{key} parts")
            return tf.complex(tf.cast(total[..., 0], part), tf.cast(total[..., 1], part))
        carried, restore = wire_dtypes.for_op(tensor, _REDUCED)
        return restore(self._part(self._run("reduce_scatter", key, tensor=carried), tensor, times=1))

    def broadcast(self, tensor: tf.Tensor, *, key: str, root: int = 0) -> tf.Tensor:
        base.require_rank("root", root, self.size)
        tensor = wire_dtypes.copyable(tensor)
        return tensor if self.size == 1 else self._run("broadcast", key, root, tensor=tensor)

    def broadcast_all(self, tensors: Sequence[tf.Tensor], *, key: str) -> list[tf.Tensor]:
        """Return member 0's values; for replicas of a process, the tensors of each dtype are one operation."""
        if self._number > 0 or self.size == 1:
            return [self.broadcast(one, key=f"{key} {index}") for index, one in enumerate(tensors)]
        return base.by_dtype(tensors, lambda number, same: self._run("hand_out", f"{key} {number}", 0, tensors=same))

    def all_to_all(self, tensor: tf.Tensor, *, key: str) -> tf.Tensor:
        tensor = base.require_rows(wire_dtypes.copyable(tensor))
        if self.size == 1:
            return tensor
        return self._part(self._run("all_to_all", key, tensor=tensor), tensor, times=self.size)

    def send(self, tensor: tf.Tensor, *, key: str, to: int) -> tf.Operation:
        base.require_other("to", to, self)
        tensor = wire_dtypes.copyable(tensor)
        name, between = f"{self.rank} {to} {key}", (self.rank, to)
        number = self._run("send_start", name, between=between, tensor=tensor)
        return self._run("send_wait", name, between=between, number=number)

    def start_of(self, sent: tf.Operation) -> tf.Operation | None:
        return sent.inputs[0].op if self._number > 0 else None  # replicas wait for each other in it

    def receive(self, spec: tf.TensorSpec, *, key: str, source: int) -> tf.Tensor:
        base.require_other("source", source, self)
        base.require_known(spec)
        wire_dtypes.require_copy(spec.dtype)
        like = tf.zeros(spec.shape, spec.dtype)
        return self._run("receive", f"{source} {self.rank} {key}", between=(source, self.rank), like=like)

    def waits_for(self) -> str:
        return self._library.waits_for(self._number)

    def abort(self, reason: str) -> None:
        """End the waits of all members of the job at once; nothing travels between them afterwards."""
        self._library.abort(self._number, reason)
        if self._beside is not None:
            self._beside.abort(reason)

    def explain(self, error: BaseException, what: str) -> Exception | None:
        """Return an error of tfdist for a failure of these collectives, or None if the failure is not theirs."""
        text = str(error)
        for mark in (native.DIFFERENT, native.BROKEN):
            _, found, rest = text.partition(mark)
            if not found:
                continue
            cause = cause_of(rest or "no cause is known")
            if mark == native.DIFFERENT:
                return base.disagreement(f"members do different things: {cause}, in {what}")
            if native.LATE in cause:
                return DeadlineError(
                    f"member {self.rank} of {self.size} was in {what} when the collectives ended: {cause}. Every "
                    "worker must call fit, evaluate and predict alike; see in the others' output what they do. If "
                    "steps take that long, give more time (timeout_seconds)."
                )
            return base.lost(self, what, cause)
        return None if self._beside is None else self._beside.explain(error, what)

    def _run(
        self, name: str, key: str, argument: int = 0, *, between: tuple[int, int] | None = None, **tensors: Any
    ) -> Any:
        ranks = self._members if between is None else sorted(self._members[rank] for rank in between)
        operation = getattr(self._library.ops, f"tfdist_{'' if self._order is None else 'ordered_'}{name}")
        if self._order is not None:
            tensors["order"] = self._order
        # The kind is no part of it: members that run different operations under one key are told so.
        number = _number_of(f"{self._lane}{'all' if between is None else 'two'} {ranks} {key}")
        with tf.device(self.device):
            results = operation(**tensors, engine=self._number, key=number, argument=argument, ranks=ranks)
        return traced_uses.independent(results)  # members meet by keys, in whatever order they come

    def _part(self, rows: tf.Tensor, whole: tf.Tensor, *, times: int) -> tf.Tensor:
        count = None if whole.shape[0] is None else times * base.cut(whole, self.size)[self.rank]
        return tf.ensure_shape(rows, [count, *whole.shape[1:]])


class Job:
    """The processes that `join` has brought together.

    The job ends with the process, by `stop`, or when neither it nor a collective of it is used any more. Operations of
    functions that were traced with it raise an error then.

    Attributes:
        hosts: the number of each rank's host.
        number: the number of this process's engine.
    """

    def __init__(self, number: int, *, rank: int, hosts: Sequence[int], device: str, beside: Collective | None) -> None:
        self.size = len(hosts)
        self.rank = rank
        self.hosts = tuple(hosts)
        self.number = number
        self._device = device
        self._beside = beside
        self._end = weakref.finalize(self, _end, number, os.getpid())
        self._end.atexit = False  # it would be called after what TensorFlow has registered
        atexit.register(self._end)

    def collective(self, members: Sequence[int] | None = None) -> NativeCollective | None:
        """Return the collective of some members, or None on others; it costs nothing, and others need not call this."""
        group = list(range(self.size)) if members is None else list(members)
        if self.rank not in group:
            return None
        return NativeCollective(
            self.number,
            members=group,
            rank=group.index(self.rank),
            hosts=base.hosts_of([self.hosts[rank] for rank in group]),
            device=self._device,
            beside=self._beside,
            job=self,
        )

    def stop(self) -> None:
        """End this process's part, so that `join` may be called again; members that wait for it get an error.

        In a fork of this process, which has no part of its own, this does nothing.
        """
        self._end()
        atexit.unregister(self._end)


def _end(number: int, process: int) -> None:
    if os.getpid() == process:
        native.engines().stop(number)


def join(
    *,
    rank: int,
    exchange: Exchange,
    address: str = "127.0.0.1",
    host: str | None = None,
    silent_seconds: float = 20.0,
    timeout_seconds: float = 0.0,
    device: str = "/device:CPU:0",
    beside: Collective | None = None,
    secret: bytes | None = None,
    algorithm: str | None = None,
) -> Job:
    """Connect the processes of a job, which call this at the same time; a process may be in several jobs.

    Processes prove that they share a host: one makes unnamed shared memory, and the others show that they read what it
    has written. If memory is short, or containers share no PID namespace, processes use TCP, and a warning says so.
    All processes are connected when this returns.
    """
    algorithm = algorithm or ALL_REDUCE_ALGORITHM.read(os.environ) or None
    if algorithm is not None:
        validation.one_of(ALL_REDUCE_ALGORITHM.name, algorithm, native.ALGORITHMS)
    try:
        library, error = native.engines(), ""
    except (TfdistError, OSError) as failed:
        library, error = None, str(failed)
    host = host or HOST_ID.read(os.environ) or None
    machine = byte_exchange.machine() if host is None else host
    mine = byte_exchange.this_host(machine) if host is None else host
    said = {"machine": machine, "host": mine, "drawn": secrets.token_hex(32)}
    told = agreed(exchange, error, secret="no" if secret is None else "yes", **said)
    assert library is not None  # or this one would have said why
    key = _key(secret, told)
    byte_exchange.tell_of_containers(told, rank)
    segment, hosts = byte_exchange.shared(library, exchange, rank, base.hosts_of([one["host"] for one in told]))
    listener, addresses = 0, [(address, 0)] * len(hosts)
    if len(set(hosts)) > 1:
        listener, port, error = library.listen(address)
        try:
            told = agreed(exchange, error, address=address, port=str(port), algorithm=algorithm or "")
        except BaseException:
            library.leave(segment, listener)
            raise
        addresses = [(one["address"], int(one["port"])) for one in told]
    members = native.Members(
        rank=rank,
        hosts=hosts,
        indexes=tuple(hosts[:index].count(one) for index, one in enumerate(hosts)),
        addresses=tuple(addresses),
        key=key,
        silent_seconds=silent_seconds,
        timeout_seconds=timeout_seconds,
    )
    number = library.start(segment, listener, members)
    job = Job(number, rank=rank, hosts=hosts, device=device, beside=beside)
    try:
        _meet(job)
        if len(set(hosts)) > 1:
            _choose(job, library, [one["algorithm"] for one in told])
    except BaseException:
        job.stop()
        raise
    return job


def _key(secret: bytes | None, told: Sequence[Mapping[str, str]]) -> bytes:
    """Return the key of this job's connections, of which every member draws a part."""
    without = [str(rank) for rank, one in enumerate(told) if one["secret"] == "no"]
    if secret is None and len(without) == len(told):
        return bytes.fromhex(told[0]["drawn"])
    if secret is None or without:
        raise ConfigError(
            f"the workers {', '.join(without)} of {len(told)} have no {JOB_KEY.name}, and the others have one. "
            "Hand the same to all of them, or to none."
        )
    return job_key.derived(secret, "native collectives", [one["drawn"] for one in told])


def _meet(job: Job) -> None:
    """Wait until all members are connected; from then on a connection shows which member is lost."""
    everybody = job.collective()
    assert everybody is not None  # it is one of all
    try:
        everybody.all_reduce([tf.zeros([])], key="joined")
    except tf.errors.OpError as error:
        explained = everybody.explain(error, _START)
        if explained is None:
            raise
        raise explained from error


def _choose(job: Job, library: native.Engines, named: Sequence[str]) -> None:
    if len(set(named)) > 1:
        every = ", ".join(f"member {rank}: {name or 'none'}" for rank, name in enumerate(named))
        raise ConfigError(
            f"members name different algorithms of all_reduce ({every}). Set {ALL_REDUCE_ALGORITHM.name} alike on all "
            "of them, or on none."
        )
    failed = library.choose(job.number, named[0] or None)
    if failed:
        everybody = job.collective()
        assert everybody is not None  # it is one of all
        raise everybody.explain(RuntimeError(failed), _START) or TfdistError(failed)


def of_workers(
    carrier: Collective,
    *,
    device: str,
    exchange: Exchange | None = None,
    address: str = "127.0.0.1",
    timeout_seconds: float = 0.0,
) -> NativeCollective:
    """Return the collective of members that another backend has connected; the secret is the key of `tfdist run`."""
    found = join(
        rank=carrier.rank,
        exchange=exchange_over(carrier) if exchange is None else exchange,
        address=address,
        timeout_seconds=timeout_seconds,
        device=device,
        beside=carrier,
        secret=job_key.from_environment(os.environ),
    ).collective()
    assert found is not None  # it is one of all
    return found


def _number_of(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)
