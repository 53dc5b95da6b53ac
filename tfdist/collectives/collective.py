"""The `Collective` protocol, which moves tensors between the members of a group, whatever the backend."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tfdist import validation
from tfdist.errors import ConfigError, DisagreementError, WorkerLostError

#: the operations that `all_reduce` has
OPS = ("sum", "min", "max")


class Collective(Protocol):
    """One member's end of a group; every operation but `send` and `receive` is called by all members.

    Guaranteed: results are equal bit for bit on all members that get the same result; 16-bit floats are added
    in float32 and rounded once; integers wrap as their own dtype does; copied tensors keep their bits. Text does not
    travel. Rows lie along the first axis.

    An operation may stand in a function, in a condition or a loop, as long as all members take the same branches. A
    member takes part whether it uses the result or not. A function that has failed because a member is gone, or because
    `abort` was called, raises the error of its backend; `explain` says what that error means.

    Attributes:
        size: the number of members.
        rank: this member's number among them, from 0.
        hosts: the number of each rank's host; equal numbers are one host.
        matches_by_count: whether operations match by how often their key was used. Then a function that fails on one
            member, and leaves operations out, must be followed by `abort`: its next ones would match older ones.
        keeps_program_order: whether the operations of a graph run in the order in which they were traced.
        sends_directly: whether members, each on a host of its own, send the parts of a sum straight to each other, and
            not around a ring.
    """

    size: int
    rank: int
    hosts: tuple[int, ...]
    matches_by_count: bool
    keeps_program_order: bool
    sends_directly: bool

    def among(self, members: Sequence[int], group_key: int | None = None) -> "Collective | None":
        """Return the collective of some of the members, or None if this one is not among them; all members call this.

        Args:
            members: the ranks of the members, in rising order.
            group_key: a number for the group that nothing else uses, the same on all members; None draws one if the
                backend needs it.
        Raises:
            UnsupportedError: the backend cannot make groups.
        """

    def all_reduce(self, tensors: Sequence[tf.Tensor], *, key: str, op: str = "sum") -> list[tf.Tensor]:
        """Return the sums, minima or maxima over the members, element by element.

        Args:
            tensors: numbers or bools, of the same shapes and dtypes on every member. A sum of bools is True if any is.
                They are reduced together, when the last of them is there.
            key: the name of the operation, the same on every member. Operations that may run at the same time in a
                group have different keys. The key is fixed when a step is traced.
            op: the reduction, one of `OPS`.
        Raises:
            ConfigError: ``op`` is not one of them.
            UnsupportedError: the dtype has no sum, minimum or maximum.
        """

    def all_gather(self, tensor: tf.Tensor, *, key: str, equal_rows: bool = False) -> tf.Tensor:
        """Return the rows of all members, in the order of their ranks.

        Args:
            tensor: numbers or bools, shape (rows, ...); members may have different numbers of rows.
            key: see `all_reduce`.
            equal_rows: whether all members have the same number of rows. Then backends need not exchange the numbers,
                which takes a latency. All members pass the same value.
        Raises:
            ConfigError: the tensor is a scalar, which has no rows.
            UnsupportedError: the tensor holds text.
        """

    def reduce_scatter(self, tensor: tf.Tensor, *, key: str) -> tf.Tensor:
        """Return this member's part of the sum over members; the parts are those of `cut`.

        Args:
            tensor: numbers or bools, shape (rows, ...), of the same shape and dtype on every member.
            key: see `all_reduce`.
        """

    def broadcast(self, tensor: tf.Tensor, *, key: str, root: int = 0) -> tf.Tensor:
        """Return the value of one member, bit for bit.

        Args:
            tensor: numbers or bools, of the same shape and dtype on every member; only the values of ``root`` are used.
            key: see `all_reduce`.
            root: the rank whose value is returned, the same on every member.
        """

    def all_to_all(self, tensor: tf.Tensor, *, key: str) -> tf.Tensor:
        """Return this member's part of every member's rows, concatenated; the parts are those of `cut`.

        Args:
            tensor: numbers or bools, shape (rows, ...), of the same shape and dtype on every member.
            key: see `all_reduce`.
        """

    def send(self, tensor: tf.Tensor, *, key: str, to: int) -> tf.Operation:
        """Send a tensor to one member, which calls `receive`; only these two take part.

        Args:
            tensor: numbers or bools.
            key: the name of the transfer; no other one between the two in this direction has it at the same time.
            to: the rank of the receiver.
        Returns:
            In a function, the operation that sends: the function runs it, whether it is used or not. Eagerly None,
            after the receiver has the tensor.
        """

    def start_of(self, sent: tf.Operation) -> tf.Operation | None:
        """Return the operation after which a send is under way, even if the receiver does not ask for it yet.

        Operations that must not delay a send begin after this one.

        Args:
            sent: the result of `send` in a function.
        Returns:
            The operation, or None if the backend cannot tell.
        """

    def receive(self, spec: tf.TensorSpec, *, key: str, source: int) -> tf.Tensor:
        """Return a tensor that another member sends.

        Args:
            spec: the spec of the tensor that is sent, with a known shape.
            key: the key of the send.
            source: the rank of the sender.
        """

    def waits_for(self) -> str:
        """Return, from any thread, what this member waits for; empty if it waits for nothing, or this is unknown."""

    def abort(self, reason: str) -> None:
        """End this process's waits with an error; no tensor travels in this collective afterwards.

        The others' waits end as when a member goes: under Horovod at once, under TensorFlow's collectives when this
        process has ended or the others' own deadline has passed.

        Args:
            reason: the reason, for the messages.
        """

    def explain(self, error: BaseException, what: str) -> Exception | None:
        """Return an error of tfdist for a failure of this backend, or None if the failure is not the backend's.

        Args:
            error: the error that TensorFlow raised.
            what: the operation that this member was in, for the message.
        """


class Notes(Protocol):
    """Texts that members leave for each other by name, without a collective that all must join."""

    def leave_note(self, key: str, text: str) -> None:
        """Leave a note, to be read now or later."""

    def wait_for_note(self, key: str, timeout_seconds: float) -> str | None:
        """Return the note's text as soon as it is left; None if it was not left in time, or never can be."""


def disagreement(what: str, *, told: str = "") -> DisagreementError:
    """Return the error of members that do different things."""
    return DisagreementError(
        f"{what}. Every worker must build the same model and call compile, fit, evaluate, predict and reductions in "
        f"the same order.{told and f' ({told})'}"
    )


def lost(member: Collective, what: str, cause: str) -> WorkerLostError:
    """Return the error of a member whose collectives have ended."""
    return WorkerLostError(
        f"member {member.rank} of {member.size} was in {what} when the collectives ended: {cause}. See the other "
        "workers' output for the first that failed, then start the job again."
    )


def hosts_of(names: Sequence[Hashable]) -> tuple[int, ...]:
    """Number the hosts of members, given an identity of each member's host."""
    numbers: dict[Hashable, int] = {}
    return tuple(numbers.setdefault(name, len(numbers)) for name in names)


def by_dtype(
    tensors: Sequence[tf.Tensor], run: Callable[[int, list[tf.Tensor]], Sequence[tf.Tensor]]
) -> list[tf.Tensor]:
    """Run a function once for all tensors of each dtype, which are numbered; return results in the tensors' order."""
    results: list[Any] = [None] * len(tensors)
    for number, dtype in enumerate(dict.fromkeys(tensor.dtype for tensor in tensors)):
        mine = [index for index, tensor in enumerate(tensors) if tensor.dtype == dtype]
        for index, result in zip(mine, run(number, [tensors[index] for index in mine]), strict=True):
            results[index] = result
    return results


def cut(tensor: tf.Tensor, size: int) -> list[Any]:
    """Return the number of rows of a tensor for each of ``size`` members; member r has those from rows r / size on.

    The numbers are int32 scalars if the number of rows is unknown when a function is traced.

    Example:
        >>> cut(tf.zeros([7, 2]), 3), cut(tf.zeros([1]), 2)
        ([2, 2, 3], [0, 1])
    """
    rows = tensor.shape[0]
    if rows is not None:
        return [rows * (rank + 1) // size - rows * rank // size for rank in range(size)]
    begins = tf.shape(tensor, tf.int64)[0] * tf.range(size + 1, dtype=tf.int64) // size
    return tf.unstack(tf.cast(begins[1:] - begins[:-1], tf.int32), num=size)


def with_rows(counts: Sequence[Any], tensor: tf.Tensor) -> Any:
    """Return the shape that begins with these numbers and continues with a tensor's second axis, for `tf.reshape`."""
    inner = tensor.shape[1:]
    if inner.is_fully_defined():
        return [*counts, *inner.as_list()]
    return tf.concat([tf.stack(list(counts)), tf.shape(tensor)[1:]], axis=0)


def count_of(tensor: tf.Tensor) -> Any:
    """Return the number of a tensor's elements: an int if known, else an int32 scalar."""
    known = tensor.shape.num_elements()
    return tf.size(tensor) if known is None else known


def require_op(op: str) -> str:
    return op if op in OPS else validation.one_of("op", op, OPS)


def require_rows(tensor: Any) -> tf.Tensor:
    tensor = tf.convert_to_tensor(tensor)
    if tensor.shape.rank == 0:
        raise ConfigError(f"a scalar ({tensor.dtype.name}) has no rows; pass a tensor of one axis or more.")
    return tensor


def require_rank(name: str, rank: int, size: int) -> int:
    return validation.integer(name, rank, minimum=0, maximum=size - 1)


def require_other(name: str, rank: int, collective: Collective) -> int:
    require_rank(name, rank, collective.size)
    if rank == collective.rank:
        raise ConfigError(f"{name} is {rank}, which is this member; a tensor is sent to another member.")
    return rank


def require_known(spec: tf.TensorSpec) -> tf.TensorSpec:
    if not spec.shape.is_fully_defined():
        raise ConfigError(
            f"spec has the shape {spec.shape}; what is received has to be known when a step is traced. Give every axis "
            "a size, such as by padding the last batch."
        )
    return spec
