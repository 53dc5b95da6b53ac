"""One processor for each worker process."""

import os

import tensorflow as tf

from tfdist import cluster as clusters

__all__ = ["bind"]


def bind() -> None:
    """Let what this thread starts run on one processor, another one for each worker."""
    worker = clusters.from_environment().worker_index
    if hasattr(os, "sched_setaffinity"):
        every = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {every[worker % len(every)]})
    tf.config.threading.set_intra_op_parallelism_threads(1)
