"""TensorFlow ops of our own, compiled on their first use; loads no TensorFlow before.

Each file has one part: the ops in C++ (`records.cc`, with `maps.h` and `crc32c.h`), what they are compiled for
(`target`), how, and where the library is kept (`library`), and what Python calls (`ops`).
"""

from tfdist.native.ops import Records, records

__all__ = ["Records", "records"]
