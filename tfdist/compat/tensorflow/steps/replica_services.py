"""The services that a strategy offers to the replicas of a process in a step, in one typed value.

A strategy builds the value once and stores it in its extended object, which both TensorFlow's code and a replica's step
can reach. `services` reads it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf


class Collective(Protocol):
    """The part of `tfdist.collectives.collective.Collective` that a step uses."""

    def all_reduce(self, tensors: Sequence[tf.Tensor], *, key: str) -> list[tf.Tensor]:
        """Return the sums over the members."""

    def all_gather(self, tensor: tf.Tensor, *, key: str) -> tf.Tensor:
        """Return the rows of all members."""

    def all_to_all(self, tensor: tf.Tensor, *, key: str) -> tf.Tensor:
        """Return this member's part of the rows of every member."""


class Traced(Protocol):
    """The part of `tfdist.collectives.traced.TracedCollective` that a step uses."""

    size: int
    rank: int

    def all_reduce(
        self, values: Sequence[Any], labels: Sequence[str] = (), *, keep_duplicate_indices: bool = True
    ) -> list[Any]:
        """Return the sums over the members, in the order of the values."""

    def all_gather(self, tensor: tf.Tensor, label: str = "") -> tf.Tensor:
        """Return the rows of all members."""

    def all_to_all(self, tensor: tf.Tensor, label: str = "") -> tf.Tensor:
        """Return this member's part of the rows of every member."""


@dataclass(frozen=True, kw_only=True)
class WeightParts:
    """The functions by which a process holds parts of weights.

    Attributes:
        shardings_of: a function that returns the sharding of a new weight on each replica of this process, or None for
            a whole weight. It takes the weight's path, shape and dtype, and whether it is trainable.
        initial: a function that returns the parts of the first process's initial value. It takes a function that
            returns the whole value, Keras' initializer behind it or None, the dtype, and the shardings.
        gathers: a `Gathers` if steps gather whole weights, or None.
    """

    shardings_of: Callable[[str, tuple[int, ...], tf.DType, bool], Sequence[Any] | None]
    initial: Callable[..., Sequence[tf.Tensor]]
    gathers: Any = None


@dataclass(frozen=True, kw_only=True)
class ReplicaServices:
    """The services that the replicas of a process use in a step. The defaults are for strategies that are not tfdist's.

    Attributes:
        collectives: for each replica of this process, its member of the collective of all replicas that TensorFlow's
            collectives reach.
        traced: for each replica, the collective that reduces inside the replica; empty: TensorFlow's own reductions.
        rows: the same for rows of tables only, if TensorFlow reduces other values. TensorFlow's own operation is bound
            to the first number of rows that it gathers until the function returns, so another number in a loop fails.
        bucket_bytes: number of bytes that are reduced together; 0: all together.
        after_trace: called after a replica's function was traced.
        before_update: called before an optimizer updates a variable; may raise.
        compare_variable: compares the path, shape and dtype of a new variable between workers, before they receive the
            chief's value.
        weights: the functions by which this process holds parts of weights; None: weights are whole.
        sharding: a `tfdist.gradients.sharding.sharded_slots.OptimizerSharding`; None: each replica has all slots.
        is_apart: whether a step spans only the replicas of `traced`, in this process or in several, as between two
            meetings of workers.
    """

    collectives: Sequence[Collective] = ()
    traced: Sequence[Traced] = ()
    rows: Sequence[Traced] = ()
    bucket_bytes: int = 0
    after_trace: Callable[[], None] = lambda: None
    before_update: Callable[[], None] = lambda: None
    compare_variable: Callable[[str, Sequence[int], tf.DType], None] = lambda path, shape, dtype: None
    weights: WeightParts | None = None
    sharding: object | None = None
    is_apart: bool = False


_NONE = ReplicaServices()


class HasServices:
    """The part of an extended strategy that holds the services; empty until the strategy sets them."""

    services: ReplicaServices = _NONE


def services(strategy: tf.distribute.Strategy) -> ReplicaServices:
    """Return the services of a strategy; empty services if the strategy is not tfdist's."""
    extended = strategy.extended
    return extended.services if isinstance(extended, HasServices) else _NONE
