"""The collectives of TensorFlow, by public raw operations: a ring over gRPC between CPUs, NCCL between whole GPUs.

TensorFlow knows an operation by the numbers of a group and an instance, and binds an instance to a kind, dtype and
shape for the life of the process. So an instance's number is made of the key and, at run time, the shape. Operations of
a group wait for a token, so that all members begin them in traced order; else members on one device would block each
other for ever. Where they ask for NCCL (`gpu_cards`), all groups of a device wait for one token: communicators that
share a card must begin their operations in one order too. (Broadcasts need no token, and never ask for NCCL.)

Costs, for S bytes on n members: `all_reduce` 2 S (n - 1) / n for each member; `all_gather` asks for the numbers of rows
first, and moves n - 1 times the rows of the member that has most; `all_to_all` and `reduce_scatter` S (n - 1) / n, from
each member to each other; `broadcast` a tree of S per edge; `send` S. Between processes each takes some milliseconds.
TensorFlow's own all-to-all silently mixes up parts from twelve members on ("1" to "10" and "11" to "0" have one name),
and its reduce-scatter is NCCL's alone, so neither is used.
"""

import functools
import hashlib
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.cluster.cluster_values import Cluster, split_address
from tfdist.collectives import collective, fallbacks, gpu_cards, in_flight, wire_dtypes
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.errors import ConfigError, cause_of
from tfdist.monitor.process_clock import step_clock

_log = logging.getLogger(__name__)
_REDUCED = (tf.float32, tf.float64, tf.int32, tf.int64)
_MERGE_OPS = {"sum": "Add", "min": "Min", "max": "Max"}
_MIX = 1_000_003

_Tensors = list[tf.Tensor]


class TensorFlowCollective:
    """One member of a group of devices, of processes in TensorFlow's collectives or of this process alone."""

    matches_by_count = False
    keeps_program_order = True  # the operations of a graph run in the order in which they were traced
    sends_directly = False

    def __init__(
        self,
        *,
        group_key: int,
        size: int,
        rank: int,
        device: str,
        hosts: Sequence[int],
        abort: Callable[[str], None],
        hint: str = gpu_cards.BETWEEN_CPUS,
    ) -> None:
        self.size = size
        self.rank = collective.require_rank("rank", rank, size)
        self.hosts = tuple(hosts)
        self._group_key = group_key
        self._device = device
        self._abort = abort
        self._hint = hint
        self._side_effect = fallbacks.SideEffect(f"tfdist_took_part_{group_key}_{rank}", device)
        self._under_way = in_flight.of_process()
        self._functions: dict[Hashable, Any] = {}
        self._keys: dict[int, str] = {}
        is_nccl = hint == gpu_cards.NCCL
        self._token = _order_on_card(device) if is_nccl else _token(device, f"tfdist_order_{group_key}_{rank}")

    def among(self, members: Sequence[int], group_key: int | None = None) -> "TensorFlowCollective | None":
        """Return the collective of some of the members, which all draw the same numbers; see `Collective.among`."""
        group_key = tf_strategies.new_group_key(within_worker=False) if group_key is None else group_key
        if self.rank not in members:
            return None
        return TensorFlowCollective(
            group_key=group_key,
            size=len(members),
            rank=list(members).index(self.rank),
            device=self._device,
            hosts=collective.hosts_of([self.hosts[rank] for rank in members]),
            abort=self._abort,
            hint=self._hint,
        )

    def all_reduce(self, tensors: Sequence[tf.Tensor], *, key: str, op: str = "sum") -> list[tf.Tensor]:
        collective.require_op(op)
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        for tensor in tensors:
            wire_dtypes.require_op(tensor.dtype, op)
        return self._run(("all_reduce", key, op), lambda given: self._reduced(given, key, op), tensors)

    def all_gather(self, tensor: tf.Tensor, *, key: str, equal_rows: bool = False) -> tf.Tensor:
        tensor = collective.require_rows(wire_dtypes.copyable(tensor))
        return self._run(("all_gather", key), lambda given: [self._gathered(given[0], key)], [tensor])[0]

    def reduce_scatter(self, tensor: tf.Tensor, *, key: str) -> tf.Tensor:
        tensor = collective.require_rows(wire_dtypes.copyable(tensor))
        wire_dtypes.require_op(tensor.dtype, "sum")

        def scattered(given: _Tensors) -> _Tensors:
            return [fallbacks.reduce_scatter(self, given[0], key=key)]

        return self._run(("reduce_scatter", key), scattered, [tensor])[0]

    def broadcast(self, tensor: tf.Tensor, *, key: str, root: int = 0) -> tf.Tensor:
        collective.require_rank("root", root, self.size)
        tensor = wire_dtypes.copyable(tensor)

        def handed_out(given: _Tensors) -> _Tensors:
            words, restore = _flat(given[0])
            name = f"broadcast {root} {key}"
            group = (self._group_key, self.size)
            arrived = (self._sent if root == self.rank else self._received)(words, name, group)
            self._side_effect.after(arrived)
            return fallbacks.shaped([restore(_first(arrived, collective.count_of(words)))], given)

        return self._run(("broadcast", key, root), handed_out, [tensor])[0]

    def all_to_all(self, tensor: tf.Tensor, *, key: str) -> tf.Tensor:
        tensor = collective.require_rows(wire_dtypes.copyable(tensor))
        return self._run(("all_to_all", key), lambda given: [self._exchanged(given[0], key)], [tensor])[0]

    def send(self, tensor: tf.Tensor, *, key: str, to: int) -> tf.Operation:
        """Send by a broadcast in a group of the two members."""
        collective.require_other("to", to, self)
        tensor = wire_dtypes.copyable(tensor)

        def sent(given: _Tensors) -> _Tensors:
            return [self._sent(_flat(given[0])[0], f"send {self.rank} {to} {key}", self._pair(self.rank, to))]

        (words,) = self._run(("send", key, to), sent, [tensor])
        return self._side_effect.after(words)

    def start_of(self, sent: tf.Operation) -> tf.Operation | None:
        return None

    def receive(self, spec: tf.TensorSpec, *, key: str, source: int) -> tf.Tensor:
        collective.require_other("source", source, self)
        collective.require_known(spec)
        wire_dtypes.require_copy(spec.dtype)

        def received(_: _Tensors) -> _Tensors:
            words, restore = _flat(tf.zeros(spec.shape, spec.dtype))
            name = f"send {source} {self.rank} {key}"
            arrived = self._received(words, name, self._pair(self.rank, source))
            self._side_effect.after(arrived)
            return [tf.reshape(restore(arrived), spec.shape)]

        return self._run(("receive", key, source, spec), received, [])[0]

    def waits_for(self) -> str:
        """Describe the collectives in flight, from any thread; "" if none, or if not recorded."""
        return "" if self._under_way is None else self._under_way.text()

    def abort(self, reason: str) -> None:
        """End all collectives of this process; its peers notice when it ends, or by their own deadlines."""
        self._abort(reason)

    def explain(self, error: BaseException, what: str) -> Exception | None:
        """Return an error of tfdist for a failure of TensorFlow's collectives, or None if the failure is not theirs."""
        text = str(error)
        if "Collective instance" in text or "in the collective instance" in text or "CollectiveOp" in text:
            doing = f"members do different things: member {self.rank} was in {what}"
            return collective.disagreement(doing, told=f"TensorFlow: {cause_of(text)}")
        lost = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
        ended = isinstance(error, (*lost, tf.errors.DeadlineExceededError)) or "ollective ops is aborted" in text
        return collective.lost(self, what, cause_of(text)) if ended else None

    # What the operations are made of; called in a function.

    def _run(
        self, how: tuple[Hashable, ...], function: Callable[[_Tensors], _Tensors], given: Sequence[tf.Tensor]
    ) -> _Tensors:
        """Call a function here, or eagerly as a traced one: each eager collective would start a pool of threads."""

        def placed(given: _Tensors) -> _Tensors:
            with tf.device(self._device):
                given = [tf.identity(tensor) for tensor in given]
                if self._under_way is None:
                    return function(given)
                return self._under_way.noted(_described(how, given), self._device, given, lambda: function(given))

        if not tf.executing_eagerly():
            return placed(list(given))
        kinds = tuple((tensor.dtype, tensor.shape.rank) for tensor in given)
        made = self._functions.get((how, kinds))
        if made is None:
            made = self._functions[how, kinds] = tf.function(placed, reduce_retracing=True, autograph=False)
        return list(made(list(given)))

    def _reduced(self, tensors: _Tensors, key: str, op: str) -> _Tensors:
        def totals(_: int, same: _Tensors) -> _Tensors:
            dtype = same[0].dtype
            name = f"{op} {dtype.name} {key}"
            if dtype in fallbacks.HALVES and op == "sum":
                return fallbacks.sums_of_halves(self, same, key=name)
            return self._totals(same, name, op)

        return collective.by_dtype(tensors, totals)

    def _totals(self, tensors: _Tensors, name: str, op: str) -> _Tensors:
        carried = [wire_dtypes.for_op(tensor, _REDUCED, op) for tensor in tensors]
        flat = _not_empty(tf.concat([tf.reshape(tensor, [-1]) for tensor, _ in carried], axis=0))
        total = tf.raw_ops.CollectiveReduceV2(
            input=flat, merge_op=_MERGE_OPS[op], final_op="Id", **self._of_group(name, flat)
        )
        counts = [collective.count_of(tensor) for tensor, _ in carried]
        parts = tf.split(_first(total, sum(counts)), counts, num=len(tensors))
        shaped = fallbacks.shaped(parts, [tensor for tensor, _ in carried])
        return [restore(part) for part, (_, restore) in zip(shaped, carried, strict=True)]

    def _gathered(self, tensor: tf.Tensor, key: str) -> tf.Tensor:
        counts = self._rows_of_all(tf.shape(tensor)[:1], f"rows {key}")
        most = tf.reduce_max(counts)
        padded = _padded(tensor, most)
        words, restore = wire_dtypes.in_words(tf.reshape(padded, [1, -1]))
        table = self._rows_of_all(_not_empty(words), f"gather {tensor.dtype.name} {key}")
        table = restore(table[:, : tf.shape(words)[1]])
        every = tf.reshape(table, collective.with_rows([self.size, most], tensor))
        rows = tf.concat([every[rank, : counts[rank]] for rank in range(self.size)], axis=0)
        return tf.ensure_shape(rows, [None, *tensor.shape[1:]])

    def _rows_of_all(self, rows: tf.Tensor, name: str) -> tf.Tensor:
        return tf.raw_ops.CollectiveGatherV2(input=rows, **self._of_group(name, rows))

    def _exchanged(self, tensor: tf.Tensor, key: str) -> tf.Tensor:
        sizes = collective.cut(tensor, self.size)
        parts = tf.split(tensor, sizes, num=self.size)
        mine = parts[self.rank]
        words, restore = _flat(mine)
        arrived, leaving = [mine] * self.size, []
        for other in range(self.size):
            if other != self.rank:
                pair = self._pair(self.rank, other)
                name = f"exchange {self.rank} {other} {key}"
                leaving.append(self._sent(_flat(parts[other])[0], name, pair))
                flat = restore(self._received(words, f"exchange {other} {self.rank} {key}", pair))
                (arrived[other],) = fallbacks.shaped([flat], [mine])
        with tf.control_dependencies(leaving):  # or TensorFlow would drop them, as unused
            every = tf.concat(arrived, axis=0)
        self._side_effect.after(every)
        return tf.reshape(every, collective.with_rows([self.size * sizes[self.rank]], tensor))

    def _sent(self, words: tf.Tensor, name: str, group: tuple[int, int]) -> tf.Tensor:
        words = _not_empty(words)
        return tf.raw_ops.CollectiveBcastSendV2(
            input=words,
            group_key=group[0],
            group_size=group[1],
            instance_key=self._instance(f"{name} of {group}", collective.count_of(words)),
        )

    def _received(self, like: tf.Tensor, name: str, group: tuple[int, int]) -> tf.Tensor:
        words = _not_empty(like)
        arrived = tf.raw_ops.CollectiveBcastRecvV2(
            T=words.dtype,
            shape=tf.shape(words),
            group_key=group[0],
            group_size=group[1],
            instance_key=self._instance(f"{name} of {group}", collective.count_of(words)),
        )
        return _first(arrived, collective.count_of(like))

    def _of_group(self, name: str, tensor: tf.Tensor) -> dict[str, Any]:
        return {
            "group_size": self.size,
            "group_key": self._group_key,
            "instance_key": self._instance(name, collective.count_of(tensor)),
            "ordering_token": [self._token],
            "communication_hint": self._hint,
        }

    def _instance(self, name: str, count: Any) -> tf.Tensor:
        """Return the number of an operation on ``count`` elements, which all members compute in the same way."""
        number = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little", signed=True)
        if self._keys.setdefault(number, name) != name:
            raise ConfigError(
                f"the keys {self._keys[number]!r} and {name!r} have the same number in TensorFlow's 32 bits. Give one "
                "of the operations another key."
            )
        mixed = count * _MIX
        if isinstance(count, int):  # as int32 wraps
            return (number + mixed + 2**31) % 2**32 - 2**31
        return tf.constant(number, tf.int32) + mixed

    def _pair(self, one: int, other: int) -> tuple[int, int]:
        """Return the key and size of the group of two members."""
        first, second = min(one, other), max(one, other)
        return self._group_key + 1 + second * (second - 1) // 2 + first, 2


def of_workers(cluster: Cluster, members: Sequence[int]) -> TensorFlowCollective | None:
    """Return the collective of some workers' CPUs, or None on others.

    Every worker calls this for every group in the same order, so that all draw the same numbers.
    """
    group_key, members = tf_strategies.new_group_key(within_worker=False), list(members)
    if cluster.worker_index not in members:
        return None
    hosts = [split_address("address", address)[0] for address in cluster.require_addresses()]
    return TensorFlowCollective(
        group_key=group_key,
        size=len(members),
        rank=members.index(cluster.worker_index),
        device=f"/job:worker/replica:0/task:{cluster.worker_index}/device:CPU:0",
        hosts=collective.hosts_of([hosts[worker] for worker in members]),
        abort=tf_strategies.abort_collectives,
    )


def of_replicas(
    devices: Sequence[str], cluster: Cluster | None = None, cards: Sequence[str] | None = None
) -> list[TensorFlowCollective]:
    """Return the collectives of this process's replicas, in their order; ``cards`` has the cards of all replicas."""
    workers = 1 if cluster is None else cluster.num_workers
    first = 0 if cluster is None else cluster.worker_index * len(devices)
    addresses = () if cluster is None else cluster.addresses
    hosts = collective.hosts_of([split_address("address", address)[0] for address in addresses] or range(workers))
    group_key = tf_strategies.new_group_key(within_worker=cluster is None)
    reduces = gpu_cards.communication(gpu_cards.of_devices(devices) if cards is None else cards)
    if reduces.hint == gpu_cards.NCCL:
        _log.info("%d GPU replicas reduce by NCCL: %s.", workers * len(devices), reduces.why)
    elif reduces.hint == gpu_cards.RING and first == 0:
        step_clock().warn(f"GPU replicas reduce through host memory, not by NCCL: {reduces.why}.")
    return [
        TensorFlowCollective(
            group_key=group_key,
            size=workers * len(devices),
            rank=first + index,
            device=device,
            hosts=[host for host in hosts for _ in devices],
            abort=tf_strategies.abort_collectives,
            hint=reduces.hint,
        )
        for index, device in enumerate(devices)
    ]


def _token(device: str, name: str) -> tf.Tensor:
    """Return a resource that orders the operations of a graph that take it; no value is ever kept there."""
    with tf.init_scope(), tf.device(device):
        return tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name=name)


@functools.cache  # a graph orders operations by the tensor of a resource, not by its name
def _order_on_card(device: str) -> tf.Tensor:
    return _token(device, "tfdist_order_nccl")


def _described(how: tuple[Hashable, ...], given: _Tensors) -> str:
    kind = str(how[0])
    if kind == "all_reduce":
        kind += f" ({how[2]}, {', '.join(dict.fromkeys(tensor.dtype.name for tensor in given))})"
    elif len(how) > 2:
        kind += f" {'to' if kind == 'send' else 'from'} member {how[2]}"
    return in_flight.described(kind, given) if given else kind


def _flat(tensor: tf.Tensor) -> tuple[tf.Tensor, wire_dtypes.Restore]:
    words, restore = wire_dtypes.in_words(tf.reshape(tensor, [1, tf.size(tensor)]))
    return tf.reshape(words, [-1]), lambda arrived: restore(arrived[None])[0]


def _first(words: tf.Tensor, count: Any) -> tf.Tensor:
    """Return the first words, without an operation if there are no others."""
    return words if isinstance(count, int) and words.shape.num_elements() == count else words[:count]


def _not_empty(tensor: tf.Tensor) -> tf.Tensor:
    """Pad a tensor without elements, on which TensorFlow's collectives may crash."""
    known = tensor.shape[-1]
    if known:
        return tensor
    missing = tf.cast(tf.equal(tf.shape(tensor)[-1], 0), tf.int32)
    return tf.concat([tensor, tf.zeros(tf.stack([*tf.unstack(tf.shape(tensor)[:-1]), missing]), tensor.dtype)], axis=-1)


def _padded(rows: tf.Tensor, count: Any) -> tf.Tensor:
    if isinstance(count, int) and rows.shape[0] == count:
        return rows
    missing = count - (tf.shape(rows)[0] if rows.shape[0] is None else rows.shape[0])
    return tf.concat([rows, tf.zeros(collective.with_rows([missing], rows), rows.dtype)], axis=0)
