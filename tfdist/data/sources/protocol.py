"""The `Source` protocol: what examples are read from when a directory is written."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tfdist.data.format.schema import Schema

#: A block of consecutive examples. Of a feature with a fixed shape: an array, examples first. Of text and bytes, and of
#: lists of any length: a list with one value (bytes or str, an array) per example.
Block = dict[str, Any]


class Source(Protocol):
    """Examples in an order.

    Attributes:
        schema: what each consists of; reading it may read the first example.
        count: how many there are, None if that is known at the end alone.
        sizes: int64, ``[count]``: about how many bytes each takes, where they differ and it is known; else None.
        seekable: whether `blocks` may start anywhere at no cost, several times, and in another process (the source
            can be pickled). A source that is not is read once, from its beginning.
        identity: JSON that differs when the examples do, as far as that can be told without reading them all.
        identifies: whether that is always so. Where it is not, the examples of finished shards are compared before an
            interrupted run goes on.
    """

    schema: Schema
    count: int | None
    sizes: NDArray[np.int64] | None
    seekable: bool
    identity: dict[str, Any]
    identifies: bool

    def blocks(self, start: int, stop: int | None) -> Iterator[Block]:
        """Yield the examples from ``start`` to ``stop`` (None: all that are left), in blocks of any size."""
