"""Deep gradient compression: the largest of what has come together over steps, with its momentum."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from tfdist import validation
from tfdist.compression.codec import Accuracy, Codec, Exchange, RowCodec, row_length, two_hops
from tfdist.compression.codecs import top_k
from tfdist.compression.error_feedback import ERRORS
from tfdist.compression.kernels import kernels
from tfdist.compression.messages import Context, Exchanged, State

#: the densities of the first epochs in the paper
WARM_UP = (0.25, 0.0625, 0.015625, 0.004)


@dataclass(frozen=True, kw_only=True)
class DGC(Codec):
    """Momentum before compression, a memory of what was not sent, and the largest numbers of it.

        u := m u + clip(g),    v := v + u,    send the largest |v|,    v := v - sent

    It has the momentum: the optimizer is plain SGD. What is sent at once as a whole (density 1) is SGD with momentum.

    Args:
        density: the part of the numbers that travels.
        momentum: m, as of SGD.
        factor_masking: u := 0 where something was sent, as in the paper, for there the momentum is stale if the number
            has waited. But a number that is sent often never comes to the momentum that SGD gives it, up to 1 / (1 - m)
            times its gradient; off by default.
        clipnorm: of the mean gradient; each member cuts its part of it, all tensors of a bucket together, to the norm
            ``clipnorm`` / sqrt(members). None for none.
        warm_up_steps: updates over which the density falls, in equal parts of 25, 6.25, 1.56 and 0.4 %; authors take
            four epochs.

    Example:
        >>> DGC(density=0.01, warm_up_steps=4000).densities
        (0.25, 0.0625, 0.015625, 0.01)

    Source: Y. Lin, S. Han, H. Mao, Y. Wang and W. J. Dally, "Deep Gradient Compression: Reducing the Communication
    Bandwidth for Distributed Training", 2018. The largest are found in each member's part of a bucket of tensors, not
    in each tensor, and there is no masking unless it is asked for.
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
        """Those of the warm-up, none of them less than that of the rest."""
        return tuple(max(density, self.density) for density in WARM_UP) if self.warm_up_steps else ()

    def prepare(self) -> None:
        """Compile and load the kernel that finds the largest."""
        kernels()

    def init(self, spec: tf.TensorSpec) -> tuple[State, ...]:
        """Return no momentum, and an empty memory."""
        zeros = tf.zeros(spec.shape, spec.dtype)
        return State("the momentum of compressed gradients", zeros, rule="sum"), State(ERRORS, zeros, rule="sum")

    def wire_bytes(self, spec: tf.TensorSpec, members: int) -> float:
        """Return the bytes of both hops after the warm-up."""
        return top_k.TopK(density=self.density).wire_bytes(spec, members)

    def exchange(self, tensor: tf.Tensor, state: tuple[tf.Tensor, ...], context: Context) -> Exchange:
        """Exchange the largest of what has come together."""
        momentum, memory = self._together(tensor, state, context)
        count = row_length(int(tensor.shape.num_elements()), context.size, 1)
        hops = yield from two_hops(_Largest(self._kept(count, context.step)), memory, context)
        if self.factor_masking:
            momentum = tf.where(tf.equal(hops.own, 0), momentum, tf.zeros_like(momentum))
        return Exchanged(hops.total, hops.sent, (momentum, memory - hops.sent))

    def whole(
        self, tensor: tf.Tensor, state: tuple[tf.Tensor, ...], context: Context
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        """Return all that has come together, and an empty memory; the momentum goes on."""
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
            return top_k.kept(count, self.density)
        each = [top_k.kept(count, density) for density in (*self.densities, self.density)]
        at = step * len(self.densities) // self.warm_up_steps
        return tf.gather(each, tf.minimum(at, len(self.densities)))


class _Largest(RowCodec):
    """The largest numbers of rows, of which a step says how many."""

    def __init__(self, k: int | tf.Tensor) -> None:
        self._k = k

    def encode(self, rows: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        """Return their places, and then the numbers."""
        return top_k.largest(rows, self._k)

    def decode(self, words: tf.Tensor, count: int) -> tf.Tensor:
        """Return the numbers in their places, and zeros."""
        return top_k.spread(words, count)
