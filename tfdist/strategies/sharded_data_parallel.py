"""Sharded data parallelism (ZeRO): workers that share the optimizer's slots among them."""

import os
from typing import Any

from tfdist import cluster as clusters
from tfdist.strategies.multi_worker_mirrored import MultiWorkerMirroredStrategy
from tfdist.variables import SHARDING_STAGE

__all__ = ["ShardedDataParallelStrategy"]


class ShardedDataParallelStrategy(MultiWorkerMirroredStrategy):
    """Synchronous data parallelism in which each of p workers holds 1 / p of the optimizer's slots.

    It is `MultiWorkerMirroredStrategy` with ``shard_optimizer=stage``, and gives the same numbers: those of one device.
    Gradients are reduced to the worker that updates their part, and the new weights are gathered from there, which is
    as many bytes as an all_reduce. Bytes in each process, of N weights in float32 with Adam, beside activations:

        4 N + 4 N + 8 N              plain: weights, gradients, slots
        4 N + (4 N + 8 N) / p        stages 1 and 2
        (4 N + 4 N + 8 N) / p        stage 3, and the weights that are whole at once: those in use and the next ones
        4 N more, or 4 N / p         what `DistributedOptimizer` accumulates, in stage 1 and in stage 2

    Args:
        cluster: who takes part and who this process is; None asks `tfdist.cluster.from_environment`.
        stage: 1 shards slots. 2 shards gradients that `DistributedOptimizer` accumulates, too: each micro-batch is
            reduced by itself. 3 shards weights, too: each is gathered when a pass needs it, and freed behind it. None
            takes the variable ``TFDIST_SHARDING_STAGE``, or else 1.
        **options: see `MultiWorkerMirroredStrategy`; there is one CPU replica in each process.

    Raises:
        ConfigError: see `MultiWorkerMirroredStrategy`.
        UnsupportedError: several replicas in a process, or GPUs. In `fit`, under stage 3: an optimizer that may look at
            the whole of a weight.

    Example:
        >>> strategy = ShardedDataParallelStrategy(stage=2)   # doctest: +SKIP
        >>> with strategy.scope():                            # doctest: +SKIP
        ...     model = keras.Sequential([keras.layers.Dense(1)])
        ...     model.compile("adam", "mse")
        >>> model.fit(x, y, batch_size=64)                    # doctest: +SKIP

    Source: S. Rajbhandari, J. Rasley, O. Ruwase, Y. He, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
    Models", 2020. Its weights are float16 with a copy in float32 among the slots; Keras' mixed policies keep float32
    weights, so there is no copy.
    """

    def __init__(self, cluster: "clusters.Cluster | None" = None, *, stage: int | None = None, **options: Any) -> None:
        super().__init__(
            cluster, shard_optimizer=SHARDING_STAGE.read(os.environ) or 1 if stage is None else stage, **options
        )
