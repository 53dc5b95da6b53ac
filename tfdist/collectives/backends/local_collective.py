"""The collective of a member that is alone: whatever it reduces is what it has."""

from collections.abc import Sequence

import tensorflow as tf

from tfdist.collectives import collective, wire_dtypes

__all__ = ["LocalCollective"]


class LocalCollective:
    """A group of one, which costs nothing.

    Example:
        >>> LocalCollective().all_reduce([tf.constant([1.0, 2.0])], key="sums")[0].numpy().tolist()
        [1.0, 2.0]
    """

    size = 1
    rank = 0
    hosts: tuple[int, ...] = (0,)
    matches_by_count = False
    keeps_program_order = False

    def among(self, members: Sequence[int], group_key: int | None = None) -> "LocalCollective | None":
        """Return itself, if it is among the members; see `Collective.among`."""
        return self if self.rank in members else None

    def all_reduce(self, tensors: Sequence[tf.Tensor], *, key: str, op: str = "sum") -> list[tf.Tensor]:
        """Return the tensors; see `Collective.all_reduce`."""
        collective.require_op(op)
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        for tensor in tensors:
            wire_dtypes.require_op(tensor.dtype, op)
        return tensors

    def all_gather(self, tensor: tf.Tensor, *, key: str) -> tf.Tensor:
        """Return the rows; see `Collective.all_gather`."""
        tensor = collective.require_rows(tf.convert_to_tensor(tensor))
        wire_dtypes.require_copy(tensor.dtype)
        return tensor

    def reduce_scatter(self, tensor: tf.Tensor, *, key: str) -> tf.Tensor:
        """Return the rows; see `Collective.reduce_scatter`."""
        return collective.require_rows(self.all_reduce([tensor], key=key)[0])

    def broadcast(self, tensor: tf.Tensor, *, key: str, root: int = 0) -> tf.Tensor:
        """Return the tensor; see `Collective.broadcast`."""
        collective.require_rank("root", root, 1)
        tensor = tf.convert_to_tensor(tensor)
        wire_dtypes.require_copy(tensor.dtype)
        return tensor

    def all_to_all(self, tensor: tf.Tensor, *, key: str) -> tf.Tensor:
        """Return the rows; see `Collective.all_to_all`."""
        return self.all_gather(tensor, key=key)

    def send(self, tensor: tf.Tensor, *, key: str, to: int) -> tf.Operation:
        """Refuse: there is nobody else."""
        collective.require_other("to", to, self)

    def start_of(self, sent: tf.Operation) -> tf.Operation | None:
        """Return None: there is nobody else; see `Collective.start_of`."""
        return None

    def receive(self, spec: tf.TensorSpec, *, key: str, source: int) -> tf.Tensor:
        """Refuse: there is nobody else."""
        collective.require_other("source", source, self)

    def waits_for(self) -> str:
        """Return nothing: there is no other member."""
        return ""

    def abort(self, reason: str) -> None:
        """Do nothing: nobody waits."""

    def explain(self, error: BaseException, what: str) -> Exception | None:
        """Return None: no failure is that of another member."""
        return None
