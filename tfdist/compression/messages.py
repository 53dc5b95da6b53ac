"""Requests of a codec to the members of a group, and their answers.

A codec's `exchange` is a generator that yields requests and is sent the answers. So the codec says what travels in
which order, and its driver decides how: many tensors at once in buckets, or all members in one process for a test.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import tensorflow as tf

#: the rule for a state when the number of members changes, see `tfdist.checkpoint.state_resizing.ShardedState`
Rule = Literal["keep", "reset", "sum"]


@dataclass(frozen=True)
class AllReduce:
    """A request to add up a tensor over the members; the answer is a `Total`."""

    tensor: tf.Tensor  # a floating-point tensor, of the same shape on all members


class Total(NamedTuple):
    """The answer to `AllReduce`."""

    total: tf.Tensor  # the sum over the members, equal bit for bit on all of them
    own: tf.Tensor  # this member's tensor as it was added


@dataclass(frozen=True)
class AllToAll:
    """A request to send row i to member i; the answer has the rows for this member, row i from member i."""

    rows: tf.Tensor  # a tensor of shape (members, ...)


@dataclass(frozen=True)
class AllGather:
    """A request to send all rows to all members; the answer has the rows of all members, in the members' order."""

    rows: tf.Tensor  # a tensor of shape (rows, ...); members may have different numbers of rows


Request = AllReduce | AllToAll | AllGather


class Context(NamedTuple):
    """The circumstances in which a tensor is exchanged: the members, the step and the seeds."""

    size: int  # the number of members
    rank: int | tf.Tensor  # this member's number, from 0; an integer, or a scalar tensor
    step: tf.Tensor  # the number of updates before this one, an int32 scalar
    # a seed for `tf.random.stateless_*`, int32, shape (2,); differs between steps, tensors and members
    own_seed: tf.Tensor
    shared_seed: tf.Tensor  # a seed of the same kind, equal on all members
    # the last update's learning rate divided by this one's, a scalar; None if it is not known
    slower: tf.Tensor | None = None


class Exchanged(NamedTuple):
    """The result of an exchange."""

    total: tf.Tensor  # the sum of the members' tensors, decoded; equal bit for bit on all members
    sent: tf.Tensor  # this member's part of ``total``: the parts of all members add up to it
    state: tuple[tf.Tensor, ...] = ()  # the codec's memory after the exchange


@dataclass(frozen=True)
class State:
    """A tensor that a codec remembers for each tensor that it compresses."""

    name: str  # the name in messages, in the plural
    initial: tf.Tensor = field(repr=False)  # the first value, the same on all members
    rule: Rule = "keep"  # the rule by which the tensor is divided anew when the number of members changes


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
