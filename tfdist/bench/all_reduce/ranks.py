"""What each rank of Open MPI runs in an all-reduce benchmark.

    mpirun -n 2 python -m tfdist.bench.all_reduce.ranks ADDRESS

ADDRESS is the path of a socket at which the benchmark listens.
"""

import json
import socket
import sys
import time
from typing import Any

import numpy as np

from tfdist.bench.all_reduce.reduced_message import values


def main() -> None:
    """Answer the lines of JSON that rank 0 receives, on all ranks together."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    tensors: list[np.ndarray] = []
    connection = socket.socket(socket.AF_UNIX)
    if world.rank == 0:
        connection.connect(sys.argv[1])
    questions = connection.makefile("r") if world.rank == 0 else None
    while True:
        line = None if questions is None else questions.readline()
        _meet(world)
        question = json.loads(world.bcast(line) or "null")
        if question is None:
            return
        if question["do"] == "prepare":
            tensors = [np.empty(count, np.float32) for count in question["elements"]]
            answer: Any = _wrong(world, tensors, question["warm_up"])
        elif question["do"] == "measure":
            answer = _times(world, tensors, question["calls"])
        else:
            answer = world.size
        if world.rank == 0:
            connection.sendall((json.dumps(answer) + "\n").encode())


def _meet(world: Any) -> None:
    """Wait for all ranks asleep: Open MPI itself polls, and would slow down the engine whose turn it is."""
    all_here = world.Ibarrier()
    while not all_here.Test():
        time.sleep(0.002)


def _reduce(world: Any, tensors: list[np.ndarray]) -> None:
    from mpi4py import MPI

    for tensor in tensors:
        world.Allreduce(MPI.IN_PLACE, tensor)


def _wrong(world: Any, tensors: list[np.ndarray], warm_up: int) -> int:
    for _ in range(warm_up):
        for index, tensor in enumerate(tensors):
            tensor[:] = values(tensor.size, tensor=index, worker=world.rank)
        _reduce(world, tensors)
    wrong = 0
    for index, tensor in enumerate(tensors):
        expected = sum(values(tensor.size, tensor=index, worker=rank) for rank in range(world.size))
        wrong += int(np.count_nonzero(tensor != expected))
    return int(world.allreduce(wrong))


def _times(world: Any, tensors: list[np.ndarray], calls: int) -> list[tuple[float, float]]:
    """The last rank's times of each call, after one call that does not count."""
    own = []
    for call in range(calls + 1):
        for tensor in tensors:
            tensor.fill(call)
        world.Barrier()  # else one rank could be a call ahead of the others
        began = time.monotonic()
        _reduce(world, tensors)
        own.append((began, time.monotonic()))
    of_ranks = world.allgather(own[1:])
    return [(max(one[0] for one in call), max(one[1] for one in call)) for call in zip(*of_ranks, strict=True)]


if __name__ == "__main__":
    main()
