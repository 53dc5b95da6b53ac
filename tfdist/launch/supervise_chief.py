"""What the agent does next when a chief runs the script and tasks serve it, as a pure function: no process, no clock.

    a worker ends            it holds nothing: it is started again, at its port, and the chief finds it there
    a server ends            its variables are gone: everything is ended, and the job starts again
    the chief is killed      likewise
    the chief fails          the job fails; unless a server ends within BLAME_SECONDS, which was the cause then
    the chief ends well      the job is done, and the tasks are ended
    a process is stopped     (SIGSTOP) for too long: it is killed, and the rest follows from its end
    the chief hangs          likewise

The phases are those of `supervise`. The end of a job with tasks is DONE too; its verdict says what follows. A signal is
passed on to the chief alone, which may still save what the servers hold; tasks are ended once it has ended.
"""

import signal
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from tfdist.cluster.values import TaskId
from tfdist.launch.failure import how_it_ended
from tfdist.launch.hangs import Hang, Hung
from tfdist.launch.supervise import KILL_SECONDS, Action, Event, Exited, Phase, Received, Recorded, Say, Send, Start

CHIEF = 0  # its index
BLAME_SECONDS = 1.0  # a server that ends so soon after the chief's failure was its cause
_MOST_NAMES = 6  # in one line


class Verdict(Enum):
    """What the end of the processes means."""

    OPEN = "open"
    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    AGAIN = "again"


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What does not change while the job runs.

    Attributes:
        tasks: what the processes are, by their index; the first is the chief.
        max_restarts: how often workers are started again, all together; and how often the job is.
        grace_seconds: between the request to end and SIGKILL.
    """

    tasks: tuple[TaskId, ...]
    max_restarts: int
    grace_seconds: float


@dataclass(frozen=True, kw_only=True)
class ChiefState:
    """The job as the agent knows it.

    Attributes:
        running: processes that have not ended.
        phase: where the job is.
        deadline: clock time of the next step that time alone brings, or None.
        received: the signal that asked the job to end, if it was one.
        verdict: what the end of the processes will mean.
        cause: whose end made the job end or start again, or None.
        job_restarts: how often the job has been started again.
        worker_restarts: how often workers have been, over all starts of the job.
        failed_at: clock time at which the chief's failure was seen, or None.
        chief_end: how the chief ended in RUNNING, if it did.
        asked_at: clock time at which processes were asked to end; infinity before.
    """

    running: frozenset[int]
    phase: Phase = Phase.RUNNING
    deadline: float | None = None
    received: int | None = None
    verdict: Verdict = Verdict.OPEN
    cause: int | None = None
    job_restarts: int = 0
    worker_restarts: int = 0
    failed_at: float | None = None
    chief_end: Exited | None = None
    asked_at: float = float("inf")


_Next = tuple[ChiefState, tuple[Action, ...]]


def first_state(rules: Rules, *, before: ChiefState | None = None) -> ChiefState:
    """Return the state of a job that has just been started, or started again.

    Args:
        rules: of the job.
        before: how the start before this one ended, if there was one.

    Example:
        >>> rules = Rules(tasks=(TaskId(type="chief", index=0),), max_restarts=3, grace_seconds=10.0)
        >>> first_state(rules, before=first_state(rules)).job_restarts
        1
    """
    running = frozenset(range(len(rules.tasks)))
    if before is None:
        return ChiefState(running=running)
    return ChiefState(running=running, job_restarts=before.job_restarts + 1, worker_restarts=before.worker_restarts)


def decide_chief(state: ChiefState, event: Event | Hung, *, now: float, rules: Rules) -> _Next:
    """Return the state after the event, and what to do.

    Args:
        state: where the job is.
        event: what happened.
        now: the agent's clock, in seconds.
        rules: of the job.

    Example:
        >>> tasks = tuple(TaskId(type=kind, index=0) for kind in ("chief", "worker", "ps"))
        >>> rules = Rules(tasks=tasks, max_restarts=3, grace_seconds=10.0)
        >>> end = Exited(worker=1, returncode=-9, time=5.0)
        >>> state, actions = decide_chief(first_state(rules), end, now=5.0, rules=rules)
        >>> actions[0], state.worker_restarts
        (Start(worker=1), 1)
    """
    if isinstance(event, Exited):
        return _exited(state, event, now, rules)
    if isinstance(event, Received):
        return _received(state, event, now, rules)
    if isinstance(event, Hung):
        return _hung(state, event.hang)
    if isinstance(event, Recorded) and _is_news(state, event):
        # it may end by itself; and a server's end may be on its way, which then was the cause
        deadline = now + max(rules.grace_seconds, BLAME_SECONDS)
        return replace(state, failed_at=now, deadline=deadline), ()
    if state.deadline is not None and now >= state.deadline:
        return _overdue(state, now, rules)
    return state, ()


def _hung(state: ChiefState, hang: Hang) -> _Next:
    if hang.worker not in state.running or state.phase is not Phase.RUNNING:
        return state, ()
    return state, (
        Send(workers=frozenset({hang.worker}), number=signal.SIGKILL),
        Say(text=f"{hang.text}; it is killed"),
    )


def _is_news(state: ChiefState, event: Recorded) -> bool:
    return event.worker == CHIEF and state.phase is Phase.RUNNING and state.failed_at is None


def _exited(state: ChiefState, event: Exited, now: float, rules: Rules) -> _Next:
    state = replace(state, running=state.running - {event.worker})
    if state.phase is not Phase.RUNNING:
        return _exited_while_ending(state, event)
    if event.worker == CHIEF:
        return _chief_exited(state, event, now, rules)
    if rules.tasks[event.worker].type == "worker":
        return _worker_exited(state, event, now, rules)
    if state.failed_at is not None and now > state.failed_at + BLAME_SECONDS:
        return _chief_failed(state, now, rules)  # it has failed long before, and does not end
    return _start_again(state, event, now, rules)


def _exited_while_ending(state: ChiefState, event: Exited) -> _Next:
    if event.worker == CHIEF and event.returncode == 0 and event.time <= state.asked_at:
        state = replace(state, verdict=Verdict.FINISHED)  # nobody had asked it: its work was done
    if not state.running:
        return replace(state, phase=Phase.DONE, deadline=None), ()
    if event.worker == CHIEF and state.phase is Phase.STOPPING:
        return state, (Send(workers=state.running, number=signal.SIGTERM),)
    return state, ()


def _chief_exited(state: ChiefState, event: Exited, now: float, rules: Rules) -> _Next:
    if event.returncode == 0:
        return _stop(state, Verdict.FINISHED, now, rules)
    state = replace(state, chief_end=event, failed_at=now if state.failed_at is None else state.failed_at)
    assert state.failed_at is not None
    if now >= state.failed_at + BLAME_SECONDS:
        return _chief_failed(state, now, rules)
    return replace(state, deadline=state.failed_at + BLAME_SECONDS), ()


def _chief_failed(state: ChiefState, now: float, rules: Rules) -> _Next:
    """Decide about a chief whose failure no server has caused."""
    end = state.chief_end
    if end is None:
        said = Say(
            text=f"the chief has failed and does not end; {_have(state, rules)} {rules.grace_seconds:g} s to end"
        )
        return _stop(state, Verdict.FAILED, now, rules, cause=CHIEF, said=said)
    if end.returncode < 0 and not end.recorded:
        return _start_again(state, end, now, rules)
    said = Say(text=f"the chief failed ({how_it_ended(end.returncode)}); its tasks are ended")
    return _stop(state, Verdict.FAILED, now, rules, cause=CHIEF, said=said)


def _worker_exited(state: ChiefState, event: Exited, now: float, rules: Rules) -> _Next:
    if state.failed_at is not None:
        return state, ()  # the job is about to end, or to start again
    ended, used, most = _ended(event, rules), state.worker_restarts, rules.max_restarts
    if used < most:
        state = replace(state, running=state.running | {event.worker}, worker_restarts=used + 1)
        said = Say(text=f"{ended}; it is started again at its port (workers: {used + 1} of {most} times)")
        return state, (Start(worker=event.worker), said)
    spent = f"workers were started again {used} of {most} times (--max-restarts)"
    if any(rules.tasks[index].type == "worker" for index in state.running):
        return state, (Say(text=f"{ended}; {spent}, so the job goes on without it"),)
    said = Say(text=f"{ended}; {spent} and none is left, so the job fails")
    return _stop(state, Verdict.FAILED, now, rules, cause=event.worker, said=said)


def _start_again(state: ChiefState, event: Exited, now: float, rules: Rules) -> _Next:
    ended, used, most = _ended(event, rules), state.job_restarts, rules.max_restarts
    if used < most:
        said = Say(text=f"{ended}; the job is started again ({used + 1} of {most} times)")
        return _stop(state, Verdict.AGAIN, now, rules, cause=event.worker, said=said)
    said = Say(text=f"{ended}; the job was started again {used} of {most} times (--max-restarts), so it fails")
    return _stop(state, Verdict.FAILED, now, rules, cause=event.worker, said=said)


def _received(state: ChiefState, event: Received, now: float, rules: Rules) -> _Next:
    name = signal.Signals(event.number).name
    if state.phase is Phase.RUNNING:
        state = replace(state, received=event.number)
        verdict, cause = (Verdict.INTERRUPTED, None) if state.failed_at is None else (Verdict.FAILED, CHIEF)
        said = Say(text=f"{name}: {_have(state, rules)} {rules.grace_seconds:g} s to end; Ctrl-C kills now")
        # a closed output is no request that a process could understand
        number = signal.SIGTERM if event.number == signal.SIGPIPE else event.number
        return _stop(state, verdict, now, rules, cause=cause, said=said, number=number)
    if state.verdict is Verdict.AGAIN:
        state = replace(state, received=event.number, verdict=Verdict.INTERRUPTED, cause=None)
        return state, (Say(text=f"{name}: the job is not started again"),)
    if state.phase is Phase.STOPPING and event.number == signal.SIGINT:
        return _kill(state, now, rules)
    return state, ()


def _overdue(state: ChiefState, now: float, rules: Rules) -> _Next:
    if state.phase is Phase.RUNNING:
        return _chief_failed(state, now, rules)
    if state.phase is Phase.STOPPING:
        return _kill(state, now, rules)
    verdict = Verdict.FAILED if state.verdict is Verdict.AGAIN else state.verdict
    text = f"{_named(state.running, rules)} did not end after SIGKILL; the kernel holds them. Look with ps."
    return replace(state, phase=Phase.LOST, deadline=None, verdict=verdict), (Say(text=text),)


def _stop(
    state: ChiefState,
    verdict: Verdict,
    now: float,
    rules: Rules,
    *,
    cause: int | None = None,
    said: Say | None = None,
    number: int | None = None,
) -> _Next:
    """Ask all processes to end; with a number, pass it on to the chief, whose end will be that of the others."""
    words = () if said is None else (said,)
    state = replace(state, verdict=verdict, cause=cause, asked_at=now)
    if not state.running:
        return replace(state, phase=Phase.DONE, deadline=None), words
    state = replace(state, phase=Phase.STOPPING, deadline=now + rules.grace_seconds)
    if number is not None and CHIEF in state.running:
        return state, (Send(workers=frozenset({CHIEF}), number=number), *words)
    return state, (Send(workers=state.running, number=signal.SIGTERM), *words)


def _kill(state: ChiefState, now: float, rules: Rules) -> _Next:
    state = replace(state, phase=Phase.KILLING, deadline=now + KILL_SECONDS)
    said = Say(text=f"killing {_named(state.running, rules)}")
    return state, (Send(workers=state.running, number=signal.SIGKILL), said)


def _ended(event: Exited, rules: Rules) -> str:
    return f"{rules.tasks[event.worker]} ended ({how_it_ended(event.returncode)})"


def _have(state: ChiefState, rules: Rules) -> str:
    return f"{_named(state.running, rules)} {'has' if len(state.running) == 1 else 'have'}"


def _named(running: Iterable[int], rules: Rules) -> str:
    names = [str(rules.tasks[index]) for index in sorted(running)]
    return ", ".join(names) if len(names) <= _MOST_NAMES else f"{len(names)} processes"
