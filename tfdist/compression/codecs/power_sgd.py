"""PowerSGD: a matrix as the product of two thin ones, found by one step of power iteration."""

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from tfdist import validation
from tfdist.compression.codec import Accuracy, Codec, Exchange, reduced_bytes
from tfdist.compression.messages import AllReduce, Context, Exchanged, State

_SEED = (7, 1919)  # of the first matrix, the same on all members


@dataclass(frozen=True, kw_only=True)
class PowerSGD(Codec):
    """A gradient of n rows and m columns at rank r: r (n + m) numbers instead of n m.

        P = sum_w M_w Q,    P := orthonormal(P),    Q_w = M_w^T P,    Q = sum_w Q_w,    result P Q^T

    Q is kept for the next step, so over steps P comes to span the largest components of the gradients. With r no less
    than n or m nothing is lost. A gradient with more axes is a matrix with the last axis as columns.

    Args:
        rank: r, the number of columns of P and Q.

    Example:
        >>> spec = tf.TensorSpec([1000, 1000], tf.float32)
        >>> reduced_bytes(1000 * 1000, 4, members=2) / PowerSGD(rank=2).wire_bytes(spec, 2)
        250.0

    Source: T. Vogels, S. P. Karimireddy and M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
    Distributed Optimization", 2019. P is made orthonormal by Householder reflections in one thread, not by the
    Gram-Schmidt process: members get the same bits, and a matrix of zeros causes no division by zero.
    """

    name: ClassVar[str] = "powersgd"
    accuracy: ClassVar[Accuracy] = "biased"
    by_tensor: ClassVar[bool] = True

    rank: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        validation.integer("rank", self.rank, minimum=1)

    def init(self, spec: tf.TensorSpec) -> tuple[State, ...]:
        """Return the first Q, drawn from a normal distribution."""
        rows, columns = _matrix(spec.shape)
        drawn = tf.random.stateless_normal([columns, self._rank(rows, columns)], _SEED, dtype=spec.dtype)
        return (State("the factors of PowerSGD", drawn, rule="keep"),)

    def wire_bytes(self, spec: tf.TensorSpec, members: int) -> float:
        """Return the bytes of the all_reduces of P and of Q."""
        rows, columns = _matrix(spec.shape)
        return reduced_bytes(self._rank(rows, columns) * (rows + columns), spec.dtype.size, members)

    def exchange(self, tensor: tf.Tensor, state: tuple[tf.Tensor, ...], context: Context) -> Exchange:
        """Add up P, make it orthonormal, and add up Q."""
        matrix = tf.reshape(tensor, _matrix(tensor.shape))
        (factor,) = state
        projected, _ = yield AllReduce(matrix @ factor)
        basis, _ = tf.linalg.qr(projected)
        total, own = yield AllReduce(tf.matmul(matrix, basis, transpose_a=True))

        def product(factor: tf.Tensor) -> tf.Tensor:
            return tf.reshape(tf.matmul(basis, factor, transpose_b=True), tensor.shape)

        return Exchanged(product(total), product(own), (total,))

    def _rank(self, rows: int, columns: int) -> int:
        return min(self.rank, rows, columns)


def _matrix(shape: tf.TensorShape) -> tuple[int, int]:
    columns = int(shape[-1]) if shape.rank else 1
    return int(shape.num_elements()) // columns, columns
