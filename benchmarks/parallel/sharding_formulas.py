"""Memory and bytes of sharded data parallelism by formulas, and how memory is measured to be compared with them.

The formulas are of N weights in float32 on p workers, in layers of one size. Measured is the largest resident memory of
a process, less that of one that trains a narrow network of as many layers in buckets as much smaller. So the graph of a
step, a megabyte or two for each layer, is in both, and what is left are tensors. Each process trains on one example,
since the formula has no activations. Processes give memory back to the system as soon as it is freed, which is slower.
"""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["GIVING_BACK", "above", "batch", "memory_bytes", "narrow", "sent_bytes", "under_way_bytes"]

#: TensorFlow's allocator for oneDNN keeps what is freed, and so does glibc's for pieces of less than this
GIVING_BACK: Mapping[str, str] = {
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "MALLOC_MMAP_THRESHOLD_": str(64 << 10),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 10),
}
_NARROW_UNITS = 32


def memory_bytes(parameters: int, workers: int, stage: int | None, *, layers: int) -> float:
    """Return the bytes of weights, gradients and Adam's slots in each process.

    Under stage 3 the weights of two layers are whole: one is used, and the next one arrives.

    Args:
        parameters: of all layers.
        workers: number of processes.
        stage: of sharding, or None.
        layers: number of them.

    Example:
        >>> [memory_bytes(100, 4, stage, layers=10) for stage in (None, 1, 2, 3)]
        [1600.0, 700.0, 700.0, 480.0]
    """
    if stage == 3:
        return 4.0 * parameters * (4 / workers + 2 / max(layers, 2))
    return 4.0 * parameters * (1 + 3 / (1 if stage is None else workers))


def under_way_bytes(parameters: int, stage: int | None, *, layers: int) -> float:
    """Return the bytes of what is whole for a moment, on top of `memory_bytes`, however many layers there are.

    While slots and parts of all gradients are there, two layers are under way: in the update new weights, of which one
    travels and the next one is made; under stage 3 gradients at the end of the backward pass. Nothing waits under plain
    data parallelism, where all gradients are whole.

    Args:
        parameters: of all layers.
        stage: of sharding, or None.
        layers: number of them, each as large as a bucket or larger.

    Example:
        >>> [under_way_bytes(100, stage, layers=10) for stage in (None, 1, 2, 3)]
        [0.0, 80.0, 80.0, 80.0]
    """
    return 0.0 if stage is None else 4.0 * parameters * 2 / max(layers, 2)


def sent_bytes(parameters: int, workers: int, stage: int | None, *, layers: int) -> float:
    """Return the bytes that each worker sends in a step, headers left out.

    An all_reduce of gradients sends as many as their reduce_scatter and an all_gather of the weights. Under stage 3
    these are gathered twice, but for two layers: the last one of the forward pass is still there for the backward pass,
    which asks for no gradient by what the first one takes.

    Args:
        parameters: of all layers.
        workers: number of processes.
        stage: of sharding, or None.
        layers: number of them.

    Example:
        >>> [sent_bytes(100, 2, stage, layers=10) for stage in (None, 1, 2, 3)]
        [400.0, 400.0, 400.0, 560.0]
    """
    passes = 3 - 2 / max(layers, 2) if stage == 3 else 2
    return 4.0 * parameters * passes * (workers - 1) / workers


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
