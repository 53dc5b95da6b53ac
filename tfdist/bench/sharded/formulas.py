"""What sharded data parallelism takes, of N weights in float32 on p workers, in layers of one size. No TensorFlow."""

__all__ = ["memory_bytes", "sent_bytes", "under_way_bytes"]


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
