"""Cases of further engines, which processes with native collectives join beside the job's.

Each function runs in every process at once and returns its result; None where the collectives are not native.
"""

import gc
import logging
import os
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import collective_cases
import tensorflow as tf

from tfdist.collectives.backends.native_collective import Job, exchange_over, join

Groups = Sequence[Sequence[int]]


def joined(name: str, groups: Groups, **options: Any) -> Job | None:
    """Return another engine of the same members, on the same hosts."""
    if not name.startswith("native"):
        return None
    own = collective_cases.collective(name, groups, None)
    host = f"host {own.hosts[own.rank]}" if name == "native_over_tcp" else None
    device = f"/job:worker/replica:0/task:{own.rank}/device:CPU:0"
    return join(rank=own.rank, exchange=exchange_over(own), host=host, device=device, **options)


def error_of(job: Job, call: Any) -> str:
    """Return the error that a call on a job's collective ends with, as it is explained."""
    collective = job.collective()
    assert collective is not None
    try:
        call(collective)
    except tf.errors.OpError as error:
        explained = collective.explain(error, "a test")
        return f"{type(explained).__name__}: {explained}"
    return "nothing"


def total(collective: Any) -> tf.Tensor:
    return collective.all_reduce([tf.ones([5])], key="total")[0]


def different(name: str, groups: Groups) -> str | None:
    """Run another operation than the others under one key: one that needs nobody, and is done at once over TCP."""
    job = joined(name, groups)
    if job is None:
        return None
    if job.rank > 0:
        error = error_of(job, total)
    else:
        error = error_of(job, lambda one: (one.broadcast(tf.ones([5]), key="total"), one.all_reduce([0.0], key="next")))
    job.stop()
    return error


def late(name: str, groups: Groups, folder: str) -> str | None:
    """Come to an operation that the others have waited for too long: member 1."""
    job = joined(name, groups, timeout_seconds=2.0)
    if job is None:
        return None
    given_up = [Path(folder, f"given up {rank}") for rank in range(job.size)]
    while job.rank == 1 and not all(path.exists() for rank, path in enumerate(given_up) if rank != 1):
        time.sleep(0.01)
    error = error_of(job, total)
    given_up[job.rank].touch()
    job.stop()
    return error


def dropped(name: str, groups: Groups) -> tuple[int, str] | None:
    """Let go of a job that a traced function still uses; return how many threads are left of it, and the error."""
    before = set(os.listdir("/proc/self/task"))
    job = joined(name, groups)
    if job is None:
        return None
    used = [job.collective()]
    step = tf.function(lambda x: used[0].all_reduce([x], key="step")[0], autograph=False)
    step = step.get_concrete_function(tf.TensorSpec([2]))
    step(tf.ones([2]))
    used[0].all_reduce([0.0], key="all have come so far")
    mine = [task for task in os.listdir("/proc/self/task") if task not in before and _name(task) == "tfdist-native"]
    used.clear()
    del job
    gc.collect()
    left = [task for task in mine if _name(task)]
    try:
        step(tf.ones([2]))
    except tf.errors.OpError as error:
        return len(mine) - len(left), str(error)
    return len(mine) - len(left), "nothing"


def _name(task: str) -> str:
    path = Path("/proc/self/task", task, "comm")
    return path.read_text().strip() if path.exists() else ""


def without_memory(name: str, groups: Groups) -> tuple[list[int], float, list[str]] | None:
    """Join where the memory that the members would share cannot be had; return each one's host, a sum, what is said."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("tfdist.collectives.byte_exchange")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limit[1]))
    logger.addHandler(handler)
    try:
        job = joined(name, groups)
    finally:
        logger.removeHandler(handler)
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    if job is None:
        return None
    sums = total(job.collective()).numpy()
    job.stop()
    return list(job.hosts), float(sums.sum()), said
