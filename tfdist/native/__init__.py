"""TensorFlow ops of our own, compiled on their first use; loads no TensorFlow before."""

from tfdist.native.ops import Records, records

__all__ = ["Records", "records"]
