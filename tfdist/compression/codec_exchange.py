"""Drivers of exchanges: one member's exchanges side by side, or those of all members in one process."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tfdist.compression.codec import Exchange
from tfdist.compression.messages import AllGather, AllReduce, AllToAll, Exchanged, Request, Total


class Carrier(Protocol):
    """The collective operations that carry the tensors of one member."""

    def all_reduce(self, tensors: Sequence[tf.Tensor], labels: Sequence[str]) -> list[tf.Tensor]:
        """Return the sums over members; several tensors may travel together."""

    def all_to_all(self, rows: tf.Tensor, label: str) -> tf.Tensor:
        """Return the rows for this member, one from each member, in the members' order."""

    def all_gather(self, rows: tf.Tensor, label: str) -> tf.Tensor:
        """Return the rows of all members, in the members' order."""


class InTurn:
    """A carrier whose operations begin one after the other, each after the result of the former.

    A single thread that runs the operations of a graph may take independent ones in any order. Members that take
    different ones first would wait for each other for ever.
    """

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._former: list[tf.Tensor] = []

    def all_reduce(self, tensors: Sequence[tf.Tensor], labels: Sequence[str]) -> list[tf.Tensor]:
        """Return the sums over members."""
        return [
            self._after(tensor, functools.partial(self._summed, label))
            for tensor, label in zip(tensors, labels, strict=True)
        ]

    def all_to_all(self, rows: tf.Tensor, label: str) -> tf.Tensor:
        """Return the rows for this member, one from each member, in the members' order."""
        return self._after(rows, lambda one: self._carrier.all_to_all(one, label))

    def all_gather(self, rows: tf.Tensor, label: str) -> tf.Tensor:
        """Return the rows of all members, in the members' order."""
        return self._after(rows, lambda one: self._carrier.all_gather(one, label))

    def _summed(self, label: str, tensor: tf.Tensor) -> tf.Tensor:
        (total,) = self._carrier.all_reduce([tensor], [label])
        return total

    def _after(self, tensor: tf.Tensor, operation: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
        with tf.control_dependencies(self._former):
            tensor = tf.identity(tensor)
        self._former = [operation(tensor)]
        return self._former[0]


def carried(exchanges: Sequence[Exchange], labels: Sequence[str], carrier: Carrier) -> list[Exchanged]:
    """Carry out the exchanges of one member side by side; simultaneous sums travel together."""
    ends: list[Any] = [None] * len(exchanges)
    asked = _advanced(exchanges, dict.fromkeys(range(len(exchanges))), ends)
    hop = 1
    while asked:
        answers: dict[int, Any] = {}
        sums = {index: request.tensor for index, request in asked.items() if isinstance(request, AllReduce)}
        names = {index: f"{labels[index]}, hop {hop}" for index in asked}
        if sums:
            totals = carrier.all_reduce(list(sums.values()), [names[index] for index in sums])
            answers.update((i, Total(total, sums[i])) for i, total in zip(sums, totals, strict=True))
        for index, request in asked.items():
            if isinstance(request, AllToAll):
                answers[index] = carrier.all_to_all(request.rows, names[index])
            elif isinstance(request, AllGather):
                answers[index] = carrier.all_gather(request.rows, names[index])
        asked = _advanced(exchanges, answers, ends)
        hop += 1
    return ends


def together(members: Sequence[Exchange]) -> list[Exchanged]:
    """Carry out one tensor's exchange for all members of a group, in this process.

    Example:
        >>> from tfdist.compression import Whole
        >>> from tfdist.compression.messages import context_of
        >>> ends = together([Whole().exchange(tf.constant([float(i)]), (), context_of(i, 2)) for i in (1, 2)])
        >>> [end.total.numpy().tolist() for end in ends]
        [[3.0], [3.0]]
    """
    ends: list[Any] = [None] * len(members)
    asked = _advanced(members, dict.fromkeys(range(len(members))), ends)
    while asked:
        requests = [asked[rank] for rank in range(len(members))]
        asked = _advanced(members, dict(enumerate(_answers(requests))), ends)
    return ends


def by_itself(exchange: Exchange, members: int) -> Exchanged:
    """Carry out one member's exchange as if all others sent the same: only its own computation."""
    answer: Any = None
    while True:
        try:
            request = exchange.send(answer)
        except StopIteration as end:
            return end.value
        if isinstance(request, AllReduce):
            answer = Total(request.tensor, request.tensor)
        elif isinstance(request, AllGather):
            answer = tf.tile(request.rows, [members, *[1] * (request.rows.shape.rank - 1)])
        else:
            answer = request.rows


def _answers(requests: list[Any]) -> list[Any]:
    if isinstance(requests[0], AllReduce):
        wire = requests[0].tensor.dtype
        wide = [tf.cast(one.tensor, tf.float32) if wire.size < 4 else one.tensor for one in requests]
        total = tf.cast(tf.add_n(wide), wire)
        return [Total(total, one.tensor) for one in requests]
    rows = [one.rows for one in requests]
    if isinstance(requests[0], AllToAll):
        return [tf.stack([one[rank] for one in rows]) for rank in range(len(rows))]
    return [tf.concat(rows, axis=0)] * len(rows)


def _advanced(exchanges: Sequence[Exchange], answers: dict[int, Any], ends: list[Any]) -> dict[int, Request]:
    """Answer exchanges and return their next requests; put finished results into ``ends``."""
    asked: dict[int, Request] = {}
    for index, answer in answers.items():
        try:
            asked[index] = exchanges[index].send(answer)
        except StopIteration as end:
            ends[index] = end.value
    return asked
