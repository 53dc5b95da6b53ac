"""Error feedback: the part of a gradient that a codec leaves out is added to the next gradient."""

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from tfdist.compression.codec import Accuracy, Codec, Exchange, take_over
from tfdist.compression.messages import Context, Exchanged, State
from tfdist.errors import ConfigError

#: the name of a memory of errors in messages
ERRORS = "the gradients that compression has held back"


@dataclass(frozen=True, kw_only=True)
class ErrorFeedback(Codec):
    """A codec that remembers what another codec leaves out of each gradient, and adds it to the next one.

        u = g + e,    sent = C(u),    e := u - sent

    After any number of steps, what was sent plus what is remembered equals the sum of the gradients. Each member has a
    memory of its own. When the number of members changes, all memories go into one update that is not compressed.

    Args:
        codec: C, the other codec, which should have no memory of gradients itself.
        start_after: see `Codec`; by default the value of ``codec``, as for ``min_saving``.
        follows_learning_rate: whether e is multiplied by the last learning rate over the present one, so that what was
            left out counts with the rate of its own step. Default: True if the codec's authors remember updates, not
            gradients.

    Example:
        >>> from tfdist.compression import TopK
        >>> ErrorFeedback(codec=TopK(density=0.001)).codec.density
        0.001

    Source: S. P. Karimireddy, Q. Rebjock, S. Stich and M. Jaggi, "Error Feedback Fixes SignSGD and other Gradient
    Compression Schemes", 2019; F. Seide et al., "1-Bit Stochastic Gradient Descent", 2014.
    """

    name: ClassVar[str] = "errorfeedback"
    accuracy: ClassVar[Accuracy] = "biased"

    codec: Codec
    start_after: int | None = None  # type: ignore[assignment]
    min_saving: float | None = None  # type: ignore[assignment]
    follows_learning_rate: bool | None = None

    def __post_init__(self) -> None:
        take_over(self)
        super().__post_init__()
        if self.codec.has_memory:
            raise ConfigError(
                f"codec is {self.codec!r}, which remembers gradients itself; pass it alone.",
                name="codec",
                received=self.codec,
            )
        if self.follows_learning_rate is None:
            object.__setattr__(self, "follows_learning_rate", self.codec.memory_is_of_updates)

    has_memory: ClassVar[bool] = True

    @property
    def by_tensor(self) -> bool:  # type: ignore[override]
        """Whether the inner codec takes each tensor by itself."""
        return self.codec.by_tensor

    @property
    def shown(self) -> str:
        """The name of the inner codec in messages."""
        return self.codec.shown

    @property
    def needs_learning_rate(self) -> bool:
        """Whether the memory follows the learning rate."""
        return bool(self.follows_learning_rate)

    def init(self, spec: tf.TensorSpec) -> tuple[State, ...]:
        """Return an empty memory, and the memory of the inner codec."""
        return (State(ERRORS, tf.zeros(spec.shape, spec.dtype), rule="sum"), *self.codec.init(spec))

    def wire_bytes(self, spec: tf.TensorSpec, members: int) -> float:
        """Return the bytes that the inner codec sends."""
        return self.codec.wire_bytes(spec, members)

    def exchange(self, tensor: tf.Tensor, state: tuple[tf.Tensor, ...], context: Context) -> Exchange:
        """Exchange the tensor plus the memory, and remember what is left out now."""
        errors, *inner = state
        if self.follows_learning_rate and context.slower is not None:
            errors = errors * tf.cast(context.slower, errors.dtype)
        whole = tensor + errors
        done = yield from self.codec.exchange(whole, tuple(inner), context)
        return Exchanged(done.total, done.sent, (whole - done.sent, *done.state))

    def whole(
        self, tensor: tf.Tensor, state: tuple[tf.Tensor, ...], context: Context
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        """Return the tensor plus the memory, and an empty memory."""
        errors, *inner = state
        return tensor + errors, (tf.zeros_like(errors), *inner)
