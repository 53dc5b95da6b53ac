"""The collectives of Horovod: over TCP by gloo, over MPI, or over NCCL, depending on its build.

Horovod matches operations of the same name, in whatever order ranks come to them; a name is the key. Each operation
waits for the next cycle of Horovod, a millisecond, and until all peers have reported it.

Costs, for S bytes on n members: `all_reduce` 2 S (n - 1) / n for each member, also for 16-bit floats, which go there
and back as rows; `all_gather` the rows of all others; `all_to_all` and `reduce_scatter` S (n - 1) / n; `broadcast` is a
sum with zeros, 2 S (n - 1) / n; `send` S, and it needs a process set of the two.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist.collectives import collective, fallbacks, in_flight, wire_dtypes
from tfdist.compat.horovod import horovod_ops
from tfdist.errors import ConfigError, UnsupportedError


class HorovodCollective:
    """The collective of the ranks of a Horovod process set."""

    keeps_program_order = False
    sends_directly = False
    matches_by_count = True  # by name, whichever step of a member it is in

    def __init__(
        self,
        process_set: Any,
        *,
        size: int,
        rank: int,
        hosts: Sequence[int],
        abort: Callable[[str], None],
        explain: Callable[[BaseException, str], Exception | None],
        pairs: Mapping[int, Any] | None = None,
        device: str = "",
    ) -> None:
        self.size = size
        self.rank = collective.require_rank("rank", rank, size)
        self.hosts = tuple(hosts)
        self._process_set = process_set
        self._device = device or "/device:CPU:0"
        self._pairs = dict(pairs or {}) | ({1 - rank: process_set} if size == 2 else {})
        self._side_effect = fallbacks.SideEffect(f"tfdist_took_part_{process_set.process_set_id}", self._device)
        self._under_way = in_flight.of_process()
        self._abort = abort
        self._explain = explain

    # Horovod's operations have no state, as TensorFlow sees them: a member that looks at no result of an operation
    # would leave it out, and the others would wait. So each has a side effect.

    def all_reduce(self, tensors: Sequence[tf.Tensor], *, key: str, op: str = "sum") -> list[tf.Tensor]:
        collective.require_op(op)
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        carried = [self._carried(tensor, op) for tensor in tensors]
        if self.size == 1:
            return tensors
        has_one_dtype = len({tensor.dtype for tensor, _ in carried}) == 1

        def reduced(_: int, same: list[tf.Tensor]) -> list[tf.Tensor]:
            dtype = same[0].dtype
            name = key if has_one_dtype else f"{key} {dtype.name}"
            if dtype in fallbacks.HALVES and op == "sum":
                return fallbacks.sums_of_halves(self, same, key=name)
            return self._reduced(same, name, op)

        totals = collective.by_dtype([tensor for tensor, _ in carried], reduced)
        return [restore(total) for total, (_, restore) in zip(totals, carried, strict=True)]

    def _carried(self, tensor: tf.Tensor, op: str) -> tuple[tf.Tensor, wire_dtypes.Restore]:
        # Eagerly in float32, by the one operation that all sums have: see `keys`.
        halves = tensor.dtype in fallbacks.HALVES and op == "sum"
        if halves and not tf.executing_eagerly():
            return tensor, lambda total: total
        reduced = [dtype for dtype in horovod_ops.REDUCED if not (halves and dtype == tensor.dtype)]
        return wire_dtypes.for_op(tensor, reduced, op)

    def _reduced(self, tensors: list[tf.Tensor], key: str, op: str, kind: str = "") -> list[tf.Tensor]:
        first, *others = tensors

        def run() -> list[tf.Tensor]:
            return list(horovod_ops.all_reduce([_not_folded(first), *others], _name(key), self._process_set, op=op))

        totals = self._noted(kind or f"all_reduce ({op}, {first.dtype.name})", tensors, run)
        self._side_effect.after(totals[0])
        return [tf.ensure_shape(totals[0], first.shape), *totals[1:]]

    def all_gather(self, tensor: tf.Tensor, *, key: str, equal_rows: bool = False) -> tf.Tensor:
        tensor = collective.require_rows(tensor)
        carried, restore = wire_dtypes.for_copy(tensor)
        if self.size == 1:
            return tensor

        def run() -> list[tf.Tensor]:
            return [horovod_ops.all_gather(_not_folded(carried), _name(key), self._process_set)]

        (gathered,) = self._noted("all_gather", [carried], run)
        self._side_effect.after(gathered)
        return tf.ensure_shape(restore(gathered), [None, *tensor.shape[1:]])

    def reduce_scatter(self, tensor: tf.Tensor, *, key: str) -> tf.Tensor:
        tensor = collective.require_rows(tensor)
        wire_dtypes.require_op(tensor.dtype, "sum")
        return tensor if self.size == 1 else fallbacks.reduce_scatter(self, tensor, key=key)

    def broadcast(self, tensor: tf.Tensor, *, key: str, root: int = 0) -> tf.Tensor:
        """Return one member's value, as a sum with zeros.

        Horovod's own broadcast would not report a rank that reduces something else, and is no faster with four ranks
        or more.
        """
        collective.require_rank("root", root, self.size)
        tensor = tf.convert_to_tensor(tensor)
        carried, restore = wire_dtypes.for_copy(tensor)
        if self.size == 1:
            return tensor
        mine = carried if self.rank == root else tf.zeros_like(carried)
        (total,) = self._reduced([mine], key, "sum", f"broadcast from member {root}")
        return restore(total)

    def all_to_all(self, tensor: tf.Tensor, *, key: str) -> tf.Tensor:
        tensor = collective.require_rows(tensor)
        bits, restore = wire_dtypes.for_copy(tensor)
        if self.size == 1:
            return tensor
        sizes = collective.cut(tensor, self.size)
        splits = tf.stack([tf.cast(size, tf.int32) for size in sizes])

        def run() -> list[tf.Tensor]:
            return [horovod_ops.all_to_all(bits, _not_folded(splits), _name(key), self._process_set)]

        (arrived,) = self._noted("all_to_all", [bits], run)
        self._side_effect.after(arrived)
        return tf.reshape(restore(arrived), collective.with_rows([self.size * sizes[self.rank]], tensor))

    def send(self, tensor: tf.Tensor, *, key: str, to: int) -> tf.Operation:
        """Send by an exchange of rows between the two members, of which only this one has any."""
        tensor = tf.convert_to_tensor(tensor)
        arrived = self._moved(tensor, f"{key} {self.rank} {to}", "to", to, sends=True)
        return self._side_effect.after(arrived)

    def start_of(self, sent: tf.Operation) -> tf.Operation | None:
        return None

    def receive(self, spec: tf.TensorSpec, *, key: str, source: int) -> tf.Tensor:
        collective.require_known(spec)
        nothing = tf.zeros(spec.shape, spec.dtype)
        arrived = self._moved(nothing, f"{key} {source} {self.rank}", "source", source, sends=False)
        self._side_effect.after(arrived)
        return tf.reshape(arrived, spec.shape)

    def _moved(self, tensor: tf.Tensor, key: str, name: str, other: int, *, sends: bool) -> tf.Tensor:
        collective.require_other(name, other, self)
        bits, restore = wire_dtypes.for_copy(tf.reshape(tensor, [-1]))
        pair = self._pairs.get(other)
        if pair is None:
            raise ConfigError(
                f"{name} is {other}, and Horovod was started without a process set of the members {self.rank} and "
                f"{other}, which it needs to send from one to the other. Give their workers as one of the groups when "
                "Horovod is started, alike on every worker."
            )
        count = tf.shape(bits)[0] if sends else 0
        splits = tf.stack([0, count] if self.rank < other else [count, 0])
        rows = bits if sends else bits[:0]

        def run() -> list[tf.Tensor]:
            return [horovod_ops.all_to_all(rows, _not_folded(splits), _name(key), pair)]

        (moved,) = self._noted(f"{'send to' if sends else 'receive from'} member {other}", [bits], run)
        return restore(moved)

    def _noted(self, kind: str, given: list[tf.Tensor], run: Callable[[], list[tf.Tensor]]) -> list[tf.Tensor]:
        with tf.device(self._device):
            if self._under_way is None:
                return run()
            return self._under_way.noted(in_flight.described(kind, given), self._device, given, run)

    def among(self, members: Sequence[int], group_key: int | None = None) -> None:
        """Refuse: Horovod must know its groups when it starts; see `Collective.among`."""
        raise UnsupportedError(
            "Horovod's collectives make no groups of some of their members. Choose native or TensorFlow's collectives."
        )

    def waits_for(self) -> str:
        """Describe the collectives in flight, from any thread; "" if none, or if not recorded."""
        return "" if self._under_way is None else self._under_way.text()

    def abort(self, reason: str) -> None:
        """Stop Horovod on every rank; waiting ranks get an error."""
        self._abort(reason)

    def explain(self, error: BaseException, what: str) -> Exception | None:
        """Return an error of tfdist for a failure of Horovod, or None if the failure is not Horovod's."""
        return self._explain(error, what)


def _name(key: str) -> str:
    """Return the name of an operation, in the characters that TensorFlow allows; it differs for each key."""
    return "tfdist_" + re.sub(r"[^A-Za-z0-9_.]", lambda found: f"-{ord(found[0]):x}-", key)


def _not_folded(tensor: tf.Tensor) -> tf.Tensor:
    """Keep TensorFlow from folding the reduction of a constant.

    A worker that traces anew would be alone in that reduction. A tensor without elements is a constant to TensorFlow,
    unless its shape is unknown before the function runs.
    """
    if tf.executing_eagerly():
        return tensor
    if tensor.shape.num_elements() == 0:
        nothing = tf.zeros([horovod_ops.zero(tf.int32), *tensor.shape[1:]], tensor.dtype)
        return tf.concat([tensor, nothing], axis=0)
    return tensor if _varies(tensor) else tensor + horovod_ops.zero(tensor.dtype)


def _varies(tensor: tf.Tensor) -> bool:
    """Return whether a tensor of a traced function depends on an input, a variable or another state."""
    seen, ahead = set(), [tensor.op]
    while ahead:
        op = ahead.pop()
        if op in seen:
            continue
        seen.add(op)
        if op.type == "Placeholder" or op.op_def.is_stateful:
            return True
        ahead.extend(value.op for value in op.inputs)
    return False
