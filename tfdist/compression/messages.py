"""Requests of a codec to the members of a group, and their answers.

A codec's `exchange` is a generator that yields requests and is sent the answers. So it says what travels in which
order, and its driver decides how: many tensors at once in buckets, or all members in one process for a test.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import tensorflow as tf

#: what another number of members makes of a state, see `tfdist.checkpoint.state_resizing.ShardedState`
Rule = Literal["keep", "reset", "sum"]


@dataclass(frozen=True)
class AllReduce:
    """Add up over the members; answered by a `Total`.

    Attributes:
        tensor: floating, of one shape on all members.
    """

    tensor: tf.Tensor


class Total(NamedTuple):
    """The answer to `AllReduce`.

    Attributes:
        total: the sum over the members, equal bit for bit on all of them.
        own: this member's tensor as it was added.
    """

    total: tf.Tensor
    own: tf.Tensor


@dataclass(frozen=True)
class AllToAll:
    """Send row i to member i; answered by the rows for this member, row i from member i.

    Attributes:
        rows: shape (members, ...).
    """

    rows: tf.Tensor


@dataclass(frozen=True)
class AllGather:
    """Send all rows to all members; answered by the rows of all of them, in their order.

    Attributes:
        rows: shape (rows, ...); members may have different numbers of rows.
    """

    rows: tf.Tensor


Request = AllReduce | AllToAll | AllGather


class Context(NamedTuple):
    """The circumstances in which a tensor is exchanged: the members, the step and the seeds.

    Attributes:
        size: number of members.
        rank: this member's number, from 0; a number, or a scalar tensor.
        step: updates before this one, an int32 scalar.
        own_seed: for `tf.random.stateless_*`, int32, shape (2,); differs between steps, tensors and members.
        shared_seed: the same, but equal on all members.
        slower: the last update's learning rate divided by this one's, a scalar; None if it is not known.
    """

    size: int
    rank: int | tf.Tensor
    step: tf.Tensor
    own_seed: tf.Tensor
    shared_seed: tf.Tensor
    slower: tf.Tensor | None = None


class Exchanged(NamedTuple):
    """The result of an exchange.

    Attributes:
        total: the sum of the members' tensors, decoded; equal bit for bit on all members.
        sent: this member's part of it: over the members these add up to ``total``.
        state: the codec's memory now.
    """

    total: tf.Tensor
    sent: tf.Tensor
    state: tuple[tf.Tensor, ...] = ()


@dataclass(frozen=True)
class State:
    """A tensor that a codec remembers for each tensor that it compresses.

    Attributes:
        name: in the plural, for messages.
        initial: its first value, the same on all members.
        rule: for another number of members.
    """

    name: str
    initial: tf.Tensor = field(repr=False)
    rule: Rule = "keep"


def context_of(
    rank: int | tf.Tensor,
    size: int,
    *,
    step: int | tf.Tensor = 0,
    seed: int = 0,
    place: int | tf.Tensor = 0,
    slower: tf.Tensor | None = None,
) -> Context:
    """Return the context of one tensor in one step; its seeds depend on step, tensor and member, and on nothing else.

    Example:
        >>> one, other = context_of(0, 2, step=5), context_of(1, 2, step=5)
        >>> bool(tf.reduce_all(one.shared_seed == other.shared_seed))
        True
        >>> bool(tf.reduce_all(one.own_seed == other.own_seed))
        False
    """
    at = tf.cast(step, tf.int32)
    shared = _folded(tf.stack([seed, place]), at)
    return Context(size, rank, at, _folded(shared, tf.cast(rank, tf.int32) + 1), shared, slower)


def _folded(seed: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    return tf.random.experimental.stateless_fold_in(seed, number, alg="philox")
