"""Lower bounds of an all-reduce, measured in the same turns: the line between the workers, and the machine's memory.

- ``tcp``: each worker sends the next one as many bytes as an all-reduce must, 2 S (n - 1) / n, and receives as many,
  over one kernel connection and without additions;
- ``memcpy``: each worker copies S bytes from one array, written anew each time, to another;
- ``bare``: a loop without a framework or threads (`native/bare/sum.cc`) adds up an array through shared memory, with
  the passes over memory that a sum needs. It is closer than a copy to what an all-reduce can reach, and is compiled on
  first use.
"""

import contextlib
import ctypes
import mmap
import os
import select
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tfdist import cluster as clusters
from tfdist.bench.all_reduce.reduced_message import values
from tfdist.cluster.cluster_values import split_address
from tfdist.errors import DeadlineError
from tfdist.native import build_target, library
from tfdist.variables import BENCH_MEMORY

_MEET_SECONDS = 120.0
_PART = 1 << 20

_connections: list[socket.socket] = []  # to the next worker, from the one before
_arrays: list[np.ndarray] = []  # the own values, and where they are sent, copied, or summed in place
_sums: list["_Sums"] = []


@dataclass
class _Sums:
    """The bare loop, and the memory of its slots."""

    library: ctypes.CDLL
    memory: mmap.mmap
    member: int
    members: int

    def add_up(self, array: np.ndarray) -> None:
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        done = self.library.tfdist_bare_sum(base, self.member, self.members, array.ctypes.data, array.size)
        if not done:
            raise DeadlineError("another worker did not reach a sum within 60 s. See its output.")


@contextlib.contextmanager
def shared_memory() -> Iterator[str]:
    """Yield the path of memory that only workers of this host can open; it ends with the last of them."""
    file = os.memfd_create("tfdist-bench")
    try:
        os.fchmod(file, 0o600)
        yield f"/proc/{os.getpid()}/fd/{file}"
    finally:
        os.close(file)


def _start_bare() -> None:
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
    _sums[:] = [_Sums(loop, shared, workers.worker_index, workers.num_workers)]


def start(engine: str) -> None:
    """Connect each worker to the next, or to the memory that it shares."""
    if engine == "bare":
        _start_bare()
    if engine != "tcp":
        return
    workers = clusters.from_environment()
    addresses = workers.require_addresses()
    host, port = split_address("address", addresses[workers.worker_index])
    with socket.create_server((host, port)) as listener:
        to = _reached(addresses[(workers.worker_index + 1) % workers.num_workers])
        listener.settimeout(_MEET_SECONDS)
        back, _ = listener.accept()
    for connection in (to, back):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
    _connections[:] = [to, back]


def prepare(engine: str, elements: Sequence[int], warm_up: int) -> int:
    workers = clusters.from_environment()
    count, before = sum(elements), workers.worker_index
    if engine == "tcp":
        count = count * 2 * (workers.num_workers - 1) // workers.num_workers
        before = (workers.worker_index - 1) % workers.num_workers
    own = values(count, tensor=0, worker=workers.worker_index)
    _arrays[:] = [own, np.zeros(count, np.float32)]
    for _ in range(warm_up):
        if engine == "bare":  # sums in place
            np.copyto(_arrays[1], own)
        _move(engine)
    members = range(workers.num_workers) if engine == "bare" else (before,)
    return int(np.count_nonzero(_arrays[1] != sum(values(count, tensor=0, worker=one) for one in members)))


def measure(engine: str, calls: int) -> list[tuple[float, float]]:
    times = []
    source, target = _arrays
    for call in range(calls + 1):
        if engine == "bare":  # as the engines' tensors are written: caches hold the source too
            np.multiply(source, np.float32(call), out=target)
        else:
            source.fill(call)
        began = time.monotonic()
        _move(engine)
        times.append((began, time.monotonic()))
    return times[1:]


def _move(engine: str) -> None:
    source, target = _arrays
    if engine == "bare":
        _sums[-1].add_up(target)
    elif engine == "memcpy":
        np.copyto(target, source)
    else:
        _exchange(source.view(np.uint8).data, target.view(np.uint8).data)


def _exchange(out: memoryview, back: memoryview) -> None:
    to, source = _connections
    sent = received = 0
    while sent < len(out) or received < len(back):
        select.select([source] if received < len(back) else [], [to] if sent < len(out) else [], [])
        with contextlib.suppress(BlockingIOError):
            sent += to.send(out[sent : sent + _PART]) if sent < len(out) else 0
        with contextlib.suppress(BlockingIOError):
            received += _some(source, back[received : received + _PART]) if received < len(back) else 0


def _some(source: socket.socket, into: memoryview) -> int:
    count = source.recv_into(into)
    if not count:
        raise ConnectionError("the previous worker has ended.")
    return count


def _reached(address: str) -> socket.socket:
    deadline = time.monotonic() + _MEET_SECONDS
    while True:
        try:
            return socket.create_connection(split_address("address", address), timeout=_MEET_SECONDS)
        except OSError as error:
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"the worker at {address} was not reached within {_MEET_SECONDS:g} s ({error}). See its output."
                ) from error
            time.sleep(0.05)
