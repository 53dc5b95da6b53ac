"""The agent's side of the connection to one host: requests, and the host's reports on the agent's clock."""

import base64
import contextlib
import itertools
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfdist.cluster.job_files import steps_folder
from tfdist.errors import DeadlineError, TfdistError
from tfdist.jobs.connecting.connection import Connection
from tfdist.jobs.connecting.serialization import KEY_IS_DERIVED, HostReport, spec_to_json
from tfdist.jobs.connecting.wire import BEAT_SECONDS, SILENCE_SECONDS, WireError
from tfdist.jobs.plan.host_plan import Host
from tfdist.jobs.plan.worker_spec import WorkerSpec
from tfdist.jobs.remote.remote_process import RemoteProcess
from tfdist.monitor.status import RECORD, StepPosition, StepState, Word, WorkerStatus, status_of
from tfdist.processes.worker_failure import HOST_LOST

if TYPE_CHECKING:
    from tfdist.monitor.recording.row_ring import Ring

ANSWER_SECONDS = 120.0  # a start that waits for TensorFlow to be imported takes up to a minute
_DRAIN_SECONDS = 1.0
_RECENT_SECONDS = 10.0  # the least time for which messages count towards the offset of a clock


class RecentOffset:
    """The difference between another host's clock and this one, from the messages of the last seconds.

    It is the smallest difference of a message, so only the fastest message's delay remains. It follows clocks that
    drift, and the clock of a host that stood still, as a virtual machine does when it is moved.

    Example:
        >>> offset = RecentOffset()
        >>> for heard, said in ((7.0, 2.0), (8.0, 3.5), (19.0, 14.0), (30.0, 25.0)):
        ...     offset.add(heard, said)
        ...     print(offset.value)
        5.0
        4.5
        4.5
        5.0
    """

    def __init__(self) -> None:
        self._begun = -math.inf
        self._now = self._before = math.inf

    def add(self, heard: float, said: float) -> None:
        """Add a message: the time of its arrival here, and the time on its host's clock."""
        if heard - self._begun >= _RECENT_SECONDS:
            self._begun, self._before, self._now = heard, self._now, math.inf
        self._now = min(self._now, heard - said)

    @property
    def value(self) -> float:
        """The offset in seconds; infinite before the first message."""
        return min(self._now, self._before)


class RemoteSteps:
    """A store of other hosts' recorded steps, like local ones, on this host's clock. NumPy is loaded with the first."""

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        self._rings: dict[tuple[int, int], Ring] = {}
        self._lock = threading.Lock()

    def take(self, start: int, worker: int, data: bytes, clock_offset: float) -> None:
        import numpy as np

        from tfdist.monitor.recording.row_ring import Ring
        from tfdist.monitor.recording.rows import TIMES, WIDTH

        rows = np.frombuffer(data, np.int64).reshape(-1, WIDTH).copy()
        times = rows[:, TIMES]
        rows[:, TIMES] = np.where(times, times + int(clock_offset * 1e9), 0)
        with self._lock:
            if (start, worker) not in self._rings:
                for before in [key for key in self._rings if key[0] < start - 1]:  # as `Job.plan` forgets them
                    self._rings.pop(before).close()
                self._rings[start, worker] = Ring(steps_folder(self._memory, start) / f"worker-{worker}")
            self._rings[start, worker].add(rows)

    def close(self) -> None:
        with self._lock:
            for ring in self._rings.values():
                ring.close()
            self._rings.clear()


@dataclass(eq=False, repr=False)
class HostLink:
    host: Host
    connection: Connection
    say: Callable[[str], None] = lambda text: None
    recorded: RemoteSteps | None = None
    terminated: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.report: HostReport | None = None
        self._offset = RecentOffset()  # from its clock to this host's
        self._wire = self.connection.wire
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._answers: dict[int, dict[str, Any]] = {}
        self._awaited: set[int] = set()  # numbers of the requests whose answers are still waited for
        self._numbers = itertools.count()
        self._handles: dict[int, RemoteProcess] = {}
        self._stopped: frozenset[int] = frozenset()
        self.waiting = 0  # how many workers are forked there and have nothing to run
        self.leaves = False  # it will be taken away
        self._tables: dict[int, tuple[int, int, Mapping[str, list[int]]]] = {}
        self._warnings: dict[int, list[str]] = {}  # by the number of the start
        self._lost = ""
        self._heard = time.monotonic()
        self._ending = False
        self._woken = threading.Event()
        self._threads: list[threading.Thread] = []

    def meet(self, hello: dict[str, Any], *, timeout_seconds: float, interrupted: Callable[[], bool]) -> HostReport:
        """Wait until the host answers; return its report."""
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
            f"host {self.host.name} has not answered in {timeout_seconds:g} s. {self.connection.cure}",
            name=self.host.name,
        )

    @property
    def is_lost(self) -> bool:
        return bool(self._lost)

    # Requests

    def ask(self, do: str, **values: Any) -> Any:
        number = next(self._numbers)
        with self._changed:
            self._awaited.add(number)
        self.tell(do, id=number, **values)
        deadline = time.monotonic() + ANSWER_SECONDS
        with self._changed:
            while number not in self._answers and not self._lost and time.monotonic() < deadline:
                self._changed.wait(1.0)
            self._awaited.discard(number)
            answer = self._answers.pop(number, None)
        if answer is None and self._lost:
            raise TfdistError(self._lost, name=self.host.name)
        if answer is None:
            raise DeadlineError(f"host {self.host.name} has not answered in {ANSWER_SECONDS:g} s.", name=self.host.name)
        if answer["error"]:
            raise TfdistError(f"host {self.host.name}: {answer['error']}", name=self.host.name)
        return answer["value"]

    def tell(self, do: str, **values: Any) -> None:
        """Send a request without an answer; a lost host does nothing, and neither does one after `close`."""
        try:
            self._wire.send({"do": do, **values})
        except WireError:  # the thread that reads finds out, and says why
            return

    def start(self, spec: WorkerSpec, *, reserve: bool = False) -> "RemoteProcess":
        """Start a process there; of a lost host, return one that has failed with it, as if it had been started."""
        number = next(self._numbers)
        handle = RemoteProcess(self, number, spec)
        with self._lock:
            self._handles[number] = handle
        try:
            values = spec_to_json(spec)
            values["key"] = self.key_for(spec.key)
            handle.pid = self.ask("start", handle=number, spec=values, reserve=reserve)
        except TfdistError as error:
            if self._lost:
                self._fail(handle)
                return handle
            with self._lock:
                del self._handles[number]
            if isinstance(error, DeadlineError):  # the host may start it yet, and then it must not stay
                self.tell("signal", handle=number, number=int(signal.SIGKILL))
                self.tell("close", handle=number)
            handle.give_back()
            raise
        return handle

    def key_for(self, key: str) -> str:
        """Return the text to send in place of a workers' key: a host that can derive the key does not get it."""
        return KEY_IS_DERIVED if self.connection.shares_key and key else key

    def is_stopped(self, number: int) -> bool:
        return number in self._stopped

    def forget(self, number: int) -> None:
        with self._lock:
            self._handles.pop(number, None)
        self.tell("close", handle=number)

    def status(self, start: int, worker: int, asked: int) -> WorkerStatus:
        with self._lock:
            settled, request, workers = self._tables.get(start, (0, 0, {}))
            offset = self._offset.value
        words = workers.get(str(worker), [0] * RECORD)
        return status_on_our_clock(words, request, is_settled=settled == asked, clock_offset=offset)

    def new_warnings(self, start: int) -> list[str]:
        with self._lock:
            return self._warnings.pop(start, [])

    def shown(self, start: int, worker: int) -> list[int]:
        with self._lock:
            _, _, workers = self._tables.get(start, (0, 0, {}))
            found = record_on_our_clock(workers.get(str(worker), [0] * RECORD), clock_offset=self._offset.value)
        found[Word.PID] = 0  # the process is another host's
        return found

    # Reports

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
            self._lose(f"host {self.host.name} cannot be reached {self.connection.unreachable(str(error))}")
            return
        with self._changed:
            self.report = HostReport(**first)
            self._heard = time.monotonic()
            self._changed.notify_all()
        beat = threading.Thread(target=self._beat, name=f"beat to {self.host.name}", daemon=True)
        self._threads.append(beat)
        beat.start()
        while (message := self._wire.receive()) is not None:
            self._heard = time.monotonic()
            try:
                self._take(message)
            except Exception as error:  # noqa: BLE001 - this thread alone can tell the others that the host is lost
                self.connection.note(f"it said what cannot be ({error!r})")
                self.connection.cut()
                break
        quoted = "" if self._ending else self.connection.quoted()
        self._lose(f"the connection to host {self.host.name} has ended{quoted}")

    def _take(self, message: dict[str, Any]) -> None:
        if "clock" in message:
            self._offset.add(self._heard, float(message["clock"]))
        if "answer" in message:
            self._take_answer(message)
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
        elif {"say", "note", "sigterm", "leaves"} & message.keys():
            self._take_word(message)
        elif "record" in message:
            if (handle := self._handles.get(message["record"])) is not None:
                handle.record(failure_on_our_clock(message["content"], self._offset.value))
        elif "ended" in message and (handle := self._handles.get(message["ended"])) is not None:
            handle.end(message["returncode"], unasked=message["unasked"])

    def _take_answer(self, message: dict[str, Any]) -> None:
        with self._changed:
            if message["answer"] in self._awaited:  # nobody would take out another
                self._answers[message["answer"]] = message
                self._changed.notify_all()

    def _take_word(self, message: dict[str, Any]) -> None:
        if "say" in message:
            self.say(f"host {self.host.name}: {message['say']}")
        elif "note" in message:
            self.connection.note(str(message["note"]))
        elif "leaves" in message:
            self.leaves = True
        else:
            self.terminated()

    def _take_rows(self, start: int, worker: int, data: bytes) -> None:
        if self.recorded is not None and math.isfinite(self._offset.value):
            with contextlib.suppress(OSError):  # memory is full
                self.recorded.take(start, worker, data, self._offset.value)

    def _beat(self) -> None:
        """Send signs of life; end the connection of a host that is silent for too long."""
        while not self._lost:
            awake = time.monotonic()
            self.tell("beat")
            self._woken.wait(BEAT_SECONDS)
            now = time.monotonic()
            if now - awake > SILENCE_SECONDS / 2:  # it was this process that stood still
                self._heard = now
            if now - self._heard > SILENCE_SECONDS:
                self.connection.note(f"nothing has come from it for {SILENCE_SECONDS:g} s")
                self.connection.cut()

    def _lose(self, why: str) -> None:
        with self._changed:
            if self._lost:
                return
            self._lost = why
            self._woken.set()
            handles = list(self._handles.values())
            self._changed.notify_all()
        for handle in handles:
            self._fail(handle)

    def _fail(self, handle: RemoteProcess) -> None:
        """End a process with its lost host; one that has ended stays as it is."""
        if not self._ending:
            handle.record(lost_host_record(self._lost, now=time.monotonic()))
        handle.end_output()
        handle.end(-signal.SIGKILL if self._ending else 1)

    def close(self) -> None:
        """End the connection and all processes that still run there; wait for both."""
        self._ending = True
        self.tell("end")
        self._wire.end()
        if self.report is None:  # nothing runs there that would have to end
            self.connection.cut()
        self.connection.end()
        for seconds in (self.connection.drain_seconds, _DRAIN_SECONDS):
            for thread in self._threads:
                thread.join(seconds)
            self.connection.cut()
        self.connection.close()


def failure_on_our_clock(content: str, clock_offset: float) -> str:
    try:
        values = json.loads(content)
        values["clock"] += clock_offset if math.isfinite(clock_offset) else 0.0
    except (ValueError, TypeError, KeyError):
        return content
    return json.dumps(values)


def lost_host_record(why: str, *, now: float) -> str:
    values = {"time": 0.0, "clock": now, "type": HOST_LOST, "message": why, "exit_code": 1}
    return json.dumps({**values, "traceback": f"{why}\n"})


def record_on_our_clock(words: Sequence[int], *, clock_offset: float) -> list[int]:
    found = list(words)
    for word in (Word.CHANGED, Word.FIRST_STEP):
        if found[word] and math.isfinite(clock_offset):
            found[word] += int(clock_offset * 1e9)
    return found


def status_on_our_clock(words: Sequence[int], request: int, *, is_settled: bool, clock_offset: float) -> WorkerStatus:
    """Return the status of a worker elsewhere; while a request to halt is on its way, its next step is unknown."""
    said = status_of(record_on_our_clock(words, clock_offset=clock_offset), request)
    return said if is_settled else replace(said, position=StepPosition(step=said.position.step, state=StepState.DONE))
