"""The agent's side of the connection to one host: its requests, and the host's reports."""

import base64
import contextlib
import itertools
import math
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tfdist.errors import DeadlineError, TfdistError
from tfdist.jobs.connecting.connection import Connection
from tfdist.jobs.connecting.serialization import KEY_IS_DERIVED, HostReport, spec_to_json
from tfdist.jobs.connecting.wire import BEAT_SECONDS, SILENCE_SECONDS, WireError
from tfdist.jobs.plan.host_plan import Host
from tfdist.jobs.plan.worker_spec import WorkerSpec
from tfdist.jobs.remote import clock_offset
from tfdist.jobs.remote.remote_process import RemoteProcess
from tfdist.jobs.remote.remote_steps import Recorded
from tfdist.monitor.status import RECORD, WorkerStatus

ANSWER_SECONDS = 120.0  # a start that waits for TensorFlow to be imported takes up to a minute
_DRAIN_SECONDS = 1.0


class HostLink:
    """A host that acts for the agent."""

    def __init__(
        self,
        host: Host,
        connection: Connection,
        *,
        say: Callable[[str], None] = lambda text: None,
        recorded: Recorded | None = None,
        terminated: Callable[[], None] = lambda: None,
    ) -> None:
        self.host = host
        self._say = say
        self._recorded = recorded
        self._terminated = terminated
        self._recent = clock_offset.RecentOffset()
        self.report: HostReport | None = None
        self._offset = math.inf  # what is added to its clock to have this host's
        self._connection = connection
        self._wire = connection.wire
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._answers: dict[int, dict[str, Any]] = {}
        self._numbers = itertools.count()
        self._handles: dict[int, RemoteProcess] = {}
        self._stopped: frozenset[int] = frozenset()
        self.waiting = 0  # how many workers are forked there and have nothing to run
        self._tables: dict[int, tuple[int, int, Mapping[str, list[int]]]] = {}
        self._warnings: dict[int, list[str]] = {}  # by the number of the start
        self._lost = ""
        self._heard = time.monotonic()
        self._ending = False
        self._woken = threading.Event()
        self._threads: list[threading.Thread] = []

    def meet(self, hello: dict[str, Any], *, timeout_seconds: float, interrupted: Callable[[], bool]) -> HostReport:
        """Wait until the host answers; return what it is."""
        reader = threading.Thread(target=self._run, args=(hello,), name=f"host {self.host.name}", daemon=True)
        self._threads.append(reader)
        reader.start()
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while self.report is None and not self._lost and time.monotonic() < deadline and not interrupted():
                self._changed.wait(0.1)
            if self.report is not None:
                return self.report
        if self._lost:
            raise TfdistError(self._lost, name=self.host.name)
        if interrupted():
            raise TfdistError(f"the wait for host {self.host.name} was interrupted.", name=self.host.name)
        raise DeadlineError(
            f"host {self.host.name} has not answered in {timeout_seconds:g} s. {self._connection.cure}",
            name=self.host.name,
        )

    @property
    def is_lost(self) -> bool:
        """Whether the connection has ended."""
        return bool(self._lost)

    # What is asked for

    def ask(self, do: str, **values: Any) -> Any:
        """Ask for something, and return the answer."""
        number = next(self._numbers)
        self.tell(do, id=number, **values)
        deadline = time.monotonic() + ANSWER_SECONDS
        with self._changed:
            while number not in self._answers and not self._lost and time.monotonic() < deadline:
                self._changed.wait(1.0)
            answer = self._answers.pop(number, None)
        if answer is None:
            raise TfdistError(
                self._lost or f"host {self.host.name} has not answered in {ANSWER_SECONDS:g} s.", name=self.host.name
            )
        if answer["error"]:
            raise TfdistError(f"host {self.host.name}: {answer['error']}", name=self.host.name)
        return answer["value"]

    def tell(self, do: str, **values: Any) -> None:
        """Ask for something that has no answer; a host that is lost does nothing."""
        try:
            self._wire.send({"do": do, **values})
        except WireError:  # the thread that reads finds out, and says why
            return

    def start(self, spec: WorkerSpec, *, reserve: bool = False) -> "RemoteProcess":
        """Start a process there."""
        number = next(self._numbers)
        handle = RemoteProcess(self, number, spec)
        with self._lock:
            self._handles[number] = handle
        try:
            values = spec_to_json(spec)
            values["key"] = self.key_for(spec.key)
            handle.pid = self.ask("start", handle=number, spec=values, reserve=reserve)
        except TfdistError:
            with self._lock:
                del self._handles[number]
            handle.give_back()
            raise
        return handle

    def key_for(self, key: str) -> str:
        """Return what the host is told of a key of the workers: it does not travel to where it can be derived."""
        return KEY_IS_DERIVED if self._connection.shares_key and key else key

    def is_stopped(self, number: int) -> bool:
        """Whether a process stands still."""
        return number in self._stopped

    def forget(self, number: int) -> None:
        """Give back a process that has ended."""
        with self._lock:
            self._handles.pop(number, None)
        self.tell("close", handle=number)

    def status(self, start: int, worker: int, asked: int) -> WorkerStatus:
        """Return what a worker there has said, on this host's clock.

        While a request to halt is on its way the step that a worker will run is not known, whatever it had said before.
        """
        with self._lock:
            settled, request, workers = self._tables.get(start, (0, 0, {}))
            offset = self._offset
        words = workers.get(str(worker), [0] * RECORD)
        return clock_offset.status(words, request, is_settled=settled == asked, clock_offset=offset)

    def new_warnings(self, start: int) -> list[str]:
        """Return what workers of a start have warned of there since the last call."""
        with self._lock:
            return self._warnings.pop(start, [])

    def shown(self, start: int, worker: int) -> list[int]:
        """Return the words of a worker's record for who looks here."""
        with self._lock:
            _, _, workers = self._tables.get(start, (0, 0, {}))
            return clock_offset.shown(workers.get(str(worker), [0] * RECORD), clock_offset=self._offset)

    # What is told

    def _run(self, hello: dict[str, Any]) -> None:
        try:
            self._wire.send(hello)
            self._wire.meet()
            first = self._wire.receive()
            if first is None:
                raise WireError("")
            if "refused" in first:
                self._lose(f"host {self.host.name}: {first['refused']}")
                return
        except WireError as error:
            self._lose(f"host {self.host.name} cannot be reached {self._connection.unreachable(str(error))}")
            return
        with self._changed:
            self.report = HostReport(**first)
            self._heard = time.monotonic()
            self._changed.notify_all()
        beat = threading.Thread(target=self._beat, daemon=True)
        self._threads.append(beat)
        beat.start()
        while (message := self._wire.receive()) is not None:
            self._heard = time.monotonic()
            try:
                self._take(message)
            except (LookupError, TypeError, ValueError) as error:
                self._connection.note(f"it said what cannot be ({error!r})")
                self._connection.cut()
                break
        quoted = "" if self._ending else self._connection.quoted()
        self._lose(f"the connection to host {self.host.name} has ended{quoted}")

    def _take(self, message: dict[str, Any]) -> None:
        if "clock" in message:
            self._offset = min(self._offset, self._heard - float(message["clock"]))
            self._recent.add(self._heard, float(message["clock"]))
        if "answer" in message:
            with self._changed:
                self._answers[message["answer"]] = message
                self._changed.notify_all()
        elif "tables" in message:
            with self._lock:
                self._tables = {number: (settled, asked, words) for number, settled, asked, words in message["tables"]}
                self._stopped = frozenset(message["stopped"])
                self.waiting = int(message["waiting"])
        elif "output" in message:
            if (handle := self._handles.get(message["output"])) is not None:
                handle.take(message["stream"], base64.b64decode(message["data"]))
        elif "rows" in message:
            self._take_rows(message["rows"], message["worker"], base64.b64decode(message["data"]))
        elif "warning" in message:
            with self._lock:
                self._warnings.setdefault(int(message["start"]), []).append(str(message["warning"]))
        elif {"say", "note", "sigterm"} & message.keys():
            self._take_word(message)
        elif "record" in message:
            if (handle := self._handles.get(message["record"])) is not None:
                handle.record(clock_offset.on_our_clock(message["content"], self._offset))
        elif "ended" in message and (handle := self._handles.get(message["ended"])) is not None:
            handle.end(message["returncode"], unasked=message["unasked"])

    def _take_word(self, message: dict[str, Any]) -> None:
        if "say" in message:
            self._say(f"host {self.host.name}: {message['say']}")
        elif "note" in message:
            self._connection.note(str(message["note"]))
        else:
            self._terminated()

    def _take_rows(self, start: int, worker: int, data: bytes) -> None:
        if self._recorded is not None and math.isfinite(self._recent.value):
            with contextlib.suppress(OSError):  # memory is full
                self._recorded.take(start, worker, data, self._recent.value)

    def _beat(self) -> None:
        """Say that the agent is there; if the host has been silent for too long, end the connection."""
        while not self._lost:
            awake = time.monotonic()
            self.tell("beat")
            self._woken.wait(BEAT_SECONDS)
            now = time.monotonic()
            if now - awake > SILENCE_SECONDS / 2:  # it was this process that stood still
                self._heard = now
            if now - self._heard > SILENCE_SECONDS:
                self._connection.note(f"nothing has come from it for {SILENCE_SECONDS:g} s")
                self._connection.cut()

    def _lose(self, why: str) -> None:
        with self._changed:
            if self._lost:
                return
            self._lost = why
            self._woken.set()
            handles = list(self._handles.values())
            self._changed.notify_all()
        for handle in handles:
            if not self._ending:
                handle.record(clock_offset.of_lost_host(why, now=time.monotonic()))
            handle.end_output()
            handle.end(-signal.SIGKILL if self._ending else 1)

    def close(self) -> None:
        """End the connection, and with it whatever still runs there; wait until that is done."""
        self._ending = True
        self.tell("end")
        self._connection.end()
        for seconds in (self._connection.drain_seconds, _DRAIN_SECONDS):
            for thread in self._threads:
                thread.join(seconds)
            self._connection.cut()
        self._connection.close()
