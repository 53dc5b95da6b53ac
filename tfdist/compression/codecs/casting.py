"""Codecs that round numbers to 16 bits: float16 and bfloat16; and the one that compresses nothing."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import tensorflow as tf

from tfdist.compression.codec import Accuracy, Codec, Exchange, reduced_bytes, take_over
from tfdist.compression.messages import AllReduce, Context, Exchanged, State, Total


@dataclass(frozen=True, kw_only=True)
class Whole(Codec):
    """No compression: every number as it is, the baseline of all other codecs.

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
    """A codec that rounds what another codec adds up to 16 bits, and converts the result back."""

    codec: Codec = field(default_factory=Whole)
    start_after: int | None = None  # type: ignore[assignment]
    min_saving: float | None = None  # type: ignore[assignment]

    wire_dtype: ClassVar[tf.DType]

    def __post_init__(self) -> None:
        take_over(self)
        super().__post_init__()

    @property
    def accuracy(self) -> Accuracy:  # type: ignore[override]
        """The accuracy of the inner codec; "rounded" if it is lossless."""
        return "rounded" if self.codec.accuracy == "lossless" else self.codec.accuracy

    @property
    def has_memory(self) -> bool:  # type: ignore[override]
        return self.codec.has_memory

    @property
    def needs_learning_rate(self) -> bool:
        return self.codec.needs_learning_rate

    @property
    def by_tensor(self) -> bool:  # type: ignore[override]
        return self.codec.by_tensor

    def init(self, spec: tf.TensorSpec) -> tuple[State, ...]:
        return self.codec.init(spec)

    def wire_bytes(self, spec: tf.TensorSpec, members: int) -> float:
        return self.codec.wire_bytes(spec, members) * self.wire_dtype.size / spec.dtype.size

    def whole(
        self, tensor: tf.Tensor, state: tuple[tf.Tensor, ...], context: Context
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        return self.codec.whole(tensor, state, context)

    def exchange(self, tensor: tf.Tensor, state: tuple[tf.Tensor, ...], context: Context) -> Exchange:
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
    """Rounding to 16 bits with 10 bits of mantissa: half the bytes; numbers below 6e-8 are lost.

    Example:
        >>> from tfdist.compression import PowerSGD
        >>> Float16(codec=PowerSGD(rank=4)).codec.rank
        4
    """

    name: ClassVar[str] = "float16"
    wire_dtype: ClassVar[tf.DType] = tf.float16


@dataclass(frozen=True, kw_only=True)
class BFloat16(Rounded):
    """Rounding to 16 bits with 7 bits of mantissa and the range of float32: half the bytes.

    Example:
        >>> BFloat16().wire_dtype.name
        'bfloat16'
    """

    name: ClassVar[str] = "bfloat16"
    wire_dtype: ClassVar[tf.DType] = tf.bfloat16
