"""Random-k: a few numbers at places that all members draw alike."""

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from tfdist import validation
from tfdist.compression.codec import Accuracy, Codec, Exchange, reduced_bytes
from tfdist.compression.messages import AllReduce, Context, Exchanged


@dataclass(frozen=True, kw_only=True)
class RandomK(Codec):
    """One of every k numbers, whose places come from a seed that all members share: no index travels.

    The tensor is cut into stretches of k numbers, and one of each is drawn. Unscaled, for use with `ErrorFeedback`:
    without it the mean would be k times too small. Where 1 of 1 travels, nothing is lost.

    Args:
        density: the part of the numbers that travels; its inverse is rounded to k.

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
        """k."""
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
