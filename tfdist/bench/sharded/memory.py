"""Memory of a process that trains, as it is measured to compare it with `formulas.memory_bytes`.

It is the largest resident memory of a process, less that of one that trains a narrow network of as many
layers in buckets as much smaller. So the graph of a step, a megabyte or two for each layer, is in both, and what is
left are tensors. Each process trains on one example, since the formula has no activations. Processes give memory back
to the system as soon as it is freed, which is slower.
"""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["GIVING_BACK", "above", "batch", "narrow"]

#: TensorFlow's allocator for oneDNN keeps what is freed, and so does glibc's for pieces of less than this
GIVING_BACK: Mapping[str, str] = {
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "MALLOC_MMAP_THRESHOLD_": str(64 << 10),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 10),
}
_NARROW_UNITS = 32


def batch(workers: int) -> dict[str, float]:
    """Return the global batch of which each worker has one example, so that activations are next to nothing.

    Example:
        >>> batch(4)
        {'batch_size': 4}
    """
    return {"batch_size": workers}


def narrow(units: int) -> dict[str, float]:
    """Return units of the layers that stand beside some, and how much smaller a bucket has to be to hold as many.

    Example:
        >>> narrow(64)
        {'units': 32, 'bucket_part': 0.25}
    """
    few = min(_NARROW_UNITS, units)
    return {"units": few, "bucket_part": (few / units) ** 2}


def above(wide: Sequence[Mapping[str, Any]], narrow: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return for each process how much more memory a network takes than a narrow one.

    Args:
        wide: what each process has measured.
        narrow: the same of the narrow network.

    Example:
        >>> above([{"peak_bytes": 9}, {"peak_bytes": 8}], [{"peak_bytes": 2}, {"peak_bytes": 3}])
        [7, 5]
    """
    return [one["peak_bytes"] - other["peak_bytes"] for one, other in zip(wide, narrow, strict=True)]
