"""The `Codec` base class: how a gradient is encoded, exchanged and decoded."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import tensorflow as tf

from tfdist import validation
from tfdist.compression.kernels import kernels
from tfdist.compression.messages import AllGather, AllToAll, Context, Exchanged, Request, State
from tfdist.errors import ConfigTypeError

#: the effect on a mean gradient: none, rounding to fewer digits, noise whose mean is zero, or an error
Accuracy = Literal["lossless", "rounded", "unbiased", "biased"]

Exchange = Generator[Request, Any, Exchanged]


@dataclass(frozen=True, kw_only=True)
class Codec:
    """A way to compress gradients; the base of all codecs.

    A codec is a frozen value: its memory consists of tensors that are passed in and returned. There are two kinds:

    - `RowCodec`, whose `encode` and `decode` turn numbers into words and back. Members send the words of each part of a
      gradient to the member that adds up this part, and receive the words of the sum. Each number is compressed twice,
      whatever the number of members.
    - a codec with an `exchange` of its own, such as `PowerSGD`, whose encoded tensors can be added up.

    Args:
        start_after: the number of updates before which gradients travel whole; the first gradients are large, and
            matter most.
        min_saving: the factor by which the bytes of a gradient must shrink, or else it travels whole. Gradients with
            fewer than two axes always travel whole: biases, and the scales and offsets of normalization.
    """

    #: its name in tables and in saved models
    name: ClassVar[str]
    #: the effect on the mean of gradients
    accuracy: ClassVar[Accuracy]
    #: whether it needs the axes of a tensor; other codecs receive many tensors as one row of numbers
    by_tensor: ClassVar[bool] = False
    #: whether it has a memory of what it has not sent
    has_memory: ClassVar[bool] = False
    #: whether the memory is of updates, which a learning rate has multiplied
    memory_is_of_updates: ClassVar[bool] = False
    #: whether it has a momentum, so that the optimizer must have none
    has_momentum: ClassVar[bool] = False

    start_after: int = 0
    min_saving: float = 2.0

    @property
    def shown(self) -> str:
        """The codec's name in messages."""
        return self.name

    @property
    def needs_learning_rate(self) -> bool:
        """Whether the codec must know how the learning rate changes."""
        return False

    def __post_init__(self) -> None:
        validation.integer("start_after", self.start_after, minimum=0)
        validation.number("min_saving", self.min_saving, above=0)

    def prepare(self) -> None:
        """Load what would delay the first step, such as kernels; called before a codec is used."""
        inner = getattr(self, "codec", None)
        if isinstance(inner, Codec):
            inner.prepare()

    def init(self, spec: tf.TensorSpec) -> tuple[State, ...]:
        """Return the memory for a tensor before the first step.

        Args:
            spec: the spec of the tensor: a known shape, and the dtype float32 or float64.
        """
        return ()

    def wire_bytes(self, spec: tf.TensorSpec, members: int) -> float:
        """Return the bytes that a member sends for a tensor, without headers.

        Args:
            spec: the spec of the tensor.
            members: the number of members.
        """
        raise NotImplementedError

    def exchange(self, tensor: tf.Tensor, state: tuple[tf.Tensor, ...], context: Context) -> Exchange:
        """Compress, exchange and decompress one tensor: a generator that yields requests and returns `Exchanged`.

        Args:
            tensor: this member's part of a sum, float32 or float64.
            state: the memory, from `init` or the last `Exchanged`.
            context: the members, the step, and seeds for random numbers.
        """
        raise NotImplementedError

    def whole(
        self, tensor: tf.Tensor, state: tuple[tf.Tensor, ...], context: Context
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        """Return the tensor to sum without compression in place of the given one, and the memory afterwards.

        A codec with a memory adds what it has held back, and empties the memory.

        Args:
            tensor: this member's part of a sum.
            state: as for `exchange`.
            context: as for `exchange`.
        """
        return tensor, state


class RowCodec(Codec):
    """A codec by `encode` and `decode`, which are pure functions of the numbers in each row."""

    def prepare(self) -> None:
        """Compile and load the kernels of `encode` and `decode`."""
        kernels()

    def row_words(self, count: int) -> int:
        """Return the number of words that `encode` makes of a row.

        Args:
            count: the count of numbers in the row, a multiple of `row_multiple`.
        """
        raise NotImplementedError

    @property
    def row_multiple(self) -> int:
        """The number to whose multiple rows are padded with zeros."""
        return 1

    def encode(self, rows: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return the rows encoded as words.

        Args:
            rows: the numbers to encode, float32, shape (rows, count).
            seed: a seed for `tf.random.stateless_*`, int32, shape (2,).
        Returns:
            The words, int32, shape (rows, `row_words(count)`).
        """
        raise NotImplementedError

    def decode(self, words: tf.Tensor, count: int) -> tf.Tensor:
        """Return the numbers that were encoded as words.

        Args:
            words: the words to decode, int32, shape (rows, `row_words(count)`).
            count: the count of numbers in a row.
        Returns:
            The numbers, float32, shape (rows, count).
        """
        raise NotImplementedError

    def wire_bytes(self, spec: tf.TensorSpec, members: int) -> float:
        """Return the bytes of both hops: all parts but a member's own, once each."""
        count = row_length(_elements(spec), members, self.row_multiple)
        return 2.0 * (members - 1) * 4 * self.row_words(count)

    def exchange(self, tensor: tf.Tensor, state: tuple[tf.Tensor, ...], context: Context) -> Exchange:
        """Send the words of each part to the member that adds it up, and the words of the sum to all members."""
        hops = yield from two_hops(self, tensor, context)
        return Exchanged(hops.total, hops.sent, state)


class Hops(NamedTuple):
    """The result of two hops of words."""

    total: tf.Tensor  # the sum of the members' tensors, decoded
    sent: tf.Tensor  # this member's part of ``total``: the parts of all members add up to it
    own: tf.Tensor  # this member's words in the first hop, decoded


def two_hops(codec: RowCodec, tensor: tf.Tensor, context: Context) -> Generator[Request, Any, Hops]:
    """Exchange a tensor as words, in two hops.

    Each member adds up one part of the tensor, in the order of the members, and compresses the sum again. The error of
    that second compression belongs to this member, so the members' parts add up to the sum.

    Source: G. Wang et al., "ZeRO++: Extremely Efficient Collective Communication for Giant Model Training", 2023 (two
    hops instead of a ring, which would compress again at every member).
    """
    size, elements = context.size, int(tensor.shape.num_elements())
    count = row_length(elements, size, codec.row_multiple)
    rows = tf.reshape(tf.pad(tf.reshape(tensor, [-1]), [[0, size * count - elements]]), [size, count])

    def encoded(rows: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        return codec.encode(tf.cast(rows, tf.float32), seed)

    def decoded(words: tf.Tensor) -> tf.Tensor:
        return tf.cast(codec.decode(words, count), tensor.dtype)

    first, second = tf.unstack(tf.random.experimental.stateless_split(context.own_seed, 2))
    words = encoded(rows, first)
    own = decoded(words)
    part = tf.reduce_sum(decoded((yield AllToAll(words))), axis=0, keepdims=True)
    gathered = yield AllGather(encoded(part, second))
    total = decoded(tf.ensure_shape(gathered, words.shape))
    is_mine = tf.cast(tf.equal(tf.range(size), tf.cast(context.rank, tf.int32)), tensor.dtype)
    sent = own + is_mine[:, tf.newaxis] * (total - part)  # of `part` only this member's own row is looked at

    def like_tensor(rows: tf.Tensor) -> tf.Tensor:
        return tf.reshape(tf.reshape(rows, [-1])[:elements], tensor.shape)

    return Hops(*map(like_tensor, (total, sent, own)))


def row_length(elements: int, rows: int, multiple: int) -> int:
    """Return the count of numbers in each row, if all elements are cut into rows padded to a multiple.

    Example:
        >>> row_length(1000, 2, 512)
        512
    """
    return -(-elements // (rows * multiple)) * multiple


def reduced_bytes(count: int, itemsize: int, members: int) -> float:
    """Return the bytes that a member sends for an all_reduce: 2 (n - 1) / n times the tensor's.

    Example:
        >>> reduced_bytes(1000, 4, 2)
        4000.0
    """
    return 2.0 * (members - 1) / members * count * itemsize


def require_codec(name: str, value: Any) -> "Codec":
    if isinstance(value, Codec):
        return value
    hint = f" Pass {value.__name__}(...), an object of it." if isinstance(value, type) else ""
    raise ConfigTypeError(
        f"{name} is {validation.shown(value)} ({type(value).__name__}); it must be a codec, such as "
        f"PowerSGD(rank=2).{hint}",
        name=name,
        received=value,
    )


def take_over(codec: Codec) -> None:
    """Copy the general options of the inner codec to a codec around it, unless that has options of its own."""
    inner = require_codec("codec", codec.codec)  # type: ignore[attr-defined]
    for name in ("start_after", "min_saving"):
        if getattr(codec, name) is None:
            object.__setattr__(codec, name, getattr(inner, name))


def _elements(spec: tf.TensorSpec) -> int:
    return int(spec.shape.num_elements())
