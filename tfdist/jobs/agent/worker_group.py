"""The processes of one start of a job: their start, their supervision by a pure function, and their complete end.

This module does not decide about failures. `StatusChannel` is how workers report: on one host a table in shared memory,
otherwise authenticated TCP.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from tfdist.jobs.output.output_forwarder import Output, Pump
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
)
from tfdist.monitor.status import WorkerStatus
from tfdist.processes import guardian
from tfdist.processes.worker_failure import is_end_by, read_record, when_it_ended
from tfdist.waiting import ENDING

ANNOUNCE_SECONDS = 1.0  # for a line of the agent, while the workers run
DRAIN_SECONDS = 3.0  # for the last output, when a signal has asked the job to end
TOGETHER_SECONDS = 0.5  # for a signal to reach all processes of a job on a busy machine
LOOK_SECONDS = 0.05  # between looks at progress and recorded failures, which are no events
_REAP_SECONDS = 5.0

Step = Callable[[State, Event, float], Next]


class Events(Protocol):
    """A queue of events that any thread may fill."""

    def put(self, event: Event) -> None:
        """Add an event."""


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """The result of one start of a job."""

    state: State
    exits: Mapping[int, Exited]  # the last end of every process
    stopped_at: float  # clock time at which the agent asked them to end; infinity if it never did
    killed: bool


@dataclass(eq=False, repr=False, kw_only=True)
class WorkerGroup:
    specs: Sequence[WorkerSpec]
    placement: Placement
    out: Output
    events: Events
    pump: Pump | None
    verbose: bool

    def __post_init__(self) -> None:
        self.present: dict[int, Handle] = {}
        self._all: list[Handle] = []
        self._watchers: list[threading.Thread] = []

    @property
    def members(self) -> tuple[Handle, ...]:
        return tuple(self._all)

    def ended(self) -> frozenset[int]:
        """Return the indexes of ended processes, whether or not the event was handled."""
        return frozenset(index for index, handle in self.present.items() if handle.wait(0.0) is not None)

    def start(self, index: int) -> None:
        if index in self.present:
            self.present[index].signal(signal.SIGKILL)  # its children may hold its port
        spec = self.specs[index]
        handle = self.placement.start(spec)
        self.present[index] = handle
        self._all.append(handle)
        watcher = threading.Thread(target=self._watch, args=(handle,), name=f"watch {spec.task}", daemon=True)
        watcher.start()
        self._watchers.append(watcher)
        if self.verbose:
            announce(self.out, f"{spec.task} is process {handle.pid}")
        for stream, descriptor in handle.outputs.items():
            if self.pump is not None:
                self.pump.add(descriptor, stream=stream, worker=index, ends_later=handle.outputs_end_later)

    def _watch(self, handle: Handle) -> None:
        returncode = handle.wait()
        if returncode is not None:
            self.events.put(Exited(worker=handle.spec.index, returncode=returncode, time=time.monotonic()))

    def perform(self, action: Action) -> None:
        if isinstance(action, Send):
            for index in sorted(action.workers):
                self.present[index].signal(action.number)
        elif isinstance(action, Say):
            announce(self.out, action.text)
        elif isinstance(action, Start):
            self.start(action.worker)

    def end_leftovers(self, *, grace_seconds: float) -> None:
        """End what the ended processes left running."""
        left = self.placement.end_leftovers(self.members, grace_seconds=grace_seconds)
        if left and self.verbose:
            announce(self.out, f"ended {left} more processes that the workers had started")

    def finish(self, *, give_up: Callable[[], bool]) -> None:
        """Write the remaining output of the ended processes."""
        if self.pump is not None:
            self.pump.finish(give_up=give_up)

    def close(self) -> None:
        for handle in self.present.values():
            handle.signal(signal.SIGKILL)  # on the way of an error they still run
        self.placement.end_leftovers(self.members, grace_seconds=0.0)
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
    specs: Sequence[WorkerSpec], placement: Placement, out: Output, events: Events, *, verbose: bool, held: bool = False
) -> Iterator[WorkerGroup]:
    """Yield the started processes, with their output forwarded; none is left after the block."""
    piped = any(spec.piped for spec in specs)
    pump = Pump(out, lambda: events.put(Received(number=signal.SIGPIPE)), held=held) if piped else None
    group = WorkerGroup(specs=specs, placement=placement, out=out, events=events, pump=pump, verbose=verbose)
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
    look: Callable[[State], Event],
    look_seconds: Callable[[State], float],
    perform: Callable[[Action], None],
) -> Attempt:
    """Supervise until all have ended, or one cannot be ended."""
    exits: dict[int, Exited] = {}
    stopped_at, killed = float("inf"), False
    ended_before: frozenset[int] = frozenset()  # the agent's first request to end
    is_told = False  # whether processes that ended unasked count as well
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
            if not isinstance(event, Received):  # which all may have received
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
    """Return the same signal to the agent, if it arrives with the one that ended a worker; otherwise the end.

    Service managers send a signal to every process of a job at once: then the signal is the cause, and not the end of
    the first worker that received it.
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
    for worker in sorted(state.running):
        file = group.specs[worker].error_file
        if file.exists() and (but is None or getattr(read_record(file), "exit_code", None) != but):
            return Recorded(worker=worker)
    return None


def announce(out: Output, text: str) -> None:
    """Tell the user, without waiting long for a reader that takes nothing: workers need supervision."""
    deadline = time.monotonic() + ANNOUNCE_SECONDS
    out.message(f"{out.speaker}: {text}", give_up=lambda: time.monotonic() > deadline)


def impatience(received: int | None, events: "SimpleQueue[Event]") -> Callable[[], bool]:
    """Return a test that gives up on the output's reader: at the next signal, or soon after the one received."""
    deadline = time.monotonic() + (DRAIN_SECONDS if received is not None else float("inf"))
    return lambda: time.monotonic() > deadline or unseen_signal(events) is not None


def unseen_signal(events: "SimpleQueue[Event]", *, keep: bool = False) -> int | None:
    """Return the first signal that asks to end and has not been handled."""
    seen = []
    with contextlib.suppress(Empty):
        while True:
            seen.append(events.get_nowait())
    for event in seen if keep else ():
        events.put(event)
    return next((event.number for event in seen if isinstance(event, Received) and event.number in ENDING), None)


def at_a_signal(events: "SimpleQueue[Event]") -> Callable[[], bool]:
    """Return a test that ends the wait between two starts: it is true once a signal arrives."""
    return lambda: unseen_signal(events, keep=True) is not None


class StatusChannel(Protocol):
    """The agent's side of the status channel. No call waits for a worker."""

    def read(self, worker: int) -> WorkerStatus:
        """Return the latest status of a worker."""

    def new_warnings(self) -> list[str]:
        """Return the new warnings of all workers; several workers may send the same sentence."""

    def ask_to_halt(self) -> None:
        """Ask all workers to hold before their next step; positions are reliable SETTLE_SECONDS later."""

    def take_back(self) -> None:
        """Let held workers continue; allowed only while there is no target."""

    def set_target(self, step: int) -> None:
        """Let the workers run up to and including this step."""

    def take_over(self) -> None:
        """Let workers in reserve continue."""

    def end(self) -> None:
        """Announce that the next signals to workers mean the end and not a halt."""

    def close(self) -> None:
        """Release the channel; workers that still write to it are not harmed."""
