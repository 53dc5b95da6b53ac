"""What the agent does next when workers run the script and wait for each other, as a pure function.

    a worker fails, or all hang     while the job may be started again: everybody is killed at once, since nobody holds
                                    anything that is not saved; else `supervise` decides, as for a job without restarts
    a worker is asked to leave      all stop before the same step and save; the job goes on without it
    another number is asked for     likewise, with that many
    a signal                        all stop before the same step, save and end, if they step; else it is passed on

How all stop before the same step is in `hold`; what follows when no process is left, in `restarts`.
"""

import signal
from dataclasses import dataclass, replace
from enum import Enum

from tfdist.launch.failure import how_it_ended
from tfdist.launch.hangs import Hang, Hung
from tfdist.launch.hold import Position, target_of
from tfdist.launch.progress import HALTED, SETTLE_SECONDS
from tfdist.launch.supervise import (
    KILL_SECONDS,
    Action,
    Event,
    Exited,
    Phase,
    Received,
    Recorded,
    Say,
    Send,
    State,
    Tick,
    decide,
)

RECORDED_SECONDS = 0.25  # for a worker that has recorded its failure to show it and end, before all are killed
ENDED_SECONDS = 0.5  # for workers that have stopped and saved to end, before they are killed
HALT_SECONDS = 300.0  # for all to reach their next step; less than a worker holds


class Purpose(Enum):
    """Why all workers stop before the same step."""

    RESIZE = "resize"
    LEAVE = "leave"
    END = "end"


@dataclass(frozen=True, kw_only=True)
class Halt:
    """A request to all workers to stop before the same step.

    Attributes:
        purpose: why.
        asked: clock time of the request.
        target: the last tick that they run, once it is known.
    """

    purpose: Purpose
    asked: float
    target: int | None = None


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What does not change while the processes of one start run.

    Attributes:
        grace_seconds: between the request to end and SIGKILL.
        may_restart: whether a failure is followed by another start.
        min_workers, max_workers: between these the number of workers may be changed.
    """

    grace_seconds: float
    may_restart: bool = False
    min_workers: int
    max_workers: int


@dataclass(frozen=True, kw_only=True)
class WorkersState:
    """The job as the agent knows it.

    Attributes:
        base: which workers run, the phase, its deadline, a signal: as without restarts.
        size: how many workers this start has.
        wanted: how many the next one has.
        steps: whether the workers report steps now, so that they can be asked to stop before one.
        halt: the request to stop, if there is one.
        halted: workers that have stopped as asked, and have saved.
        leaving: workers that were asked to leave.
        failed: whether one has failed, or all hang.
        hang: what is known of it, if that is how.
    """

    base: State
    size: int
    wanted: int
    steps: bool = False
    halt: Halt | None = None
    halted: frozenset[int] = frozenset()
    leaving: frozenset[int] = frozenset()
    failed: bool = False
    hang: Hang | None = None

    @property
    def running(self) -> frozenset[int]:
        """Workers whose process has not ended."""
        return self.base.running

    @property
    def phase(self) -> Phase:
        """Where the job is."""
        return self.base.phase

    @property
    def deadline(self) -> float | None:
        """Clock time of the next step that time alone brings, or None."""
        return self.base.deadline

    @property
    def received(self) -> int | None:
        """The signal that asked the job to end, if it was one."""
        return self.base.received


@dataclass(frozen=True, kw_only=True)
class Looked:
    """The agent has looked at the page.

    Attributes:
        positions: of the workers that run.
        steps: whether somebody has started a step, and nobody has left `fit`.
        leaving: workers that were asked to leave.
        ended_for: seconds for which all of them have had nothing left to do; 0 while one has.
    """

    positions: tuple[Position, ...]
    steps: bool
    leaving: frozenset[int] = frozenset()
    ended_for: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Somebody asks for so many workers."""

    workers: int


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Action: ask all workers to hold before their next tick."""


@dataclass(frozen=True, kw_only=True)
class GoOn:
    """Action: take that back."""


@dataclass(frozen=True, kw_only=True)
class StopAfter:
    """Action: let all workers run up to and including this tick."""

    tick: int


WorkersEvent = Event | Looked | Hung | Asked
WorkersAction = Action | Stop | GoOn | StopAfter
_Next = tuple[WorkersState, tuple[WorkersAction, ...]]


def first_state(workers: int) -> WorkersState:
    """Return the state of a job whose workers have just been started.

    Example:
        >>> sorted(first_state(2).running)
        [0, 1]
    """
    return WorkersState(base=State(running=frozenset(range(workers))), size=workers, wanted=workers)


def decide_workers(state: WorkersState, event: WorkersEvent, *, now: float, rules: Rules) -> _Next:
    """Return the state after the event, and what to do.

    Args:
        state: where the job is.
        event: what happened.
        now: the agent's clock, in seconds.
        rules: of this start.

    Example:
        >>> rules = Rules(grace_seconds=10.0, may_restart=True, min_workers=2, max_workers=2)
        >>> state, actions = decide_workers(
        ...     first_state(2), Exited(worker=1, returncode=-9, time=5.0), now=5.0, rules=rules
        ... )
        >>> actions[0] == Send(workers=frozenset({0}), number=signal.SIGKILL), state.failed
        (True, True)
    """
    if isinstance(event, Exited):
        return _exited(state, event, now, rules)
    if isinstance(event, Received):
        step = {signal.SIGUSR1: 1, signal.SIGUSR2: -1}.get(signal.Signals(event.number))
        return _received(state, event, now, rules) if step is None else _asked(state, state.wanted + step, rules)
    if isinstance(event, Asked):
        return _asked(state, event.workers, rules)
    if isinstance(event, Hung):
        return _hung(state, event.hang, now)
    if isinstance(event, Looked):
        return _looked(state, event, now, rules)
    return _by_itself(state, event, now, rules)


def _by_itself(state: WorkersState, event: Recorded | Tick, now: float, rules: Rules) -> _Next:
    """Decide about a recorded failure, and about time that has passed."""
    base = state.base
    if rules.may_restart and base.phase is Phase.RUNNING:
        if base.deadline is not None and now >= base.deadline:
            return _fail(state, now)
        if isinstance(event, Recorded) and base.deadline is None:
            return replace(state, base=replace(base, deadline=now + RECORDED_SECONDS)), ()
        return state, ()
    return _as_ever(state, event, now, rules)


def _as_ever(state: WorkersState, event: Event, now: float, rules: Rules) -> _Next:
    """Let `supervise` decide; say what the user should know."""
    base, sent = decide(state.base, event, now=now, grace_seconds=rules.grace_seconds)
    said = "" if base.phase is state.phase else announcement(base, event, rules.grace_seconds)
    return replace(state, base=base), (*sent, *([Say(text=said)] if said else []))


def _exited(state: WorkersState, event: Exited, now: float, rules: Rules) -> _Next:
    if event.returncode == HALTED and state.halt is not None and state.halt.target is not None:
        state = replace(state, halted=state.halted | {event.worker})
        event = replace(event, returncode=0)
    if event.returncode == 0 or state.phase is Phase.KILLING:
        return _as_ever(state, event, now, rules)
    stopping = state.halt is not None and state.phase is Phase.STOPPING
    if not stopping and (state.phase is not Phase.RUNNING or not rules.may_restart):
        state = replace(state, failed=state.failed or state.phase is Phase.RUNNING)
        return _as_ever(state, event, now, rules)
    return _fail(replace(state, base=replace(state.base, running=state.running - {event.worker})), now)


def _hung(state: WorkersState, hang: Hang, now: float) -> _Next:
    if state.phase is not Phase.RUNNING and (state.halt is None or state.phase is not Phase.STOPPING):
        return state, ()
    return _fail(replace(state, hang=hang), now)


def _fail(state: WorkersState, now: float) -> _Next:
    state = replace(state, failed=True)
    if not state.running:
        return replace(state, base=replace(state.base, phase=Phase.DONE, deadline=None)), ()
    base = replace(state.base, phase=Phase.KILLING, deadline=now + KILL_SECONDS)
    return replace(state, base=base), (Send(workers=state.running, number=signal.SIGKILL),)


def _received(state: WorkersState, event: Received, now: float, rules: Rules) -> _Next:
    if state.phase is Phase.KILLING and state.received is None:
        state = replace(state, base=replace(state.base, received=event.number))
        return state, (Say(text=f"{signal.Signals(event.number).name}: the job is not started again"),)
    if state.phase is not Phase.RUNNING or not state.steps:
        return _as_ever(state, event, now, rules)
    asked, target = (now, None) if state.halt is None else (state.halt.asked, state.halt.target)
    base = replace(state.base, phase=Phase.STOPPING, deadline=now + rules.grace_seconds, received=event.number)
    said = (
        f"{signal.Signals(event.number).name}: {_have(base)} {rules.grace_seconds:g} s to stop after this step, save "
        "and end; Ctrl-C kills now"
    )
    actions: tuple[WorkersAction, ...] = (Say(text=said),) if state.halt else (Stop(), Say(text=said))
    return replace(state, base=base, halt=Halt(purpose=Purpose.END, asked=asked, target=target)), actions


def _asked(state: WorkersState, workers: int, rules: Rules) -> _Next:
    if not rules.min_workers <= workers <= rules.max_workers:
        text = f"{shown(workers)} wanted; --min-workers is {rules.min_workers}, --max-workers "
        return state, (Say(text=f"{text}{rules.max_workers}. Nothing is changed."),)
    return replace(state, wanted=workers), ()  # when the workers step, the next look sees to it


def _looked(state: WorkersState, event: Looked, now: float, rules: Rules) -> _Next:
    state = replace(state, steps=event.steps, leaving=state.leaving | event.leaving)
    if state.halt is not None and state.phase in (Phase.RUNNING, Phase.STOPPING):
        return _halting(state, state.halt, event, now, rules)
    if state.phase is Phase.RUNNING and state.base.deadline is None and state.steps:
        if state.leaving:
            names = f"worker{'s' if len(state.leaving) > 1 else ''} {', '.join(map(str, sorted(state.leaving)))}"
            said = Say(text=f"{names} got SIGTERM; all stop after this step and save")
            return replace(state, halt=Halt(purpose=Purpose.LEAVE, asked=now)), (Stop(), said)
        if state.wanted != state.size:
            said = Say(text=f"{shown(state.wanted)} wanted; all stop after this step and save")
            return replace(state, halt=Halt(purpose=Purpose.RESIZE, asked=now)), (Stop(), said)
    return _by_itself(state, Tick(), now, rules)


def _halting(state: WorkersState, halt: Halt, event: Looked, now: float, rules: Rules) -> _Next:
    if halt.target is None:
        target = target_of(event.positions) if now >= halt.asked + SETTLE_SECONDS else None
        if target is not None:
            return replace(state, halt=replace(halt, target=target)), (StopAfter(tick=target),)
        if halt.purpose is Purpose.END:
            if not event.steps and state.received is not None and state.received != signal.SIGPIPE:  # fit is over
                return replace(state, halt=None), (GoOn(), Send(workers=state.running, number=state.received))
        elif now >= halt.asked + HALT_SECONDS:
            waited = f"not all workers have come to a step in {HALT_SECONDS:g} s"
            if halt.purpose is Purpose.RESIZE:
                state = replace(state, halt=None, wanted=state.size)
                return state, (GoOn(), Say(text=f"{waited}; the number of workers stays"))
            state, actions = _fail(state, now)
            return state, (*actions, Say(text=f"{waited}; they are killed"))
    elif event.ended_for > ENDED_SECONDS:  # TensorFlow takes its time to end, and may wait for others
        base = replace(state.base, phase=Phase.KILLING, deadline=now + KILL_SECONDS)
        state = replace(state, base=base, halted=state.halted | state.running)
        return state, (Send(workers=state.running, number=signal.SIGKILL),)
    return _by_itself(state, Tick(), now, rules)


def announcement(state: State, event: Event, grace_seconds: float) -> str:
    """Return what the user should know when the phase has changed; empty when nothing.

    Args:
        state: after the change.
        event: that changed it.
        grace_seconds: between the request to end and SIGKILL.

    Example:
        >>> state = State(running=frozenset({0}), phase=Phase.KILLING)
        >>> announcement(state, Tick(), 10.0)
        'killing 1 worker'
    """
    if state.phase is Phase.LOST:
        return f"workers {sorted(state.running)} did not end after SIGKILL; the kernel holds them. Look with ps."
    if state.phase is Phase.KILLING:
        return f"killing {shown(len(state.running))}"
    if state.phase is not Phase.STOPPING:
        return ""
    if isinstance(event, Received):
        name = signal.Signals(event.number).name
        return f"{name}: {_have(state)} {grace_seconds:g} s to end; Ctrl-C kills now"
    why = (
        f"worker {event.worker} failed ({how_it_ended(event.returncode)})"
        if isinstance(event, Exited)
        else ("a worker has failed and does not end")
    )
    return f"{why}; {_have(state)} {grace_seconds:g} s to end"


def _have(state: State) -> str:
    return f"{shown(len(state.running))} {'has' if len(state.running) == 1 else 'have'}"


def shown(workers: int) -> str:
    """Return a number of workers in words.

    Example:
        >>> shown(1), shown(2)
        ('1 worker', '2 workers')
    """
    return f"{workers} worker{'' if workers == 1 else 's'}"
