"""Lower bounds of an all-reduce, measured in the same turns: the line between the workers, and the machine's memory.

- ``tcp``: each worker sends the next one as many bytes as an all-reduce has to, 2 S (n - 1) / n, and receives as many:
  one connection of the kernel's, nothing added up;
- ``memcpy``: each worker copies S bytes from one array, written anew each time, to another.
"""

import contextlib
import select
import socket
import time
from collections.abc import Sequence

import numpy as np

from tfdist import cluster as clusters
from tfdist.bench.all_reduce.reduced_message import values
from tfdist.cluster.cluster_values import split_address
from tfdist.errors import DeadlineError

__all__ = ["measure", "prepare", "start"]

_MEET_SECONDS = 120.0
_PART = 1 << 20

_connections: list[socket.socket] = []  # to the next worker, from the one before
_arrays: list[np.ndarray] = []  # what is sent or copied, and where to


def start(engine: str) -> None:
    """Connect each worker to the next."""
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
    count = sum(elements)
    before = workers.worker_index
    if engine == "tcp":
        count = count * 2 * (workers.num_workers - 1) // workers.num_workers
        before = (workers.worker_index - 1) % workers.num_workers
    _arrays[:] = [values(count, tensor=0, worker=workers.worker_index), np.zeros(count, np.float32)]
    for _ in range(warm_up):
        _move(engine)
    return int(np.count_nonzero(_arrays[1] != values(count, tensor=0, worker=before)))


def measure(engine: str, calls: int) -> list[tuple[float, float]]:
    times = []
    for call in range(calls + 1):
        _arrays[0].fill(call)
        began = time.monotonic()
        _move(engine)
        times.append((began, time.monotonic()))
    return times[1:]


def _move(engine: str) -> None:
    source, target = _arrays
    if engine == "memcpy":
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
        raise ConnectionError("the worker before this one has ended.")
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
