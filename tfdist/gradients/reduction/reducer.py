"""From a replica's gradients to those of the global batch: the one way, under every strategy.

Reducers stand around one another, each a step of the way out and of the way back. This is their order, from the
optimizer, on the outside, to where replicas meet, on the inside:

    Weighted        each gradient times the replica's share of the examples, unless its loss was
    (accumulation)  `DistributedOptimizer` adds up micro-batches here, and goes on where an accumulation is complete
    Adasum          combines the gradients that come back from all replicas
    Compressed      `Choices.compression`: hands on less than it is given, and remembers what it has left out
    WireDtype       rounds to the dtype that travels, and back
    the exchange    `AllReduce`, `AllGather` or `handover.ToServers`

`composed` puts them in this order, and nothing else does. `OverReplicas` is what an optimizer has of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import keras
import tensorflow as tf

from tfdist.checkpoint.state_resizing import ShardedState
from tfdist.collectives import buckets
from tfdist.collectives.workers import agreement
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.gradients.reduction import adasum, replica_sums
from tfdist.monitor.recording import graph_stamps
from tfdist.monitor.recording.rows import Column

#: what the gradients of replicas can become
KINDS = ("mean", "sum", "adasum")


@dataclass(frozen=True)
class Gradient:
    """The gradient of one variable.

    Attributes:
        value: a tensor or `tf.IndexedSlices`.
        path: of the variable, with Keras' counters as `agreement.relative_paths` has them: equal on every worker.
        keep_duplicate_indices: whether rows of one index in `tf.IndexedSlices` must not be added up on the way, see
            `keras_optimizer.keeps_duplicate_indices`.
        place: of the variable among those that the optimizer was built for, whose specs `GradientReducer.variables` was
            given; for reducers that remember something.
        turn: of the gradients of a step, the how manieth the backward pass has made, see `buckets.as_made`.
    """

    value: Any
    path: str
    keep_duplicate_indices: bool = True
    place: int = 0
    turn: int = 0

    def mapped(self, function: Callable[[tf.Tensor], tf.Tensor]) -> "Gradient":
        """Return this gradient with a function of its values."""
        return replace(self, value=replica_sums.mapped(function, self.value))


class GradientReducer(Protocol):
    """What makes gradients of the global batch of those of a replica; called by all replicas, in the same order.

    One that remembers something makes `keras.Variable`s for it, and reads and assigns them in `reduce`. Each replica
    has values of its own. Gradients come to it without a loss scale, and a step that is skipped for a gradient that is
    not finite puts back what was remembered before. A replica that is alone reduces nothing, and changes nothing.
    """

    def variables(self, specs: Sequence[tf.TensorSpec]) -> list[keras.Variable]:
        """Make and return what is remembered from one step to the next; called once, in the strategy's scope.

        Args:
            specs: of the gradients that there may be, in the order of `Gradient.place`.
        """

    def sharded_state(self) -> list[ShardedState]:
        """Return these variables, with what another number of replicas makes of them, for backups and saved models.

        Before `variables` was called, the same states without variables.
        """

    def reduce(self, gradients: list[Gradient]) -> list[Gradient]:
        """Return the gradients of the global batch, in the same order, equal bit for bit on every replica."""


class Stateless:
    """The part of a reducer that remembers nothing."""

    def variables(self, specs: Sequence[tf.TensorSpec]) -> list[keras.Variable]:
        """Return none."""
        return []

    def sharded_state(self) -> list[ShardedState]:
        """Return none."""
        return []


class _Around:
    """The part of a reducer around another, when that alone may remember something."""

    def __init__(self, inner: GradientReducer) -> None:
        self._inner = inner

    def variables(self, specs: Sequence[tf.TensorSpec]) -> list[keras.Variable]:
        """Return those of the inner reducer."""
        return self._inner.variables(specs)

    def sharded_state(self) -> list[ShardedState]:
        """Return that of the inner reducer."""
        return self._inner.sharded_state()

    def renew(self, workers: Any, trained_seconds: float) -> bool:
        """Let the inner reducer choose again what it leaves to be chosen, see `Compressed.renew`."""
        renew = getattr(self._inner, "renew", None)
        return False if renew is None else bool(renew(workers, trained_seconds))


@dataclass(frozen=True)
class Choices:
    """What an optimizer asks of the reduction.

    Attributes:
        kind: one of `KINDS`; a sum is the mean times the number of examples, by which the optimizer multiplies.
        wire_dtype: what gradients are rounded to while they travel, or None.
        compression: takes the reducer that brings replicas together, and returns one around it that hands on less than
            it is given; or None.
    """

    kind: str = "mean"
    wire_dtype: str | None = None
    compression: "Callable[[GradientReducer], GradientReducer] | None" = None


def choices_of(optimizer: Any) -> Choices:
    """Return what an optimizer asks of the reduction."""
    return getattr(optimizer, "reduction_choices", Choices())


def composed(choices: Choices, exchange: "GradientReducer") -> "GradientReducer":
    """Return what stands between the weights of replicas and an exchange.

    Example:
        >>> one = Gradient(tf.constant([1.0]), "dense/kernel")
        >>> OverReplicas(Choices(wire_dtype="float16")).reduce([one]) == [one]  # outside of replicas nothing travels
        True
    """
    reducer = exchange if choices.wire_dtype is None else WireDtype(choices.wire_dtype, exchange)
    reducer = reducer if choices.compression is None else choices.compression(reducer)
    return Adasum(reducer) if choices.kind == "adasum" else reducer


def present(gradients: Sequence[Any], variables: Sequence[Any] | None, optimizer: Any) -> list[Gradient]:
    """Return the gradients that are there, of those that an optimizer was given."""
    paths = agreement.relative_paths([getattr(variable, "path", "a variable") for variable in variables or ()])
    paths = paths if len(paths) == len(gradients) else ["a variable"] * len(gradients)
    keep = keras_optimizer.keeps_duplicate_indices(optimizer)
    places = list(range(len(gradients)))
    if variables is not None and choices_of(optimizer).compression is not None:
        places = [keras_optimizer.index_of(optimizer, variable) for variable in variables]
    there = [index for index, value in enumerate(gradients) if value is not None]
    graph_stamps.mark(Column.GRADIENTS, [gradients[index] for index in there])
    turns = {there[index]: turn for turn, index in enumerate(buckets.as_made([gradients[index] for index in there]))}
    return [Gradient(gradients[i], paths[i], keep, places[i], turns[i]) for i in there]


def in_their_places(values: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
    """Return a value where there was a gradient, and None where there was none.

    Example:
        >>> in_their_places([1, 2], ["a", None, "b"])
        [1, None, 2]
    """
    left = iter(values)
    return [None if gradient is None else next(left) for gradient in gradients]


class OverReplicas(_Around):
    """The reducer over the replicas of the strategy in whose replica it is called.

    One replica has the gradients of the global batch. So has what is outside of any replica: that is for all of them.
    """

    def __init__(self, choices: Choices) -> None:
        super().__init__(composed(choices, AllGather() if choices.kind == "adasum" else AllReduce()))

    def reduce(self, gradients: list[Gradient]) -> list[Gradient]:
        """Return the sums over replicas, or what the optimizer has chosen in their place."""
        if tf_strategies.replicas_here() > 1:
            return self._inner.reduce(gradients)
        alone = getattr(self._inner, "alone", None)
        return gradients if alone is None else list(alone(gradients))


class Weighted(_Around):
    """Weighs each gradient before it meets the others."""

    def __init__(self, weight: tf.Tensor | None, inner: GradientReducer) -> None:
        super().__init__(inner)
        self._weight = weight

    def reduce(self, gradients: list[Gradient]) -> list[Gradient]:
        """Return the sum over replicas of weight times gradient."""
        return self._inner.reduce(weighted(gradients, self._weight))


def weighted(gradients: list[Gradient], weight: tf.Tensor | None) -> list[Gradient]:
    """Return each gradient times a weight, and exactly zero where that is; as they are without one."""
    if weight is None:
        return gradients
    return [replace(gradient, value=replica_sums.weighted(gradient.value, weight)) for gradient in gradients]


class WireDtype(_Around):
    """Rounds what leaves a replica to a smaller dtype, and gives what comes back the dtype that it had.

    Sums of parts of a mean are no larger than the largest gradient, so float16 does not overflow on the way.
    """

    def __init__(self, dtype: str, inner: GradientReducer) -> None:
        super().__init__(inner)
        self._dtype = tf.as_dtype(dtype)

    def reduce(self, gradients: list[Gradient]) -> list[Gradient]:
        """Return what the inner reducer makes of the rounded gradients."""
        arrived = self._inner.reduce([self._rounded(gradient) for gradient in gradients])
        return [_as(own.value.dtype, back) for back, own in zip(arrived, gradients, strict=True)]

    def _rounded(self, gradient: Gradient) -> Gradient:
        dtype = gradient.value.dtype
        if not dtype.is_floating or dtype.size <= self._dtype.size:
            return gradient
        return _as(self._dtype, gradient)


class Adasum(_Around):
    """Combines the replicas' gradients by adaptive summation, each scaled by its share relative to an even share."""

    def reduce(self, gradients: list[Gradient]) -> list[Gradient]:
        """Return Adasum of each gradient, dense."""
        replicas = tf_strategies.replicas_here()
        dense = [replace(gradient, value=tf.convert_to_tensor(gradient.value)) for gradient in gradients]
        even = [gradient.mapped(lambda value: value * tf.cast(replicas, value.dtype)) for gradient in dense]
        stacked = self._inner.reduce(even)
        return [replace(one, value=adasum.combined(tf.unstack(one.value, num=replicas))) for one in stacked]


class AllReduce(Stateless):
    """The exchange that adds up over all replicas, by the strategy's collectives."""

    def reduce(self, gradients: list[Gradient]) -> list[Gradient]:
        """Return the sums; of `tf.IndexedSlices`, the rows of all replicas. What was made first leaves first."""
        sums = list(gradients)
        order = sorted(range(len(gradients)), key=lambda i: gradients[i].turn)
        for keep in dict.fromkeys(gradient.keep_duplicate_indices for gradient in gradients):
            places = [i for i in order if gradients[i].keep_duplicate_indices is keep]
            values, labels = [gradients[i].value for i in places], [_label(gradients[i]) for i in places]
            arrived = replica_sums.sum_over_replicas(
                values, labels=labels, keep_duplicate_indices=keep, is_differentiable=False
            )
            for place, value in zip(places, arrived, strict=True):
                sums[place] = replace(gradients[place], value=value)
        return sums


class AllGather(Stateless):
    """The exchange that gathers the gradients of all replicas, dense and stacked, those of one dtype together."""

    def reduce(self, gradients: list[Gradient]) -> list[Gradient]:
        """Return the gradients of all replicas, each of shape (replicas, ...)."""
        label = " and ".join(["gradients", *map(_label, gradients)])
        stacked = replica_sums.gathered_from_replicas([gradient.value for gradient in gradients], label)
        return [replace(gradient, value=value) for gradient, value in zip(gradients, stacked, strict=True)]


def _label(gradient: Gradient) -> str:
    return f"gradient of {gradient.path}"


def _as(dtype: tf.DType, gradient: Gradient) -> Gradient:
    return gradient.mapped(lambda value: tf.cast(value, dtype))
