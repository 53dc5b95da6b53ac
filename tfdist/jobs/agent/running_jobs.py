"""Running jobs of this machine: found by id, resized, and checked for progress.

An elastic job has a Unix socket in the user's private cache folder. A client sends one line of JSON and gets one line
back when the job continues, or cannot.
"""

import contextlib
import json
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tfdist import cache
from tfdist.cluster.job_files import MEMORY
from tfdist.errors import ConfigError, DeadlineError, TfdistError
from tfdist.jobs.supervision.supervisor_state import Asked
from tfdist.monitor.phases import Activity
from tfdist.monitor.status import WorkerStatus, read_all
from tfdist.validation import shown
from tfdist.variables import CACHE_DIR

_LONGEST = 4096  # bytes of a line
_ENDED = "the job has ended"
_PAUSE_SECONDS = 0.1  # before a socket that could not accept is tried again
_PATIENCE_SECONDS = 5.0  # for the whole of a request, and for an answer to be taken
_PAGES = "tfdist-*/progress-*"  # `job_files.progress_file`, in a directory of `process.resources.guarded`


def folder(environ: Mapping[str, str]) -> Path:
    return cache.folder(environ) / "jobs"


def place(environ: Mapping[str, str], job_id: str) -> Path:
    return folder(environ) / f"{job_id}.sock"


class Control:
    def __init__(self, path: Path, events: "SimpleQueue[Any]", workers: tuple[int, int]) -> None:
        self._events = events
        self._workers = workers
        self._waiting: list[tuple[int, socket.socket]] = []
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._server = socket.socket(socket.AF_UNIX)
        with cache.reachable(path) as name:
            self._server.bind(name)
        self._server.listen(8)
        self._thread = threading.Thread(target=self._serve, name="job control", daemon=True)
        self._thread.start()

    def answer(self, workers: int | None, *, ok: bool, text: str) -> None:
        """Answer the clients that asked for this number of workers; all clients if it is None."""
        with self._lock:
            due = [one for wanted, one in self._waiting if workers in (None, wanted)]
            self._waiting = [(wanted, one) for wanted, one in self._waiting if one not in due]
        for one in due:
            _reply(one, ok=ok, text=text)

    def close(self) -> None:
        """Tell waiting clients that the job has ended."""
        with self._lock:
            self._ended.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # ends accept
        self._thread.join(_PATIENCE_SECONDS)
        self._server.close()
        self.answer(None, ok=False, text=_ENDED)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:  # closed, or out of descriptors for now
                if self._ended.wait(_PAUSE_SECONDS):
                    return
                continue
            # a client that sends nothing, or a byte now and then, holds up no other
            try:
                threading.Thread(target=self._hear, args=(connection,), name="job control client", daemon=True).start()
            except RuntimeError:  # no thread can be started now; later clients may be answered
                connection.close()

    def _hear(self, connection: socket.socket) -> None:
        try:
            workers = _workers(_line(connection, _PATIENCE_SECONDS))
        except OSError:  # a client that only looks whether the job runs
            connection.close()
        except ConfigError as error:
            _reply(connection, ok=False, text=str(error))
        else:
            self._take(connection, workers)

    def _take(self, connection: socket.socket, workers: int) -> None:
        least, most = self._workers
        if not least <= workers <= most:
            text = f"the number is {shown(workers)}; the job was started with --min-workers {least} and "
            _reply(connection, ok=False, text=f"{text}--max-workers {most}. Ask for a number between them.")
            return
        with self._lock:
            if not self._ended.is_set():
                self._waiting.append((workers, connection))
                self._events.put(Asked(workers=workers))
                return
        _reply(connection, ok=False, text=_ENDED)


def _workers(line: bytes) -> int:
    try:
        asked = json.loads(line)
    except (ValueError, RecursionError):
        asked = None
    workers = asked.get("workers") if isinstance(asked, dict) else None
    if type(workers) is not int:
        raise ConfigError(
            f"the request is {shown(line.decode(errors='replace'))}; it must be one line of JSON with a whole number, "
            'such as {"workers": 3}. `tfdist resize` sends it.',
            name="request",
            received=line.decode(errors="replace"),
        )
    return workers


@contextlib.contextmanager
def controlled(path: Path, events: "SimpleQueue[Any]", workers: tuple[int, int]) -> Iterator[Control]:
    cache.make(path.parent.parent, (path.parent.name,))
    path.parent.chmod(0o700)
    try:
        control = Control(path, events, workers)
    except OSError as error:
        raise ConfigError(
            f"no socket can be made in {path.parent} ({error}). Name another folder: export TFDIST_CACHE_DIR=/path",
            name=CACHE_DIR.name,
            path=path.parent,
        ) from error
    try:
        yield control
    finally:
        path.unlink(missing_ok=True)
        control.close()


def running(environ: Mapping[str, str]) -> list[str]:
    """Return the ids of this user's running jobs; remove the sockets of ended jobs."""
    found = []
    for path in sorted(folder(environ).glob("*.sock")):
        try:
            _connected(path).close()
        except (ConnectionRefusedError, FileNotFoundError):  # nobody listens there any more
            path.unlink(missing_ok=True)
            continue
        except OSError:  # it is busy, or this process lacks something: another client may reach it
            pass
        found.append(path.stem)
    return found


def ask(environ: Mapping[str, str], job: str, workers: int, *, timeout_seconds: float) -> str:
    """Ask a job for another number of workers; return its answer once all of them step."""
    ids = running(environ)
    fitting = [one for one in ids if one.startswith(job)]
    if len(fitting) != 1:
        known = f"These run: {', '.join(ids)}." if ids else "None runs: start one with --min-workers or --max-workers."
        raise ConfigError(
            f"job is {job!r}; {'no' if not fitting else 'more than one'} job has an id like it. {known}",
            name="job",
            received=job,
        )
    try:
        with _connected(place(environ, fitting[0]), patience_seconds=timeout_seconds) as connection:
            connection.sendall(json.dumps({"workers": workers}).encode() + b"\n")
            answer = json.loads(_line(connection, timeout_seconds))
    except (TimeoutError, BlockingIOError) as error:
        raise DeadlineError(
            f"the job {fitting[0]} does not step with {workers} workers after {timeout_seconds:g} s. It changes once "
            "all of its workers have come to a step: look at its output.",
            name=fitting[0],
        ) from error
    except (OSError, ValueError) as error:
        raise TfdistError(f"the job {fitting[0]} has ended, or does not answer ({error}).", name=fitting[0]) from error
    if not answer["ok"]:
        raise TfdistError(f"job {fitting[0]}: {answer['text']}", name=fitting[0])
    return str(answer["text"])


def _connected(path: Path, *, patience_seconds: float = 0.0) -> socket.socket:
    deadline = time.monotonic() + patience_seconds
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_PATIENCE_SECONDS)  # without one, connecting waits for ever
    try:
        with cache.reachable(path) as name:
            while True:
                try:
                    connection.connect(name)
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise
                    time.sleep(_PAUSE_SECONDS)
                else:
                    return connection
    except OSError:
        connection.close()
        raise


def _line(connection: socket.socket, seconds: float) -> bytes:
    """The next line, or the beginning of one that is too long."""
    deadline = time.monotonic() + seconds
    line = b""
    while not line.endswith(b"\n") and len(line) < _LONGEST:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no line has come in {seconds:g} s")
        connection.settimeout(left)
        more = connection.recv(_LONGEST)
        if not more:
            raise ConnectionResetError("it said nothing")
        line += more
    return line


def _reply(connection: socket.socket, *, ok: bool, text: str) -> None:
    with contextlib.suppress(OSError):  # the client is gone
        connection.settimeout(_PATIENCE_SECONDS)
        connection.sendall(json.dumps({"ok": ok, "text": text}).encode() + b"\n")
    connection.close()


def worker_pages(folders: Sequence[Path] | None = None) -> dict[str, tuple[WorkerStatus, ...]]:
    """The status of the workers of every job of this user, by the path of its table."""
    places = (MEMORY, Path(tempfile.gettempdir())) if folders is None else folders
    found = {}
    for path in sorted({path for place in places for path in place.glob(_PAGES)}):
        try:
            found[str(path)] = read_all(path)
        except (OSError, ConfigError):  # it has ended meanwhile, or is another user's
            continue
    return found


def stalled_workers(
    pages: Mapping[str, Sequence[WorkerStatus]], *, now: float, stall_seconds: float
) -> tuple[str, ...]:
    """A sentence for each worker without progress for too long; a silent, ended or standby worker is not blamed."""
    return tuple(
        f"worker {worker} ({path}) has been {said.activity.name.lower()} for {now - said.changed:.0f} s"
        for path, workers in pages.items()
        for worker, said in enumerate(workers)
        if said.changed
        and said.activity not in (Activity.ENDED, Activity.RESERVE)
        and now - said.changed > stall_seconds
    )
