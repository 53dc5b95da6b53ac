"""The implementations of `Collective` that the battery goes over: one line here adds one.

Each maker is called by every process of a pool with the same groups, and returns the collective of all processes and
those of the groups, None where the process is in none. Where members are replicas of one process, each calls it in a
thread of its own.
"""

import functools
import hmac
import json
import os
import secrets
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tfdist import cluster as clusters
from tfdist.cluster import job_key

_Made = tuple[Any, list[Any]]

_making = threading.Lock()
#: of this process, those of the native collectives
JOBS: list[Any] = []
#: what members answered to a stranger who knew all that members had told each other, and not the key of the job
ANSWERS: list[bytes] = []


def horovod(groups: Sequence[Sequence[int]]) -> _Made:
    from tfdist.collectives.backends import horovod_job

    cluster = clusters.from_environment()
    everybody = tuple(range(cluster.num_workers))
    proper = [tuple(group) for group in groups if tuple(group) != everybody]
    job = horovod_job.join(cluster, groups=proper, timeout_seconds=100, lost_seconds=20)
    return job.collective(everybody), [job.collective(g) if cluster.worker_index in g else None for g in groups]


def tensorflow(groups: Sequence[Sequence[int]]) -> _Made:
    import tfdist.strategies
    from tfdist.collectives.backends.tensorflow_collective import of_workers
    from tfdist.compat.tensorflow import coordination_service

    coordination_service._SILENCE_SECONDS = 20  # some members hear of a death by heartbeats alone
    strategy = tfdist.strategies.MultiWorkerMirroredStrategy(collectives="tensorflow")
    cluster = clusters.from_environment()
    return strategy.workers.collective, [of_workers(cluster, group) for group in groups]


def native(groups: Sequence[Sequence[int]]) -> _Made:
    return _native(groups, None)


def native_over_tcp(groups: Sequence[Sequence[int]]) -> _Made:
    """Pretend that there are two hosts, and processes on them in turns."""
    cluster = clusters.from_environment()
    return _native(groups, f"host {hosts('native_over_tcp', cluster.num_workers)[cluster.worker_index]}")


def _native(groups: Sequence[Sequence[int]], host: str | None) -> _Made:
    import tfdist.strategies
    from tfdist.collectives.backends.native_collective import exchange_over, join

    strategy = tfdist.strategies.MultiWorkerMirroredStrategy(collectives="tensorflow")
    cluster = clusters.from_environment()
    device = f"/job:worker/replica:0/task:{cluster.worker_index}/device:CPU:0"
    exchange = exchange_over(strategy.workers.collective)
    if cluster.worker_index == 1:
        exchange = _with_a_stranger(exchange, cluster.num_workers)
    secret = job_key.from_environment(os.environ)
    assert secret is not None
    job = join(rank=cluster.worker_index, exchange=exchange, host=host, device=device, secret=secret)
    JOBS.append(job)
    return job.collective(), [job.collective(group) for group in groups]


@functools.cache
def _replicas(count: int) -> Any:
    import tfdist.strategies
    from tfdist.collectives.backends.replica_collectives import of_replicas

    tfdist.strategies.use_logical_cpus(count)
    return of_replicas([f"/device:CPU:{rank}" for rank in range(count)])


def native_in_one_process(groups: Sequence[Sequence[int]], rank: int, count: int) -> _Made:
    with _making:  # one for all threads
        own = _replicas(count)[rank]
    return own, [own.among(group) for group in groups]


def _with_a_stranger(exchange: Any, members: int) -> Any:
    """Return the same exchange, behind which a stranger says to the first member that it is member 1."""
    drawn: list[str] = []

    def exchanged(mine: bytes) -> list[bytes]:
        every = exchange(mine)
        told = [json.loads(one) for one in every]
        drawn.extend(one["drawn"] for one in told if "drawn" in one)
        if told[0].get("port"):
            key = job_key.derived(secrets.token_bytes(32), "native collectives", drawn)
            ANSWERS.append(_answer_to_a_stranger((told[0]["address"], int(told[0]["port"])), key, members))
        return every

    return exchanged


def _answer_to_a_stranger(address: tuple[str, int], key: bytes, members: int) -> bytes:
    """Return the answer to a handshake that is right but for the key; see `handshake.h`."""
    with socket.create_connection(address, timeout=60) as connection:
        challenge = b""
        while len(challenge) < 40:
            challenge += connection.recv(40 - len(challenge))
        claim = struct.pack("<QIIII", 0, 1, 0, members, 0)
        answer = challenge[:8] + secrets.token_bytes(32) + claim
        connection.sendall(answer + hmac.digest(key, b"connects" + challenge + answer, "sha256"))
        try:
            return connection.recv(1)
        except ConnectionResetError:
            return b""


def local(groups: Sequence[Sequence[int]]) -> _Made:
    from tfdist.collectives.backends.local_collective import LocalCollective

    return LocalCollective(), [LocalCollective() for _ in groups]


#: by name, with the strategy that `tfdist run` would be told, and the numbers of processes that it is tried with
MAKERS: dict[str, tuple[Callable[..., _Made], str, tuple[int, ...]]] = {
    "horovod": (horovod, "ring", (3,)),
    "tensorflow": (tensorflow, "multi-worker", (3,)),
    "native": (native, "multi-worker", (2, 3)),
    "native_over_tcp": (native_over_tcp, "multi-worker", (3, 4)),
    "native_in_one_process": (native_in_one_process, "mirrored", (2, 3)),
    "local": (local, "mirrored", (1,)),
}


def hosts(name: str, count: int) -> list[int]:
    """Return the host of each process, as an implementation sees it."""
    return [rank % 2 if name == "native_over_tcp" else 0 for rank in range(count)]
