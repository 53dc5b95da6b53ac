"""The processes of one start of a job: started, supervised by a function that decides, and ended, with all they left.

Nothing here knows what a failure means: `supervise` and `supervise_chief` do.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from tfdist.launch import processes
from tfdist.launch.failure import read_record
from tfdist.launch.output import Output
from tfdist.launch.plan import WorkerSpec
from tfdist.launch.processes import Events, Starter, Worker, started_anew
from tfdist.launch.pump import Pump
from tfdist.launch.resources import PASSED_ON, Guard
from tfdist.launch.supervise import Action, Event, Exited, Phase, Received, Recorded, Say, Send, Tick

ANNOUNCE_SECONDS = 1.0  # for a line of the agent, while the workers run
DRAIN_SECONDS = 3.0  # for the last output, when a signal has asked the job to end
LOOK_SECONDS = 0.05  # how often the agent looks at what is no event: progress, and recorded failures


class Supervised(Protocol):
    """What every state of a job has."""

    @property
    def running(self) -> frozenset[int]:
        """Workers whose process has not ended."""

    @property
    def phase(self) -> Phase:
        """Where the job is."""

    @property
    def deadline(self) -> float | None:
        """Clock time of the next step that time alone brings, or None."""

    @property
    def received(self) -> int | None:
        """The signal that asked the job to end, if it was one."""


S = TypeVar("S", bound=Supervised)
Step = Callable[[S, Any, float], tuple[S, Sequence[Any]]]  # `supervise_workers` has more events and actions


@dataclass(frozen=True, kw_only=True)
class Course(Generic[S]):
    """What happened.

    Attributes:
        state: the last one.
        exits: how every worker ended; the last time, if it was started again.
        stopped_at: clock time at which the agent asked them to end; infinity if it never did.
        killed: whether it had to kill.
    """

    state: S
    exits: Mapping[int, Exited]
    stopped_at: float
    killed: bool


class Generation:
    """The processes that `started` has started."""

    def __init__(
        self,
        specs: Sequence[WorkerSpec],
        *,
        guard: Guard,
        out: Output,
        events: Events,
        pump: Pump | None,
        verbose: bool,
        starter: Starter = started_anew,
    ) -> None:
        """Start nothing yet: the first call of `start` does."""
        self.specs = tuple(specs)
        self.pump = pump
        self._guard = guard
        self._out = out
        self._events = events
        self._verbose = verbose
        self._starter = starter
        self._now: dict[int, Worker] = {}
        self._all: list[Worker] = []

    @property
    def everybody(self) -> tuple[Worker, ...]:
        """All that were started, also those in whose place another one was."""
        return tuple(self._all)

    @property
    def present(self) -> Mapping[int, Worker]:
        """The last one that was started, by its index."""
        return self._now

    def start(self, index: int) -> None:
        """Start a worker, in the place of one that has ended if there was one."""
        if index in self._now:
            processes.send(self._now[index], signal.SIGKILL)  # children of it that may hold its port
        spec = self.specs[index]
        worker = processes.start(spec, os.environ, self._events, piped=self.pump is not None, starter=self._starter)
        self._now[index] = worker
        self._all.append(worker)
        self._guard.watch(worker.pid)
        if self._verbose:
            announce(self._out, f"{spec.task} is process {worker.pid}")
        for stream, descriptor in enumerate(worker.outputs, start=1):
            if self.pump is not None:
                self.pump.add(descriptor, stream=stream, worker=index)

    def perform(self, action: Action) -> None:
        """Do what was decided."""
        if isinstance(action, Send):
            for index in sorted(action.workers):
                processes.send(self._now[index], action.number)
        elif isinstance(action, Say):
            announce(self._out, action.text)
        else:
            self.start(action.worker)

    def finish(self, *, grace_seconds: float, give_up: Callable[[], bool]) -> None:
        """End what the workers, which have ended, left running; write all that they wrote."""
        left = processes.end_leftovers(self.everybody, self._guard.job_id, grace_seconds=grace_seconds)
        if left and self._verbose:
            announce(self._out, f"ended {left} more processes that the workers had started")
        if self.pump is not None:
            self.pump.finish(give_up=give_up)

    def close(self) -> None:
        """Make sure that no process is left."""
        for worker in self._now.values():
            processes.send(worker, signal.SIGKILL)  # on the way of an error they still run
        processes.end_leftovers(self.everybody, self._guard.job_id, grace_seconds=0.0)
        if self.pump is not None:
            self.pump.finish(give_up=lambda: True)  # done already, unless an error leads here
        for worker in self.everybody:
            self._guard.forget(worker.pid)
        processes.reap(self.everybody, timeout_seconds=5.0)


@contextlib.contextmanager
def started(
    specs: Sequence[WorkerSpec],
    guard: Guard,
    out: Output,
    events: Events,
    *,
    verbose: bool,
    piped: bool,
    starter: Starter = started_anew,
    held: bool = False,
) -> Iterator[Generation]:
    """Yield the workers, started, and their output moving; after the block none of their processes is left.

    Args:
        specs: what to start.
        guard: of the job.
        out: where the output goes.
        events: where the ends of the processes are reported.
        verbose: whether to tell what is started and what ends.
        piped: whether the output goes through the agent; a single worker may have the terminal for itself.
        starter: what makes a process.
        held: whether their output waits for `Pump.release`; what was held at the end is dropped.
    """
    pump = Pump(out, lambda: events.put(Received(number=signal.SIGPIPE)), held=held) if piped else None
    generation = Generation(specs, guard=guard, out=out, events=events, pump=pump, verbose=verbose, starter=starter)
    try:
        for spec in specs:
            generation.start(spec.index)
        yield generation
    finally:
        generation.close()


def supervise(
    generation: Generation,
    state: S,
    step: Step[S],
    events: "SimpleQueue[Any]",
    *,
    look: Callable[[S], Any] | None = None,
    look_seconds: Callable[[S], float] = lambda state: LOOK_SECONDS,
    perform: Callable[[Any], None] | None = None,
) -> Course[S]:
    """Supervise until all have ended, or one cannot be ended.

    Args:
        generation: the processes.
        state: the first one.
        step: (state, event, now) -> (state, actions).
        events: what happens.
        look: returns an event when nothing has happened for a moment; by default `recorded`.
        look_seconds: how long that moment is.
        perform: does what was decided; by default the generation does.
    """
    look = look or (lambda state: recorded(generation, state) or Tick())
    perform = perform or generation.perform
    exits: dict[int, Exited] = {}
    stopped_at, killed = float("inf"), False
    while state.phase not in (Phase.DONE, Phase.LOST):
        event = _next_event(events, state, look, look_seconds(state))
        now = time.monotonic()
        if isinstance(event, Exited):
            event = replace(event, recorded=generation.specs[event.worker].error_file.exists())
            exits[event.worker] = event
        before = state.phase
        state, actions = step(state, event, now)
        if before is Phase.RUNNING and state.phase is not Phase.RUNNING:
            stopped_at = event.time if isinstance(event, Exited) else now
        killed = killed or state.phase is Phase.KILLING
        for action in actions:
            perform(action)
    return Course(state=state, exits=exits, stopped_at=stopped_at, killed=killed)


def _next_event(events: "SimpleQueue[Any]", state: S, look: Callable[[S], Any], look_seconds: float) -> Any:
    left = look_seconds if state.deadline is None else state.deadline - time.monotonic()
    try:
        return events.get(timeout=min(look_seconds, max(left, 0.0)))
    except Empty:
        return look(state)


def recorded(generation: Generation, state: Supervised, *, but: int | None = None) -> Recorded | None:
    """Return that a worker that runs has recorded a failure, if one has.

    Args:
        generation: the processes.
        state: who runs.
        but: an exit code that is no failure.
    """
    for worker in sorted(state.running):
        file = generation.specs[worker].error_file
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
    """Return the first signal that has arrived, asks to end, and that nobody has looked at.

    Args:
        events: emptied, unless they are kept.
        keep: whether the next call shall see them too.
    """
    seen = []
    with contextlib.suppress(Empty):
        while True:
            seen.append(events.get_nowait())
    for event in seen if keep else ():
        events.put(event)
    return next((event.number for event in seen if isinstance(event, Received) and event.number in PASSED_ON), None)
