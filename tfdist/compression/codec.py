"""The `Codec` base class: how a gradient is encoded, what travels, and what it decodes to."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import tensorflow as tf

from tfdist import validation
from tfdist.compression.kernels import kernels
from tfdist.compression.messages import AllGather, AllToAll, Context, Exchanged, Request, State
from tfdist.errors import ConfigTypeError

#: what may become of a mean gradient: nothing, rounding to fewer digits, noise whose mean is zero, or an error
Accuracy = Literal["lossless", "rounded", "unbiased", "biased"]

Exchange = Generator[Request, Any, Exchanged]


@dataclass(frozen=True, kw_only=True)
class Codec:
    """A way to compress gradients; the part that all codecs have.

    A codec is a frozen value: what it remembers are tensors that it is given and returns. There are two kinds:

    - `RowCodec`, whose `encode` and `decode` turn numbers into words and back. Members send the words of each part of a
      gradient to the member that adds this part up, and get its words back: each number is compressed twice, whatever
      the number of members.
    - one with an `exchange` of its own, such as `PowerSGD`, whose encoded tensors can be added up.

    Args:
        start_after: updates before which gradients travel whole; the first ones are large, and matter most.
        min_saving: how many times fewer bytes a gradient must take for it to be compressed; others travel whole, as do
            all with fewer than two axes: biases, and the scales and offsets of normalisation.
    """

    #: what the codec is called in a table, and in a saved model
    name: ClassVar[str]
    #: what becomes of the mean of gradients
    accuracy: ClassVar[Accuracy]
    #: whether it needs to know the axes of a tensor; others are given many tensors as one row of numbers
    by_tensor: ClassVar[bool] = False
    #: whether it remembers what it has not sent
    has_memory: ClassVar[bool] = False
    #: whether what it leaves out is remembered as part of an update, which a learning rate has multiplied
    memory_is_of_updates: ClassVar[bool] = False
    #: whether it has momentum, so that the optimizer must have none
    has_momentum: ClassVar[bool] = False

    start_after: int = 0
    min_saving: float = 2.0

    @property
    def shown(self) -> str:
        """What it is called in messages."""
        return self.name

    @property
    def needs_learning_rate(self) -> bool:
        """Whether it has to know how the learning rate changes."""
        return False

    def __post_init__(self) -> None:
        validation.integer("start_after", self.start_after, minimum=0)
        validation.number("min_saving", self.min_saving, above=0)

    def prepare(self) -> None:
        """Get ready what would hold up the first step, such as kernels; whoever is going to use a codec calls it."""
        inner = getattr(self, "codec", None)
        if isinstance(inner, Codec):
            inner.prepare()

    def init(self, spec: tf.TensorSpec) -> tuple[State, ...]:
        """Return what is remembered of a tensor before the first step.

        Args:
            spec: of the tensor: its shape, known, and its dtype, float32 or float64.
        """
        return ()

    def wire_bytes(self, spec: tf.TensorSpec, members: int) -> float:
        """Return how many bytes a member sends for a tensor, of those that the formulas count: no headers.

        Args:
            spec: of the tensor.
            members: number of members.
        """
        raise NotImplementedError

    def exchange(self, tensor: tf.Tensor, state: tuple[tf.Tensor, ...], context: Context) -> Exchange:
        """Compress, exchange and decompress one tensor: a generator that yields requests and returns `Exchanged`.

        Args:
            tensor: this member's part of a sum, float32 or float64.
            state: what `init` gave, or the last `Exchanged` had.
            context: the members, the step, and seeds for random numbers.
        """
        raise NotImplementedError

    def whole(
        self, tensor: tf.Tensor, state: tuple[tf.Tensor, ...], context: Context
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        """Return what is to be added up without compression in place of a tensor, and what is remembered then.

        With a memory that is more than the tensor: what was held back goes with it, and the memory is empty after.

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
        """Return how many words `encode` makes of a row.

        Args:
            count: numbers in the row, a multiple of `row_multiple`.
        """
        raise NotImplementedError

    @property
    def row_multiple(self) -> int:
        """Rows have a multiple of so many numbers; they are filled up with zeros."""
        return 1

    def encode(self, rows: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return the words of each row.

        Args:
            rows: float32, shape (rows, count).
            seed: for `tf.random.stateless_*`, int32, shape (2,).
        Returns:
            int32, shape (rows, `row_words(count)`).
        """
        raise NotImplementedError

    def decode(self, words: tf.Tensor, count: int) -> tf.Tensor:
        """Return the numbers that words stand for.

        Args:
            words: int32, shape (rows, `row_words(count)`).
            count: numbers in a row.
        Returns:
            float32, shape (rows, count).
        """
        raise NotImplementedError

    def wire_bytes(self, spec: tf.TensorSpec, members: int) -> float:
        """Return the bytes of both ways: all parts but a member's own, once each."""
        count = row_length(_elements(spec), members, self.row_multiple)
        return 2.0 * (members - 1) * 4 * self.row_words(count)

    def exchange(self, tensor: tf.Tensor, state: tuple[tf.Tensor, ...], context: Context) -> Exchange:
        """Send the words of each part to the member that adds it up, and the words of the sum to all."""
        hops = yield from two_hops(self, tensor, context)
        return Exchanged(hops.total, hops.sent, state)


class Hops(NamedTuple):
    """What two hops of words have come to.

    Attributes:
        total: what stands for the sum of the members' tensors.
        sent: this member's part of it: over the members these add up to ``total``.
        own: what this member's words in the first hop stand for.
    """

    total: tf.Tensor
    sent: tf.Tensor
    own: tf.Tensor


def two_hops(codec: RowCodec, tensor: tf.Tensor, context: Context) -> Generator[Request, Any, Hops]:
    """Exchange a tensor as words.

    Each member adds up one part of the tensor, in the order of the members, and compresses the sum once
    more. What that second time leaves out belongs to the member that did it: so the members' parts add up to the sum.

    Source: G. Wang et al., "ZeRO++: Extremely Efficient Collective Communication for Giant Model Training", 2023 (two
    hops in place of a ring, which would compress again at every member).
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
    """Return how many numbers each of some rows has for so many numbers in all, filled up to a multiple.

    Example:
        >>> row_length(1000, 2, 512)
        512
    """
    return -(-elements // (rows * multiple)) * multiple


def reduced_bytes(count: int, itemsize: int, members: int) -> float:
    """Return how many bytes a member sends for an all_reduce: 2 (n - 1) / n times the tensor's.

    Example:
        >>> reduced_bytes(1000, 4, 2)
        4000.0
    """
    return 2.0 * (members - 1) / members * count * itemsize


def require_codec(name: str, value: Any) -> "Codec":
    """Return a codec."""
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
    """Give a codec around another one what it was not given itself of that one's general options."""
    inner = require_codec("codec", codec.codec)  # type: ignore[attr-defined]
    for name in ("start_after", "min_saving"):
        if getattr(codec, name) is None:
            object.__setattr__(codec, name, getattr(inner, name))


def _elements(spec: tf.TensorSpec) -> int:
    return int(spec.shape.num_elements())
