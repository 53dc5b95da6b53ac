"""The reports of a host agent: its workers' output, recorded steps, and status tables."""

import base64
import os
import select
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tfdist.cluster.job_files import steps_folder
from tfdist.errors import ConfigError
from tfdist.monitor.status import SETTLE_SECONDS, StatusTable, Word

CREDIT_BYTES = 1 << 18  # of a stream that the agent has not written yet
_CHUNK = 1 << 15
_POLL_MILLISECONDS = 500


class Forward:
    """A forwarder of a process's stream, no faster than the agent takes it."""

    def __init__(self, descriptor: int, handle: int, stream: int, send: Callable[[dict[str, Any]], None]) -> None:
        self._descriptor = descriptor
        self._handle = handle
        self._stream = stream
        self._send = send
        self._credit = CREDIT_BYTES
        self._given = threading.Condition()
        self._finishing = threading.Event()

    def give(self, count: int) -> None:
        """Allow this many further bytes."""
        with self._given:
            self._credit += count
            self._given.notify()

    def finish(self) -> None:
        """Forward the output of ended processes, without waiting for others that hold the stream."""
        self._finishing.set()

    def run(self) -> None:
        for data in self._read():
            with self._given:
                self._given.wait_for(lambda: self._credit > 0)
                self._credit -= len(data)
            self._send({"output": self._handle, "stream": self._stream, "data": base64.b64encode(data).decode()})
        self._send({"output": self._handle, "stream": self._stream, "data": ""})

    def _read(self) -> Iterator[bytes]:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        try:
            while True:
                is_last = self._finishing.is_set()
                if poll.poll(0 if is_last else _POLL_MILLISECONDS):
                    if not (data := os.read(self._descriptor, _CHUNK)):
                        return
                    yield data
                elif is_last:
                    return
        except OSError:
            return
        finally:
            os.close(self._descriptor)


class Steps:
    """A reader of newly recorded steps of the workers. NumPy is loaded with the first."""

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        self._starts: list[int] = []
        self._seen: dict[tuple[int, int], int] = {}  # of a worker in a start: the number of its last row
        self._lock = threading.Lock()

    def open(self, start: int) -> None:
        steps_folder(self._memory, start).mkdir(exist_ok=True)
        with self._lock:
            self._starts.append(start)

    def close(self, start: int) -> None:
        """Remove the steps of a start whose workers have ended: a megabyte of each, which takes time to read."""
        with self._lock:
            self._starts.remove(start)
            self._seen = {key: number for key, number in self._seen.items() if key[0] != start}
            shutil.rmtree(steps_folder(self._memory, start), ignore_errors=True)

    def new(self) -> list[dict[str, Any]]:
        with self._lock:
            files = [
                (start, path) for start in self._starts for path in steps_folder(self._memory, start).glob("worker-*")
            ]
            return [message for start, path in files if (message := self._message(start, path)) is not None]

    def _message(self, start: int, path: Path) -> dict[str, Any] | None:
        from tfdist.monitor.recording import row_ring
        from tfdist.monitor.recording.rows import Column

        worker = int(path.name.partition("-")[2])
        try:
            rows = row_ring.read(path)
        except (OSError, ConfigError):  # it is being made
            return None
        rows = rows[rows[:, Column.SEQUENCE] > self._seen.get((start, worker), 0)]
        if not len(rows):
            return None
        self._seen[start, worker] = int(rows[-1, Column.SEQUENCE])
        return {"rows": start, "worker": worker, "data": base64.b64encode(rows.tobytes()).decode()}


class Tables:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, tuple[StatusTable, list[int]]] = {}
        self._settled: dict[int, int] = {}  # the request that every worker has seen, or will before its next step

    @property
    def is_halting(self) -> bool:
        return any(self._settled.values())

    def open(
        self, number: int, path: Path, workers: int, *, chief: bool, here: list[int], reserve: bool = False
    ) -> None:
        with self._lock:
            self._open[number] = (StatusTable(path, workers, chief=chief, reserve=reserve), here)
            self._settled[number] = 0

    def tell(self, number: int, what: str, step: int) -> None:
        with self._lock:
            table, _ = self._open[number]
            if what == "halt":
                table.ask_to_halt()
                time.sleep(SETTLE_SECONDS)
                self._settled[number] = table.request
            elif what == "take back":
                table.take_back()
                self._settled[number] = 0
            elif what == "target":
                table.set_target(step)
            elif what == "take over":
                table.take_over()
            else:
                assert what == "end"
                table.end()

    def said(self) -> list[Any]:
        """Return for each start its number, the settled and the current request, and the records of its workers."""
        with self._lock:
            return [
                [number, self._settled[number], table.request, {str(one): table.record(one) for one in here}]
                for number, (table, here) in self._open.items()
            ]

    def new_warnings(self) -> list[dict[str, Any]]:
        with self._lock:
            return [
                {"warning": sentence, "start": number}
                for number, (table, _) in self._open.items()
                for sentence in table.new_warnings()
            ]

    def states(self) -> list[int]:
        """Return the number of changes of each worker's in-memory states."""
        with self._lock:
            return [table.record(one)[Word.STATES] for table, here in self._open.values() for one in here]

    def close(self, number: int) -> None:
        with self._lock:
            self._open.pop(number)[0].close()
            del self._settled[number]
