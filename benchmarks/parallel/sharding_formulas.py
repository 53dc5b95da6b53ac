"""Memory and bytes of sharded data parallelism by formulas, and the comparable way to measure memory.

The formulas are for N weights in float32 on p workers, in layers of one size. The measured value is the largest
resident memory of a process, minus that of a process that trains a narrow network. That network has as many layers, and
proportionally smaller buckets. So the graph of a step, a megabyte or two for each layer, is in both, and the difference
consists of tensors. Each process trains on one example, since the formula has no activations. Processes return memory
to the system as soon as it is freed, which is slower.
"""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["GIVING_BACK", "above", "batch", "memory_bytes", "narrow", "sent_bytes", "under_way_bytes"]

#: TensorFlow's allocator for oneDNN keeps freed memory, and so does glibc's for pieces smaller than this
GIVING_BACK: Mapping[str, str] = {
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "MALLOC_MMAP_THRESHOLD_": str(64 << 10),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 10),
}
_NARROW_UNITS = 32


def memory_bytes(parameters: int, workers: int, stage: int | None, *, layers: int) -> float:
    """Return the bytes of weights, gradients and Adam's slots in each process.

    Under stage 3 the weights of two layers are whole: one layer is in use, and the next one arrives.

    Example:
        >>> [memory_bytes(100, 4, stage, layers=10) for stage in (None, 1, 2, 3)]
        [1600.0, 700.0, 700.0, 480.0]
    """
    if stage == 3:
        return 4.0 * parameters * (4 / workers + 2 / max(layers, 2))
    return 4.0 * parameters * (1 + 3 / (1 if stage is None else workers))


def under_way_bytes(parameters: int, stage: int | None, *, layers: int) -> float:
    """Return the bytes of tensors that are whole for a moment, in addition to `memory_bytes`, for any number of layers.

    While slots and parts of all gradients exist, two layers are under way. In the update these are new weights, of
    which one is sent while the next one is made. Under stage 3 they are gradients at the end of the backward pass.
    Plain data parallelism has no such tensors, because all its gradients are whole.

    Example:
        >>> [under_way_bytes(100, stage, layers=10) for stage in (None, 1, 2, 3)]
        [0.0, 80.0, 80.0, 80.0]
    """
    return 0.0 if stage is None else 4.0 * parameters * 2 / max(layers, 2)


def sent_bytes(parameters: int, workers: int, stage: int | None, *, layers: int) -> float:
    """Return the bytes that each worker sends in a step, without headers.

    An all_reduce of gradients sends as many as their reduce_scatter and an all_gather of the weights. Under stage 3 the
    weights are gathered twice, except those of two layers: those of the last layer are still there when the backward
    pass begins, and the backward pass needs no gradient of the first layer's input.

    Example:
        >>> [sent_bytes(100, 2, stage, layers=10) for stage in (None, 1, 2, 3)]
        [400.0, 400.0, 400.0, 560.0]
    """
    passes = 3 - 2 / max(layers, 2) if stage == 3 else 2
    return 4.0 * parameters * passes * (workers - 1) / workers


def batch(workers: int) -> dict[str, float]:
    """Return the global batch of which each worker has one example, so that activations take almost no memory.

    Example:
        >>> batch(4)
        {'batch_size': 4}
    """
    return {"batch_size": workers}


def narrow(units: int) -> dict[str, float]:
    """Return the units of the narrow network's layers, and the factor of a bucket that holds as many of them.

    Example:
        >>> narrow(64)
        {'units': 32, 'bucket_part': 0.25}
    """
    few = min(_NARROW_UNITS, units)
    return {"units": few, "bucket_part": (few / units) ** 2}


def above(wide: Sequence[Mapping[str, Any]], narrow: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return for each process the extra memory of a network, compared with a narrow one.

    Example:
        >>> above([{"peak_bytes": 9}, {"peak_bytes": 8}], [{"peak_bytes": 2}, {"peak_bytes": 3}])
        [7, 5]
    """
    return [one["peak_bytes"] - other["peak_bytes"] for one, other in zip(wide, narrow, strict=True)]
