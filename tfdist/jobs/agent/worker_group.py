"""The processes of one start of a job: started, supervised by a function that decides, and ended, with all they left.

Nothing here knows what a failure means: `supervise` does.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from tfdist.jobs.output.output_forwarder import Pump
from tfdist.jobs.output.screen import Output
from tfdist.jobs.placement.placement_protocol import Handle, Placement
from tfdist.jobs.plan.worker_spec import WorkerSpec
from tfdist.jobs.supervision.supervisor_state import (
    Action,
    Event,
    Exited,
    Next,
    Phase,
    Received,
    Recorded,
    Say,
    Send,
    Start,
    State,
    Tick,
)
from tfdist.processes import guardian
from tfdist.processes.worker_failure import is_end_by, read_record, when_it_ended
from tfdist.waiting import ENDING

ANNOUNCE_SECONDS = 1.0  # for a line of the agent, while the workers run
DRAIN_SECONDS = 3.0  # for the last output, when a signal has asked the job to end
TOGETHER_SECONDS = 0.2  # within which a signal that is sent to every process of a job reaches all of them
LOOK_SECONDS = 0.05  # how often the agent looks at what is no event: progress, and recorded failures
_REAP_SECONDS = 5.0

Step = Callable[[State, Event, float], Next]


class Events(Protocol):
    """Where events are put, from any thread."""

    def put(self, event: Event) -> None:
        """Put one there."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """How one start of a job went.

    Attributes:
        state: the last one.
        exits: how every process ended; the last time, if it was started again.
        stopped_at: clock time at which the agent asked them to end; infinity if it never did.
        killed: whether it had to kill.
    """

    state: State
    exits: Mapping[int, Exited]
    stopped_at: float
    killed: bool


class WorkerGroup:
    """The processes that `started` has started."""

    def __init__(
        self,
        specs: Sequence[WorkerSpec],
        *,
        placement: Placement,
        out: Output,
        events: Events,
        pump: Pump | None,
        verbose: bool,
    ) -> None:
        """Start nothing yet: the first call of `start` does."""
        self.specs = tuple(specs)
        self.pump = pump
        self._placement = placement
        self._out = out
        self._events = events
        self._verbose = verbose
        self._now: dict[int, Handle] = {}
        self._all: list[Handle] = []
        self._watchers: list[threading.Thread] = []

    @property
    def everybody(self) -> tuple[Handle, ...]:
        """All that were started, also those in whose place another one was."""
        return tuple(self._all)

    def ended(self) -> frozenset[int]:
        """Return who has ended by now, whether or not the event of it has been looked at."""
        return frozenset(index for index, handle in self._now.items() if handle.wait(0.0) is not None)

    @property
    def present(self) -> Mapping[int, Handle]:
        """The last one that was started, by its index."""
        return self._now

    def start(self, index: int) -> None:
        """Start a process, in the place of one that has ended if there was one."""
        if index in self._now:
            self._now[index].signal(signal.SIGKILL)  # children of it that may hold its port
        spec = self.specs[index]
        handle = self._placement.start(spec)
        self._now[index] = handle
        self._all.append(handle)
        watcher = threading.Thread(target=self._watch, args=(handle,), name=f"watch {spec.task}", daemon=True)
        watcher.start()
        self._watchers.append(watcher)
        if self._verbose:
            announce(self._out, f"{spec.task} is process {handle.pid}")
        for stream, descriptor in handle.outputs.items():
            if self.pump is not None:
                self.pump.add(descriptor, stream=stream, worker=index, ends_later=handle.outputs_end_later)

    def _watch(self, handle: Handle) -> None:
        returncode = handle.wait()
        if returncode is not None:
            self._events.put(Exited(worker=handle.spec.index, returncode=returncode, time=time.monotonic()))

    def perform(self, action: Action) -> None:
        """Do what was decided, as far as it concerns processes."""
        if isinstance(action, Send):
            for index in sorted(action.workers):
                self._now[index].signal(action.number)
        elif isinstance(action, Say):
            announce(self._out, action.text)
        elif isinstance(action, Start):
            self.start(action.worker)

    def finish(self, *, grace_seconds: float, give_up: Callable[[], bool]) -> None:
        """End what the processes, which have ended, left running; write all that they wrote."""
        left = self._placement.end_leftovers(self.everybody, grace_seconds=grace_seconds)
        if left and self._verbose:
            announce(self._out, f"ended {left} more processes that the workers had started")
        if self.pump is not None:
            self.pump.finish(give_up=give_up)

    def close(self) -> None:
        """Make sure that no process is left."""
        for handle in self._now.values():
            handle.signal(signal.SIGKILL)  # on the way of an error they still run
        self._placement.end_leftovers(self.everybody, grace_seconds=0.0)
        if self.pump is not None:
            self.pump.finish(give_up=lambda: True)  # done already, unless an error leads here
        deadline = time.monotonic() + _REAP_SECONDS
        for watcher in self._watchers:
            watcher.join(timeout=max(0.1, deadline - time.monotonic()))
        for handle in self._all:
            handle.close(max(0.1, deadline - time.monotonic()))
        for spec in self.specs:
            guardian.remove_listed(f"{spec.error_file}{guardian.LISTING}")


@contextlib.contextmanager
def started(
    specs: Sequence[WorkerSpec],
    placement: Placement,
    out: Output,
    events: Events,
    *,
    verbose: bool,
    held: bool = False,
) -> Iterator[WorkerGroup]:
    """Yield the processes, started, and their output moving; after the block none of them is left."""
    piped = any(spec.piped for spec in specs)
    pump = Pump(out, lambda: events.put(Received(number=signal.SIGPIPE)), held=held) if piped else None
    group = WorkerGroup(specs, placement=placement, out=out, events=events, pump=pump, verbose=verbose)
    try:
        for spec in specs:
            group.start(spec.index)
        yield group
    finally:
        group.close()


def supervise(
    group: WorkerGroup,
    state: State,
    step: Step,
    events: "SimpleQueue[Any]",
    *,
    look: Callable[[State], Event] | None = None,
    look_seconds: Callable[[State], float] = lambda state: LOOK_SECONDS,
    perform: Callable[[Action], None] | None = None,
) -> Attempt:
    """Supervise until all have ended, or one cannot be ended."""
    look = look or (lambda state: recorded(group, state) or Tick())
    perform = perform or group.perform
    exits: dict[int, Exited] = {}
    stopped_at, killed = float("inf"), False
    ended_before: frozenset[int] = frozenset()  # the agent asked anybody to end
    is_told = False  # whether who ended unasked counts as one of them
    while state.phase not in (Phase.DONE, Phase.LOST):
        event = _next_event(events, state, look, look_seconds(state))
        now = time.monotonic()
        if isinstance(event, Exited):
            was_seen = event.worker in ended_before or (is_told and group.present[event.worker].ended_unasked)
            ended_at = when_it_ended(event.time, stopped_at=stopped_at, was_seen=was_seen)
            recorded_one = group.specs[event.worker].error_file.exists()
            event = replace(event, time=ended_at, recorded=recorded_one)
            exits[event.worker] = event
        before = state.phase
        state, actions = step(state, event, now)
        if before is Phase.RUNNING and state.phase is not Phase.RUNNING:
            stopped_at = event.time if isinstance(event, Exited) else now
            if not isinstance(event, Received):  # which everybody may have got
                ended_before, is_told = group.ended(), True
        killed = killed or state.phase is Phase.KILLING
        for action in actions:
            perform(action)
    return Attempt(state=state, exits=exits, stopped_at=stopped_at, killed=killed)


def _next_event(events: "SimpleQueue[Any]", state: State, look: Callable[[State], Event], look_seconds: float) -> Any:
    left = look_seconds if state.deadline is None else state.deadline - time.monotonic()
    try:
        event = events.get(timeout=min(look_seconds, max(left, 0.0)))
    except Empty:
        return look(state)
    if isinstance(event, Exited) and state.phase is Phase.RUNNING:
        number = next((number for number in ENDING if is_end_by(event.returncode, number)), None)
        return event if number is None else _first_of(event, number, events)
    return event


def _first_of(end: Exited, number: int, events: "SimpleQueue[Any]") -> Any:
    """Return the same signal to the agent, if it arrives together with the one that has ended a worker; else the end.

    Service managers send a signal to every process of a job at once: then the signal is why the job ends, not the end
    of the worker that heard it first.
    """
    deadline, others = time.monotonic() + TOGETHER_SECONDS, [end]
    while (left := deadline - time.monotonic()) > 0:
        try:
            event = events.get(timeout=left)
        except Empty:
            break
        if isinstance(event, Received) and event.number == number:
            for other in others:
                events.put(other)
            return event
        others.append(event)
    for other in others[1:]:
        events.put(other)
    return end


def recorded(group: WorkerGroup, state: State, *, but: int | None = None) -> Recorded | None:
    """Return that a worker that runs has recorded a failure, if one has."""
    for worker in sorted(state.running):
        file = group.specs[worker].error_file
        if file.exists() and (but is None or getattr(read_record(file), "exit_code", None) != but):
            return Recorded(worker=worker)
    return None


def announce(out: Output, text: str) -> None:
    """Tell the user; but do not wait long for a reader that takes nothing, because workers are to be supervised."""
    deadline = time.monotonic() + ANNOUNCE_SECONDS
    out.message(f"{out.speaker}: {text}", give_up=lambda: time.monotonic() > deadline)


def impatience(received: int | None, events: "SimpleQueue[Event]") -> Callable[[], bool]:
    """Tell when to stop waiting for the reader of the output: at the next signal; soon, if one has ended the job."""
    deadline = time.monotonic() + (DRAIN_SECONDS if received is not None else float("inf"))
    return lambda: time.monotonic() > deadline or unseen_signal(events) is not None


def unseen_signal(events: "SimpleQueue[Event]", *, keep: bool = False) -> int | None:
    """Return the first signal that has arrived, asks to end, and that nobody has looked at."""
    seen = []
    with contextlib.suppress(Empty):
        while True:
            seen.append(events.get_nowait())
    for event in seen if keep else ():
        events.put(event)
    return next((event.number for event in seen if isinstance(event, Received) and event.number in ENDING), None)


def at_a_signal(events: "SimpleQueue[Event]") -> Callable[[], bool]:
    """Tell when not to wait for the reader of the output between two starts: when a signal arrives."""
    return lambda: unseen_signal(events, keep=True) is not None
