"""What the agent does next, as a pure function: (state, event, now) -> (state, actions). No process, no clock.

    RUNNING    all is well; a worker that has recorded a failure gets the grace period to end by itself
    STOPPING   everybody was asked to end, because one failed or a signal arrived
    KILLING    the grace period is over, or Ctrl-C came again
    DONE       no worker runs
    LOST       a worker survived SIGKILL (the kernel holds it): the agent goes without it

A job of a chief and tasks that serve it is decided in `supervise_chief`, with the same phases and events.
"""

import signal
from dataclasses import dataclass, replace
from enum import Enum

KILL_SECONDS = 15.0


class Phase(Enum):
    """Where the job is."""

    RUNNING = "running"
    STOPPING = "stopping"
    KILLING = "killing"
    DONE = "done"
    LOST = "lost"


@dataclass(frozen=True, kw_only=True)
class State:
    """The job as the agent knows it.

    Attributes:
        running: workers whose process has not ended.
        phase: where the job is.
        deadline: clock time of the next step that time alone brings, or None.
        received: the signal that asked the job to end, if it was one.
    """

    running: frozenset[int]
    phase: Phase = Phase.RUNNING
    deadline: float | None = None
    received: int | None = None


@dataclass(frozen=True, kw_only=True)
class Exited:
    """The process of a worker ended.

    Attributes:
        worker: which.
        returncode: its exit code, or the negative number of the signal that killed it.
        time: when, on the agent's clock.
        recorded: whether it had recorded a failure.
    """

    worker: int
    returncode: int
    time: float
    recorded: bool = False


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A worker has recorded a failure, and its process still runs."""

    worker: int


@dataclass(frozen=True, kw_only=True)
class Received:
    """The agent got a signal."""

    number: int


@dataclass(frozen=True, kw_only=True)
class Tick:
    """Nothing but time has passed."""


@dataclass(frozen=True, kw_only=True)
class Send:
    """Action: send the signal to these workers; SIGKILL goes to all processes of their groups."""

    workers: frozenset[int]
    number: int


@dataclass(frozen=True, kw_only=True)
class Start:
    """Action: start the process of this worker, which has ended, again."""

    worker: int


@dataclass(frozen=True, kw_only=True)
class Say:
    """Action: tell the user, in one line."""

    text: str


Event = Exited | Recorded | Received | Tick
Action = Send | Start | Say


def decide(state: State, event: Event, *, now: float, grace_seconds: float) -> tuple[State, tuple[Send, ...]]:
    """Return the state after the event, and what to do.

    Args:
        state: where the job is.
        event: what happened.
        now: the agent's clock, in seconds.
        grace_seconds: between the request to end and SIGKILL.

    Example:
        >>> state = State(running=frozenset({0, 1}))
        >>> state, actions = decide(state, Exited(worker=1, returncode=1, time=5.0), now=5.0, grace_seconds=10.0)
        >>> state.phase.name, actions[0].workers, actions[0].number == signal.SIGTERM
        ('STOPPING', frozenset({0}), True)
    """
    if isinstance(event, Exited):
        return _exited(state, event, now, grace_seconds)
    if isinstance(event, Received):
        return _received(state, event, now, grace_seconds)
    if isinstance(event, Recorded) and state.phase is Phase.RUNNING and state.deadline is None:
        return replace(state, deadline=now + grace_seconds), ()
    if state.deadline is not None and now >= state.deadline:
        return _overdue(state, now, grace_seconds)
    return state, ()


def _exited(state: State, event: Exited, now: float, grace_seconds: float) -> tuple[State, tuple[Send, ...]]:
    state = replace(state, running=state.running - {event.worker})
    if not state.running:
        return replace(state, phase=Phase.DONE, deadline=None), ()
    if state.phase is Phase.RUNNING and event.returncode != 0:
        return _stop(state, signal.SIGTERM, now, grace_seconds)
    return state, ()


def _received(state: State, event: Received, now: float, grace_seconds: float) -> tuple[State, tuple[Send, ...]]:
    if state.phase is Phase.RUNNING:
        # a closed output is no request that a worker could understand
        number = signal.SIGTERM if event.number == signal.SIGPIPE else event.number
        return _stop(replace(state, received=event.number), number, now, grace_seconds)
    if state.phase is Phase.STOPPING and event.number == signal.SIGINT:
        return _kill(state, now)
    return state, ()  # `timeout` and service managers send SIGTERM twice: once to the process, once to its group


def _overdue(state: State, now: float, grace_seconds: float) -> tuple[State, tuple[Send, ...]]:
    if state.phase is Phase.RUNNING:
        return _stop(state, signal.SIGTERM, now, grace_seconds)
    if state.phase is Phase.STOPPING:
        return _kill(state, now)
    return replace(state, phase=Phase.LOST, deadline=None), ()


def _stop(state: State, number: int, now: float, grace_seconds: float) -> tuple[State, tuple[Send, ...]]:
    state = replace(state, phase=Phase.STOPPING, deadline=now + grace_seconds)
    return state, (Send(workers=state.running, number=number),)


def _kill(state: State, now: float) -> tuple[State, tuple[Send, ...]]:
    state = replace(state, phase=Phase.KILLING, deadline=now + KILL_SECONDS)
    return state, (Send(workers=state.running, number=signal.SIGKILL),)
