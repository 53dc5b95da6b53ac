"""Codecs that send a few numbers and their places: top-k, deep gradient compression, random-k and threshold."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from tfdist import validation
from tfdist.compression import packing
from tfdist.compression.codec import Accuracy, Codec, Exchange, RowCodec, reduced_bytes, row_length, two_hops
from tfdist.compression.error_feedback import ERRORS
from tfdist.compression.kernels import kernels, shaped
from tfdist.compression.messages import AllGather, AllReduce, Context, Exchanged, State


@dataclass(frozen=True, kw_only=True)
class TopK(RowCodec):
    """The largest |x| of each part of a gradient, with their places: 64 bits each. Use it with `ErrorFeedback`.

    There are as many parts as members, and each has its own k. At density 1 nothing is lost.

    Args:
        density: the fraction of the numbers that travels.

    Example:
        >>> TopK(density=0.01).row_words(1000)
        20

    Source: A. F. Aji and K. Heafield, "Sparse Communication for Distributed Gradient Descent", 2017. Sums of several
    members' numbers are cut to the largest again, so that bytes do not grow with the number of members.
    """

    name: ClassVar[str] = "topk"
    accuracy: ClassVar[Accuracy] = "biased"

    density: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.number("density", self.density, above=0, maximum=1)

    def row_words(self, count: int) -> int:
        """Return the count of words for k places and k numbers."""
        return 2 * kept(count, self.density)

    def encode(self, rows: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return the places, and then the numbers."""
        return largest(rows, kept(rows.shape[1], self.density))

    def decode(self, words: tf.Tensor, count: int) -> tf.Tensor:
        """Return the numbers in their places, and zeros."""
        return spread(words, count)


def kept(count: int, density: float) -> int:
    """Return the count of numbers of a row that travel: at least one.

    Example:
        >>> kept(1000, 0.01), kept(10, 0.01)
        (10, 1)
    """
    return min(count, max(1, round(count * density)))


def largest(rows: tf.Tensor, k: int | tf.Tensor) -> tf.Tensor:
    """Return the places of the k largest |x| of each row, in ascending order, and then their values, as words.

    Of equal numbers the first are taken; NaN counts as larger than all numbers.
    """
    ops = kernels()
    if ops is not None:
        places = ops.tfdist_largest(rows, k)
        shaped(places, [rows.shape[0], k if isinstance(k, int) else None])
    else:
        sizes = packing.as_words(tf.abs(rows))  # as integers the bits are in the order of the numbers
        places = tf.sort(tf.math.top_k(sizes, k, sorted=False).indices, axis=1)
    return tf.concat([places, packing.as_words(tf.gather(rows, places, batch_dims=1))], axis=1)


def spread(words: tf.Tensor, count: int) -> tf.Tensor:
    """Return rows of zeros with numbers at their places."""
    places, values = tf.split(words, 2, axis=1)
    rows = words.shape[0]
    at = places + tf.range(rows)[:, tf.newaxis] * count
    flat = tf.scatter_nd(tf.reshape(at, [-1, 1]), tf.reshape(packing.as_numbers(values), [-1]), [rows * count])
    return tf.reshape(flat, [rows, count])


#: the densities of the first epochs in the paper
WARM_UP = (0.25, 0.0625, 0.015625, 0.004)


@dataclass(frozen=True, kw_only=True)
class DGC(Codec):
    """Momentum before compression, a memory of what was not sent, and the largest numbers of it.

        u := m u + clip(g),    v := v + u,    send the largest |v|,    v := v - sent

    The momentum is part of the codec: the optimizer is plain SGD. At density 1 it is SGD with momentum.

    Args:
        density: the fraction of the numbers that travels.
        momentum: m, the momentum, as in SGD.
        factor_masking: whether u := 0 for numbers that were sent, as in the paper, because the momentum of a number
            that has waited is stale. But a number that is sent often never reaches the momentum of SGD, up to 1 / (1 -
            m) times its gradient, so this is off by default.
        clipnorm: the largest norm of the mean gradient. Each member clips its part, all tensors of a bucket together,
            to the norm ``clipnorm`` / sqrt(members). None: no clipping.
        warm_up_steps: the number of updates over which the density falls, in equal parts of 25, 6.25, 1.56 and 0.4 %;
            the authors use four epochs.

    Example:
        >>> DGC(density=0.01, warm_up_steps=4000).densities
        (0.25, 0.0625, 0.015625, 0.01)

    Source: Y. Lin, S. Han, H. Mao, Y. Wang and W. J. Dally, "Deep Gradient Compression: Reducing the Communication
    Bandwidth for Distributed Training", 2018. The largest are found in each member's part of a bucket of tensors, not
    in each tensor, and masking is optional.
    """

    name: ClassVar[str] = "dgc"
    accuracy: ClassVar[Accuracy] = "biased"
    has_memory: ClassVar[bool] = True
    has_momentum: ClassVar[bool] = True

    density: float = 0.01
    momentum: float = 0.9
    factor_masking: bool = False
    clipnorm: float | None = None
    warm_up_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.number("density", self.density, above=0, maximum=1)
        validation.number("momentum", self.momentum, minimum=0, maximum=1)
        if self.clipnorm is not None:
            validation.number("clipnorm", self.clipnorm, above=0)
        validation.integer("warm_up_steps", self.warm_up_steps, minimum=0)

    @property
    def densities(self) -> Sequence[float]:
        """The densities of the warm-up, none of which is below the final one."""
        return tuple(max(density, self.density) for density in WARM_UP) if self.warm_up_steps else ()

    def prepare(self) -> None:
        """Compile and load the kernel that finds the largest numbers."""
        kernels()

    def init(self, spec: tf.TensorSpec) -> tuple[State, ...]:
        """Return a momentum of zeros, and an empty memory."""
        zeros = tf.zeros(spec.shape, spec.dtype)
        return State("the momentum of compressed gradients", zeros, rule="sum"), State(ERRORS, zeros, rule="sum")

    def wire_bytes(self, spec: tf.TensorSpec, members: int) -> float:
        """Return the bytes of both hops after the warm-up."""
        return TopK(density=self.density).wire_bytes(spec, members)

    def exchange(self, tensor: tf.Tensor, state: tuple[tf.Tensor, ...], context: Context) -> Exchange:
        """Exchange the largest accumulated numbers."""
        momentum, memory = self._together(tensor, state, context)
        count = row_length(int(tensor.shape.num_elements()), context.size, 1)
        hops = yield from two_hops(_Largest(self._kept(count, context.step)), memory, context)
        if self.factor_masking:
            momentum = tf.where(tf.equal(hops.own, 0), momentum, tf.zeros_like(momentum))
        return Exchanged(hops.total, hops.sent, (momentum, memory - hops.sent))

    def whole(
        self, tensor: tf.Tensor, state: tuple[tf.Tensor, ...], context: Context
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        """Return all accumulated numbers, and an empty memory; the momentum remains."""
        momentum, memory = self._together(tensor, state, context)
        return memory, (momentum, tf.zeros_like(memory))

    def _together(
        self, tensor: tf.Tensor, state: tuple[tf.Tensor, ...], context: Context
    ) -> tuple[tf.Tensor, tf.Tensor]:
        if self.clipnorm is not None:
            tensor = tf.clip_by_norm(tensor, self.clipnorm / context.size**0.5)
        momentum, memory = state
        momentum = self.momentum * momentum + tensor
        return momentum, memory + momentum

    def _kept(self, count: int, step: tf.Tensor) -> int | tf.Tensor:
        if not self.warm_up_steps:
            return kept(count, self.density)
        each = [kept(count, density) for density in (*self.densities, self.density)]
        at = step * len(self.densities) // self.warm_up_steps
        return tf.gather(each, tf.minimum(at, len(self.densities)))


class _Largest(RowCodec):
    """The largest numbers of rows, for a k that may change with the step."""

    def __init__(self, k: int | tf.Tensor) -> None:
        self._k = k

    def encode(self, rows: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return largest(rows, self._k)

    def decode(self, words: tf.Tensor, count: int) -> tf.Tensor:
        return spread(words, count)


@dataclass(frozen=True, kw_only=True)
class RandomK(Codec):
    """One of every k numbers, at places drawn from a seed that all members share: no index travels.

    The tensor is cut into stretches of k numbers, and one of each is drawn. It is not scaled, because the codec is for
    use with `ErrorFeedback`: without that the mean would be k times too small. At density 1 nothing is lost.

    Args:
        density: the fraction of the numbers that travels; its inverse is rounded to k.

    Example:
        >>> RandomK(density=0.01).stretch
        100

    Source: S. U. Stich, J.-B. Cordonnier and M. Jaggi, "Sparsified SGD with Memory", 2018, which draws k of all
    numbers; one of each stretch is as likely, and needs no shuffling.
    """

    name: ClassVar[str] = "randomk"
    accuracy: ClassVar[Accuracy] = "biased"

    density: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.number("density", self.density, above=0, maximum=1)

    @property
    def stretch(self) -> int:
        """The number k: one of every k numbers travels."""
        return round(1 / self.density)

    def wire_bytes(self, spec: tf.TensorSpec, members: int) -> float:
        """Return the bytes of an all_reduce of the numbers that travel."""
        return reduced_bytes(-(-spec.shape.num_elements() // self.stretch), spec.dtype.size, members)

    def exchange(self, tensor: tf.Tensor, state: tuple[tf.Tensor, ...], context: Context) -> Exchange:
        """Add up the numbers at the places drawn."""
        elements = tensor.shape.num_elements()
        stretches = -(-elements // self.stretch)
        flat = tf.pad(tf.reshape(tensor, [-1]), [[0, stretches * self.stretch - elements]])
        within = tf.random.stateless_uniform([stretches], context.shared_seed, 0, self.stretch, tf.int32)
        places = tf.range(stretches) * self.stretch + within

        def in_place(values: tf.Tensor) -> tf.Tensor:
            spread = tf.scatter_nd(places[:, tf.newaxis], values, tf.shape(flat))
            return tf.reshape(spread[:elements], tensor.shape)

        total, own = yield AllReduce(tf.gather(flat, places))
        return Exchanged(in_place(total), in_place(own), state)


@dataclass(frozen=True, kw_only=True)
class Threshold(Codec):
    """The numbers with |x| of t or more, sent as sign(x) t: one word for place and sign. Use it with `ErrorFeedback`.

    The number of bytes depends on how many numbers have grown large enough. Members' words are gathered, so bytes grow
    with the number of members.

    Args:
        threshold: t, in the units of a member's mean gradient.
        expected_density: the fraction of the numbers that is expected to travel; used only for predictions.

    Example:
        >>> Threshold(threshold=1e-3).accuracy
        'biased'

    Source: N. Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing", 2015.
    """

    name: ClassVar[str] = "threshold"
    accuracy: ClassVar[Accuracy] = "biased"

    threshold: float = 1e-3
    expected_density: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.number("threshold", self.threshold, above=0)
        validation.number("expected_density", self.expected_density, above=0, maximum=1)

    def wire_bytes(self, spec: tf.TensorSpec, members: int) -> float:
        """Return the bytes of gathering the expected number of words."""
        return (members - 1) * 4 * self.expected_density * spec.shape.num_elements()

    def exchange(self, tensor: tf.Tensor, state: tuple[tf.Tensor, ...], context: Context) -> Exchange:
        """Gather the words of all members, and add up the numbers that they encode."""
        flat = tf.reshape(tensor, [-1])
        step = tf.cast(self.threshold / context.size, tensor.dtype)  # members' tensors are parts of a mean
        word = tf.int32 if tensor.shape.num_elements() <= 1 << 30 else tf.int64  # which twice a place has to fit
        places = tf.cast(tf.where(tf.abs(flat) >= step)[:, 0], word)
        negative = tf.cast(tf.gather(flat, places) < 0, word)
        own = 2 * places + negative

        def numbers(words: tf.Tensor) -> tf.Tensor:
            signs = tf.cast(1 - 2 * tf.bitwise.bitwise_and(words, 1), tensor.dtype)
            at = tf.bitwise.right_shift(words, 1)
            return tf.reshape(tf.math.unsorted_segment_sum(signs * step, at, tensor.shape.num_elements()), tensor.shape)

        words = yield AllGather(own[:, tf.newaxis])
        return Exchanged(numbers(words[:, 0]), numbers(own), state)
