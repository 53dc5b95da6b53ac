"""The chain from a replica's gradients to those of the global batch, the same under every strategy.

From the optimizer, on the outside, to the exchange between replicas, on the inside:

    weighted        multiplies each gradient by the replica's share of the examples, unless its loss was weighted
    accumulated     `DistributedOptimizer` adds up micro-batches here, and continues when an accumulation is complete
    combined        `Adasum`: combines the gradients that come back from all replicas
    compressed      `Choices.compression`: passes on less than it is given, and remembers what it has left out
    cast            `WireDtype`: rounds to the wire dtype, and converts back
    exchanged       `AllReduce`, `AllGather`, `shard_exchange.ReduceScatter` or `gradient_push.ToServers`

`present` puts the gradients in the order in which they leave, once; `composed` stacks the last four. `OverReplicas` is
the chain that an optimizer uses.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from tfdist.checkpoint.state_resizing import ShardedState
from tfdist.collectives.traced import relative_paths
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.errors import UnsupportedError
from tfdist.gradients.reduction import norms, replica_sums
from tfdist.monitor.recording import graph_stamps
from tfdist.monitor.recording.rows import Column

#: the ways to combine the gradients of replicas
KINDS = ("mean", "sum", "adasum")


@dataclass(frozen=True)
class Gradient:
    """The gradient of one variable.

    Attributes:
        value: the gradient, a tensor or `tf.IndexedSlices`.
        path: the path of the variable, with Keras' counters as in `relative_paths`: equal on every worker.
        keep_duplicate_indices: whether rows with the same index in `tf.IndexedSlices` must not be added up on the way;
            see `keeps_duplicate_indices`.
        place: the index of the variable among those for which the optimizer was built, whose specs
            `GradientReducer.variables` was given; for reducers with a memory.
        index: the index among the gradients that the optimizer was given in this call.
    """

    value: Any
    path: str
    keep_duplicate_indices: bool = True
    place: int = 0
    index: int = 0

    def mapped(self, function: Callable[[tf.Tensor], tf.Tensor]) -> "Gradient":
        return replace(self, value=replica_sums.mapped(function, self.value))


class GradientReducer:
    """One link of the chain from a replica's gradients to the global batch's; replicas call it in the same order.

    This base has no memory. A reducer with a memory makes `keras.Variable`s, and reads and assigns them in
    `reduce`; each replica has values of its own. Gradients come to it without a loss scale, and a step that is skipped
    for a gradient that is not finite restores the memory.
    """

    def variables(self, specs: Sequence[tf.TensorSpec]) -> list[keras.Variable]:
        """Make and return the memory, given the specs by `Gradient.place`; called once, in the strategy's scope."""
        return []

    def sharded_state(self) -> list[ShardedState]:
        """Return the variables with the rule for another number of replicas, for backups and saved models.

        Before `variables` is called, the states have no variables.
        """
        return []

    def renew(self, workers: Any, trained_seconds: float) -> bool:
        """Repeat choices by measurement, between two epochs; return True if the step must be traced again."""
        return False

    def alone(self, gradients: list[Gradient]) -> list[Gradient]:
        """Return the gradients that a single replica applies in place of the sums."""
        return gradients

    def reduce(self, gradients: list[Gradient]) -> list[Gradient]:
        """Return the gradients of the global batch, in the same order, equal bit for bit on every replica."""
        raise NotImplementedError


class Around(GradientReducer):
    """A reducer around another, which alone may have a memory."""

    def __init__(self, inner: GradientReducer) -> None:
        self._inner = inner

    def variables(self, specs: Sequence[tf.TensorSpec]) -> list[keras.Variable]:
        return self._inner.variables(specs)

    def sharded_state(self) -> list[ShardedState]:
        return self._inner.sharded_state()

    def renew(self, workers: Any, trained_seconds: float) -> bool:
        return self._inner.renew(workers, trained_seconds)

    def alone(self, gradients: list[Gradient]) -> list[Gradient]:
        return self._inner.alone(gradients)


@dataclass(frozen=True)
class Choices:
    """The settings that an optimizer requests for the reduction.

    Attributes:
        kind: one of `KINDS`; a sum is the mean times the number of examples, by which the optimizer multiplies.
        wire_dtype: the dtype to which gradients are rounded while they travel, or None.
        compression: a function that wraps the exchanging reducer in one that passes on less than it gets; or None.
    """

    kind: str = "mean"
    wire_dtype: str | None = None
    compression: Callable[[GradientReducer], GradientReducer] | None = None


class ReducesItself:
    """The part of an optimizer that reduces its own gradients; a tfdist scope leaves the reduction to the optimizer."""

    name: str

    @property
    def reduction_choices(self) -> Choices:
        return Choices()

    def renew_reduction(self, workers: Any, trained_seconds: float) -> bool:
        """Choose codecs again; see `GradientReducer.renew`."""
        return False


def choices_of(optimizer: Any) -> Choices:
    return optimizer.reduction_choices if isinstance(optimizer, ReducesItself) else Choices()


def composed(choices: Choices, exchange: GradientReducer) -> GradientReducer:
    """Return the chain in front of an exchange.

    Example:
        >>> one = Gradient(tf.constant([1.0]), "dense/kernel")
        >>> OverReplicas(Choices(wire_dtype="float16")).reduce([one]) == [one]  # outside of replicas nothing travels
        True
    """
    reducer = exchange if choices.wire_dtype is None else WireDtype(choices.wire_dtype, exchange)
    reducer = reducer if choices.compression is None else choices.compression(reducer)
    return Adasum(reducer) if choices.kind == "adasum" else reducer


def present(gradients: Sequence[Any], variables: Sequence[Any] | None, optimizer: Any) -> list[Gradient]:
    """Return the gradients that are not None, in the order in which the backward pass makes them."""
    paths = relative_paths([getattr(variable, "path", "a variable") for variable in variables or ()])
    paths = paths if len(paths) == len(gradients) else ["a variable"] * len(gradients)
    keep = keeps_duplicate_indices(optimizer)
    places = list(range(len(gradients)))
    if variables is not None and choices_of(optimizer).compression is not None:
        places = [keras_optimizer.index_of(optimizer, variable) for variable in variables]
    there = [index for index, value in enumerate(gradients) if value is not None]
    graph_stamps.mark(Column.GRADIENTS, [gradients[index] for index in there])
    order = [there[index] for index in as_made([gradients[index] for index in there])]
    return [Gradient(gradients[i], paths[i], keep, places[i], i) for i in order]


def as_made(gradients: Sequence[Any]) -> list[int]:
    """Return the indices of gradients in the order in which they are made; eagerly, from the last to the first.

    A tape makes the operations of a backward pass one after the other, and a graph keeps that order. It is the reverse
    of the order in which variables are used, which may differ from the order in which they were created.

    Example:
        >>> as_made([tf.zeros([1]), tf.zeros([1])])
        [1, 0]
    """
    positions: dict[Any, dict[tf.Operation, int]] = {}

    def made(index: int) -> int:
        parts = gradients[index]
        parts = (parts.values, parts.indices) if isinstance(parts, tf.IndexedSlices) else (parts,)
        return max(position(part.op) for part in parts)

    def position(operation: tf.Operation) -> int:
        graph = operation.graph
        if graph not in positions:
            positions[graph] = {one: number for number, one in enumerate(graph.get_operations())}
        return positions[graph][operation]

    last_first = list(reversed(range(len(gradients))))
    return last_first if tf.executing_eagerly() else sorted(last_first, key=made)


def keeps_duplicate_indices(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether a sparse gradient's rows with the same index must reach an optimizer separately.

    Keras treats each row separately if it does more with a gradient than add it. It squares a row, or takes its size,
    root or norm, before it adds up the rows with the same index. Only SGD without clipping, with or without momentum,
    is known to get the same result from rows that were added up before.

    Example:
        >>> from keras.optimizers import SGD, Adam
        >>> [keeps_duplicate_indices(one) for one in (SGD(momentum=0.9), SGD(clipnorm=1.0), Adam())]
        [False, True, True]
    """
    return keras_optimizer.clips(optimizer) or not all(map(_only_adds, keras_optimizer.chain(optimizer)))


def _only_adds(optimizer: keras.optimizers.Optimizer) -> bool:
    kind = type(optimizer)
    known = (keras.optimizers.SGD, keras.optimizers.LossScaleOptimizer, keras.optimizers.MultiOptimizer)
    return kind in known or ReducesItself in kind.__bases__  # a subclass may do anything


def is_overwritten(variable: Any) -> bool:
    """Return whether the "gradient" of a variable is its next value, as that of a scale of float8 is."""
    return getattr(variable, "overwrite_with_gradient", False)


def require_gradients(variables: Sequence[Any], because: str) -> None:
    """Raise `UnsupportedError` if a variable is overwritten by its gradient."""
    for variable in variables:
        if is_overwritten(variable):
            raise UnsupportedError(
                f"the variable {variable.path!r} is overwritten by its gradient (float8), and {because}. Train such "
                "layers with a plain Keras optimizer, under a strategy such as mirrored, multi-worker or ring.",
                name=variable.path,
            )


def in_their_places(reduced: Sequence[Gradient], count: int) -> list[Any]:
    """Return the values by `Gradient.index`, and None for missing gradients.

    Example:
        >>> in_their_places([Gradient(2, "b", index=2), Gradient(1, "a", index=0)], 3)
        [1, None, 2]
    """
    values: list[Any] = [None] * count
    for one in reduced:
        values[one.index] = one.value
    return values


def stamped(arrived: list[Gradient], scale: Callable[[], Any]) -> list[Gradient]:
    """Return reduced gradients; if steps are recorded, note when they arrived, and their norm without a loss scale."""
    values = [one.value for one in arrived]
    graph_stamps.mark(Column.REDUCED, values)
    stamps = graph_stamps.current()
    if stamps is not None and values:
        present = scale()
        present = None if present is None else tf.convert_to_tensor(present)
        stamps.gradient_norm(norms.all_squares, values, scale=present)
    return arrived


class OverReplicas(Around):
    """The reducer over the replicas of the strategy in whose replica it is called.

    A single replica already has the gradients of the global batch, and so does code outside of any replica.
    """

    def __init__(self, choices: Choices) -> None:
        super().__init__(composed(choices, AllGather() if choices.kind == "adasum" else AllReduce()))

    def reduce(self, gradients: list[Gradient]) -> list[Gradient]:
        if tf_strategies.replicas_here() > 1:
            return self._inner.reduce(gradients)
        return self._inner.alone(gradients)


def weighted(gradients: list[Gradient], weight: tf.Tensor | None) -> list[Gradient]:
    """Return each gradient times a weight, and exactly zero if the weight is zero; unchanged without a weight."""
    if weight is None:
        return gradients
    return [replace(gradient, value=replica_sums.weighted(gradient.value, weight)) for gradient in gradients]


class WireDtype(Around):
    """A reducer that rounds gradients to a smaller dtype while they travel, and restores the dtype of the sums.

    Sums of parts of a mean are no larger than the largest gradient, so float16 does not overflow on the way.
    """

    def __init__(self, dtype: str, inner: GradientReducer) -> None:
        super().__init__(inner)
        self._dtype = tf.as_dtype(dtype)

    def reduce(self, gradients: list[Gradient]) -> list[Gradient]:
        arrived = self._inner.reduce([self._rounded(gradient) for gradient in gradients])
        return [_as(own.value.dtype, back) for back, own in zip(arrived, gradients, strict=True)]

    def _rounded(self, gradient: Gradient) -> Gradient:
        dtype = gradient.value.dtype
        if not dtype.is_floating or dtype.size <= self._dtype.size:
            return gradient
        return _as(self._dtype, gradient)


class Adasum(Around):
    """A reducer that combines the replicas' gradients by Adasum, each scaled by its share relative to an even share."""

    def reduce(self, gradients: list[Gradient]) -> list[Gradient]:
        replicas = tf_strategies.replicas_here()
        dense = [replace(gradient, value=tf.convert_to_tensor(gradient.value)) for gradient in gradients]
        even = [gradient.mapped(lambda value: value * tf.cast(replicas, value.dtype)) for gradient in dense]
        stacked = self._inner.reduce(even)
        return [replace(one, value=adasum(tf.unstack(one.value, num=replicas))) for one in stacked]


def adasum(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the adaptive sum of gradients of one variable: of neighbours, then of pairs; an odd one is passed up.

    For two gradients, with <a, b> over the whole variable:

        a (1 - <a, b> / 2|a|^2) + b (1 - <a, b> / 2|b|^2)

    which is a + b if they are orthogonal and their mean if they are equal.

    Example:
        >>> a = tf.constant([3.0, 0.0])
        >>> [adasum([a, b]).numpy().tolist() for b in (a, tf.constant([0.0, 1.0]))]
        [[3.0, 0.0], [3.0, 1.0]]

    Source: S. Maleki et al., "Scaling Distributed Training with Adaptive Summation", 2020. The paper has a power of two
    of workers.
    """
    level = list(gradients)
    while len(level) > 1:
        odd = level[len(level) - len(level) % 2 :]
        level = [_pair(a, b) for a, b in zip(level[::2], level[1::2], strict=False)] + odd
    return level[0]


def _pair(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    wide = [tf.reshape(tf.cast(one, tf.float64), [-1]) for one in (a, b)]
    dot = tf.tensordot(*wide, axes=1)

    def factor(own: tf.Tensor) -> tf.Tensor:
        return tf.cast(1.0 - tf.math.divide_no_nan(dot, 2.0 * tf.tensordot(own, own, axes=1)), a.dtype)

    return a * factor(wide[0]) + b * factor(wide[1])


class AllReduce(GradientReducer):
    """The exchange that adds up over all replicas, by the strategy's collectives."""

    def reduce(self, gradients: list[Gradient]) -> list[Gradient]:
        """Return the sums; for `tf.IndexedSlices`, the rows of all replicas. The first gradients leave first."""
        sums = list(gradients)
        for keep in dict.fromkeys(gradient.keep_duplicate_indices for gradient in gradients):
            places = [i for i, one in enumerate(gradients) if one.keep_duplicate_indices is keep]
            values, labels = [gradients[i].value for i in places], [_label(gradients[i]) for i in places]
            own = tf_strategies.traced_here()
            if own is None or any(isinstance(value, tf.IndexedSlices) for value in values):
                arrived = replica_sums.sum_over_replicas(
                    values, labels=labels, keep_duplicate_indices=keep, is_differentiable=False
                )
            else:  # straight to the collective, without TensorFlow's reductions
                arrived = own.all_reduce(values, labels)
            for place, value in zip(places, arrived, strict=True):
                sums[place] = replace(gradients[place], value=value)
        return sums


class AllGather(GradientReducer):
    """The exchange that gathers the gradients of all replicas, dense and stacked; each dtype travels together."""

    def reduce(self, gradients: list[Gradient]) -> list[Gradient]:
        label = " and ".join(["gradients", *map(_label, gradients)])
        stacked = replica_sums.gathered_from_replicas([gradient.value for gradient in gradients], label)
        return [replace(gradient, value=value) for gradient, value in zip(gradients, stacked, strict=True)]


def _label(gradient: Gradient) -> str:
    return f"gradient of {gradient.path}"


def _as(dtype: tf.DType, gradient: Gradient) -> Gradient:
    return gradient.mapped(lambda value: tf.cast(value, dtype))
