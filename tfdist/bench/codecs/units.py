"""What a codec compresses of a model: the same gradients together as in a step."""

from collections.abc import Sequence

import tensorflow as tf

from tfdist.collectives import buckets
from tfdist.compression.codec import Codec, reduced_bytes
from tfdist.training.reduction.compressed import grouped, is_compressed

__all__ = ["units", "wire_bytes"]


def units(codec: Codec, specs: Sequence[tf.TensorSpec]) -> list[list[int]]:
    """Return the indices of gradients that are compressed as one tensor, as `Compressed` has them in a step.

    Args:
        codec: compresses.
        specs: of the gradients, in the order of the model's variables.

    Example:
        >>> from tfdist.compression import PowerSGD, QSGD
        >>> specs = [tf.TensorSpec(shape) for shape in ([500, 40], [40], [40, 400])]
        >>> units(QSGD(bits=8), specs), units(PowerSGD(rank=2), specs)
        ([[2, 0]], [[2], [0]])
    """
    large = [index for index in reversed(range(len(specs))) if is_compressed(codec, specs[index])]
    return grouped(codec, {index: specs[index] for index in large}, buckets.DEFAULT_BYTES)


def wire_bytes(codec: Codec, specs: Sequence[tf.TensorSpec], members: int) -> float:
    """Return how many bytes a member sends for the gradients of a step by the formulas: no headers, no metrics.

    Args:
        codec: compresses what it makes small enough; the rest is added up as it is.
        specs: of the gradients.
        members: number of members.
    """
    groups = units(codec, specs)
    compressed = {index for group in groups for index in group}
    whole = (spec for index, spec in enumerate(specs) if index not in compressed)
    return sum(codec.wire_bytes(joined([specs[index] for index in group]), members) for group in groups) + sum(
        reduced_bytes(spec.shape.num_elements(), spec.dtype.size, members) for spec in whole
    )


def joined(specs: Sequence[tf.TensorSpec]) -> tf.TensorSpec:
    """Return the spec of the one tensor that several are compressed as."""
    if len(specs) == 1:
        return specs[0]
    return tf.TensorSpec([sum(spec.shape.num_elements() for spec in specs)], specs[0].dtype)
