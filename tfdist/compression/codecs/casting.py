"""Fewer bits of each number: float16 and bfloat16."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import tensorflow as tf

from tfdist.compression.codec import Accuracy, Codec, Exchange, reduced_bytes, take_over
from tfdist.compression.messages import AllReduce, Context, Exchanged, State, Total


@dataclass(frozen=True, kw_only=True)
class Whole(Codec):
    """Every number as it is: no compression. The peer of all others, and what ``auto`` takes where nothing pays.

    Example:
        >>> Whole().accuracy
        'lossless'
    """

    name: ClassVar[str] = "none"
    accuracy: ClassVar[Accuracy] = "lossless"
    by_tensor: ClassVar[bool] = True

    min_saving: float = 1.5

    def wire_bytes(self, spec: tf.TensorSpec, members: int) -> float:
        """Return the bytes of an all_reduce."""
        return reduced_bytes(spec.shape.num_elements(), spec.dtype.size, members)

    def exchange(self, tensor: tf.Tensor, state: tuple[tf.Tensor, ...], context: Context) -> Exchange:
        """Add up the tensors."""
        total, own = yield AllReduce(tensor)
        return Exchanged(total, own, state)


@dataclass(frozen=True, kw_only=True)
class Rounded(Codec):
    """Rounds what another codec adds up to 16 bits, and what comes back to where it came from."""

    codec: Codec = field(default_factory=Whole)
    start_after: int | None = None  # type: ignore[assignment]
    min_saving: float | None = None  # type: ignore[assignment]

    wire_dtype: ClassVar[tf.DType]

    def __post_init__(self) -> None:
        take_over(self)
        super().__post_init__()

    @property
    def accuracy(self) -> Accuracy:  # type: ignore[override]
        """As the codec inside, which the rounding adds little to; "rounded" where that loses nothing."""
        return "rounded" if self.codec.accuracy == "lossless" else self.codec.accuracy

    @property
    def has_memory(self) -> bool:  # type: ignore[override]
        """As the codec inside."""
        return self.codec.has_memory

    @property
    def needs_learning_rate(self) -> bool:
        """As the codec inside."""
        return self.codec.needs_learning_rate

    @property
    def by_tensor(self) -> bool:  # type: ignore[override]
        """As the codec inside."""
        return self.codec.by_tensor

    def init(self, spec: tf.TensorSpec) -> tuple[State, ...]:
        """Return what the codec inside remembers."""
        return self.codec.init(spec)

    def wire_bytes(self, spec: tf.TensorSpec, members: int) -> float:
        """Return those of the codec inside, of 16 bits in the place of its own."""
        return self.codec.wire_bytes(spec, members) * self.wire_dtype.size / spec.dtype.size

    def whole(
        self, tensor: tf.Tensor, state: tuple[tf.Tensor, ...], context: Context
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        """Return what the codec inside would send whole."""
        return self.codec.whole(tensor, state, context)

    def exchange(self, tensor: tf.Tensor, state: tuple[tf.Tensor, ...], context: Context) -> Exchange:
        """Do as the codec inside does, with its tensors rounded."""
        inner = self.codec.exchange(tensor, state, context)
        answer: Any = None
        while True:
            try:
                request = inner.send(answer)
            except StopIteration as end:
                return end.value
            if not isinstance(request, AllReduce):
                answer = yield request
                continue
            dtype = request.tensor.dtype
            total, own = yield AllReduce(tf.cast(request.tensor, self.wire_dtype))
            answer = Total(tf.cast(total, dtype), tf.cast(own, dtype))


@dataclass(frozen=True, kw_only=True)
class Float16(Rounded):
    """Numbers of 16 bits, of which 10 are digits: half the bytes, and what is below 6e-8 is lost.

    Example:
        >>> from tfdist.compression import PowerSGD
        >>> Float16(codec=PowerSGD(rank=4)).codec.rank
        4
    """

    name: ClassVar[str] = "float16"
    wire_dtype: ClassVar[tf.DType] = tf.float16


@dataclass(frozen=True, kw_only=True)
class BFloat16(Rounded):
    """Numbers of 16 bits, of which 7 are digits, with the range of float32: half the bytes.

    Example:
        >>> BFloat16().wire_dtype.name
        'bfloat16'
    """

    name: ClassVar[str] = "bfloat16"
    wire_dtype: ClassVar[tf.DType] = tf.bfloat16
