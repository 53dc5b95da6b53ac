"""A bare loop that adds up an array through memory that processes share: `native/bare/sum.cc`.

The loop makes only the passes over memory that a sum needs, without a framework or threads. So it is nearer to what an
all-reduce can reach than a copy is. It is compiled when it is first measured.
"""

import contextlib
import ctypes
import mmap
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tfdist import cluster as clusters
from tfdist.bench.all_reduce.reduced_message import values
from tfdist.errors import DeadlineError
from tfdist.native import build_target, library
from tfdist.variables import BENCH_MEMORY

__all__ = ["measure", "memory", "prepare", "start"]


@dataclass
class _Sums:
    """The loop, and the memory of its slots."""

    library: ctypes.CDLL
    memory: mmap.mmap
    member: int
    members: int

    def of(self, array: np.ndarray) -> None:
        """Sum an array over all workers, in place."""
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        done = self.library.tfdist_bare_sum(base, self.member, self.members, array.ctypes.data, array.size)
        if not done:
            raise DeadlineError("another worker did not come to a sum within 60 s. See its output.")


_started: list[_Sums] = []
_arrays: list[np.ndarray] = []  # what is added up, and what it is written anew from


@contextlib.contextmanager
def memory() -> Iterator[str]:
    """Yield where workers of this host open memory that is theirs alone; it ends with the last of them."""
    file = os.memfd_create("tfdist-bench")
    try:
        os.fchmod(file, 0o600)
        yield f"/proc/{os.getpid()}/fd/{file}"
    finally:
        os.close(file)


def start(engine: str) -> None:
    del engine
    workers = clusters.from_environment()
    built = library.build(library.BARE, build_target.observe(), os.environ)
    loop, size = ctypes.CDLL(str(built.path)), ctypes.c_size_t
    loop.tfdist_bare_bytes.restype, loop.tfdist_bare_bytes.argtypes = size, [size]
    loop.tfdist_bare_sum.restype = ctypes.c_bool
    loop.tfdist_bare_sum.argtypes = [ctypes.c_void_p, size, size, ctypes.c_void_p, size]
    length = loop.tfdist_bare_bytes(workers.num_workers)
    with open(BENCH_MEMORY.read(os.environ), "r+b") as file:
        os.ftruncate(file.fileno(), length)  # every worker does, to the same length
        shared = mmap.mmap(file.fileno(), length)
    _started[:] = [_Sums(loop, shared, workers.worker_index, workers.num_workers)]


def prepare(engine: str, elements: Sequence[int], warm_up: int) -> int:
    del engine
    sums, count = _started[-1], sum(elements)
    for _ in range(warm_up):
        own = values(count, tensor=0, worker=sums.member)
        _arrays[:] = [own.copy(), own]
        sums.of(_arrays[0])
    expected = sum(values(count, tensor=0, worker=worker) for worker in range(sums.members))
    return int(np.count_nonzero(_arrays[0] != expected))


def measure(engine: str, calls: int) -> list[tuple[float, float]]:
    del engine
    array, source = _arrays
    times = []
    for call in range(calls + 1):
        np.multiply(source, np.float32(call), out=array)  # as the engines' tensors are: caches hold the source too
        began = time.monotonic()
        _started[-1].of(array)
        times.append((began, time.monotonic()))
    return times[1:]
