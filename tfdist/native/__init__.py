"""TensorFlow ops of tfdist, compiled on their first use; importing this package loads no TensorFlow."""

from tfdist.native.ops import Records, records

__all__ = ["Records", "records"]
