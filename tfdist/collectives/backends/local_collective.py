"""The collective of a single member: the result of a reduction is the member's own value."""

from collections.abc import Sequence

import tensorflow as tf

from tfdist.collectives import collective, wire_dtypes


class LocalCollective:
    """A group of one, which costs nothing."""

    size = 1
    rank = 0
    hosts: tuple[int, ...] = (0,)
    matches_by_count = False
    keeps_program_order = False
    sends_directly = False

    def among(self, members: Sequence[int], group_key: int | None = None) -> "LocalCollective | None":
        return self if self.rank in members else None

    def all_reduce(self, tensors: Sequence[tf.Tensor], *, key: str, op: str = "sum") -> list[tf.Tensor]:
        collective.require_op(op)
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        for tensor in tensors:
            wire_dtypes.require_op(tensor.dtype, op)
        return tensors

    def all_gather(self, tensor: tf.Tensor, *, key: str, equal_rows: bool = False) -> tf.Tensor:
        return collective.require_rows(wire_dtypes.copyable(tensor))

    def reduce_scatter(self, tensor: tf.Tensor, *, key: str) -> tf.Tensor:
        return collective.require_rows(self.all_reduce([tensor], key=key)[0])

    def broadcast(self, tensor: tf.Tensor, *, key: str, root: int = 0) -> tf.Tensor:
        collective.require_rank("root", root, 1)
        return wire_dtypes.copyable(tensor)

    def all_to_all(self, tensor: tf.Tensor, *, key: str) -> tf.Tensor:
        return self.all_gather(tensor, key=key)

    def send(self, tensor: tf.Tensor, *, key: str, to: int) -> tf.Operation:
        collective.require_other("to", to, self)

    def start_of(self, sent: tf.Operation) -> tf.Operation | None:
        return None

    def receive(self, spec: tf.TensorSpec, *, key: str, source: int) -> tf.Tensor:
        collective.require_other("source", source, self)

    def waits_for(self) -> str:
        return ""

    def abort(self, reason: str) -> None:
        pass

    def explain(self, error: BaseException, what: str) -> Exception | None:
        return None
