"""The halting of workers, before the same step or by signals: pure functions of their reports.

All workers stop before the same step and save if another number is requested, a worker has to leave or stays slow, or a
signal ends the job; `target_of` determines the step. Otherwise processes are asked to end, killed after the grace
period, and finally given up.
"""

import signal
from dataclasses import replace

from tfdist.jobs.supervision.supervisor_state import (
    Action,
    GoOn,
    Halt,
    Looked,
    Next,
    Phase,
    Purpose,
    Rules,
    Say,
    Send,
    State,
    Stop,
    StopAfter,
    Verdict,
    shown,
)
from tfdist.monitor.status import SETTLE_SECONDS, target_of

ENDED_SECONDS = 0.5  # for workers that have stopped and saved to end, before they are killed
HALT_SECONDS = 300.0  # for all to reach their next step; less than a worker holds
KILL_SECONDS = 15.0


def asked(state: State, workers: int, rules: Rules) -> Next:
    if not rules.min_workers <= workers <= rules.max_workers:
        text = f"{shown(workers)} wanted; --min-workers is {rules.min_workers}, --max-workers {rules.max_workers}."
        return state, (Say(text=f"{text} Nothing is changed."),)
    return replace(state, wanted=workers), ()


def end_after_this_step(state: State, number: int, now: float, rules: Rules) -> Next:
    """Let stepping workers save and end, because of a signal to the job."""
    asked_at, target = (now, None) if state.halt is None else (state.halt.asked, state.halt.target)
    said = Say(
        text=f"{signal.Signals(number).name}: {rules.have(state.running)} {rules.grace_seconds:g} s to stop after this "
        "step, save and end; Ctrl-C kills now"
    )
    actions: tuple[Action, ...] = (said,) if state.halt else (Stop(), said)
    halt = Halt(purpose=Purpose.END, asked=asked_at, target=target)
    deadline = now + rules.grace_seconds
    return replace(
        state,
        phase=Phase.STOPPING,
        deadline=deadline,
        received=number,
        verdict=Verdict.INTERRUPTED,
        asked_at=now,
        halt=halt,
    ), actions


def looked(state: State, event: Looked, now: float, rules: Rules) -> Next:
    """Return the state and the actions that follow a look at the workers; without actions only time decides."""
    state = replace(state, steps=event.steps, leaving=state.leaving | event.leaving)
    if state.halt is not None and state.phase in (Phase.RUNNING, Phase.STOPPING):
        return _halting(state, state.halt, event, now, rules)
    if state.deadline is None and state.steps:
        if state.leaving:
            names = f"worker{'s' if len(state.leaving) > 1 else ''} {', '.join(map(str, sorted(state.leaving)))}"
            return begun(state, Purpose.LEAVE, f"{names} got a signal to end", now)
        if state.wanted != state.size:
            return begun(state, Purpose.RESIZE, f"{shown(state.wanted)} wanted", now)
    return state, ()


def begun(state: State, purpose: Purpose, why: str, now: float) -> Next:
    said = Say(text=f"{why}; all stop after this step and save")
    return replace(state, halt=Halt(purpose=purpose, asked=now)), (Stop(), said)


def _halting(state: State, halt: Halt, event: Looked, now: float, rules: Rules) -> Next:
    if halt.target is not None:
        if event.ended_for <= ENDED_SECONDS:
            return state, ()
        # all have saved, and TensorFlow ends slowly, and may wait for others
        verdict = Verdict.RESTART if state.verdict is Verdict.OPEN else state.verdict
        return kill(replace(state, verdict=verdict, halted=state.halted | state.running), now)
    target = target_of(event.positions) if now >= halt.asked + SETTLE_SECONDS else None
    if target is not None:
        return replace(state, halt=replace(halt, target=target)), (StopAfter(step=target),)
    if halt.purpose is Purpose.END:
        if not event.steps and state.received is not None and state.received != signal.SIGPIPE:  # fit is over
            return replace(state, halt=None), (GoOn(), Send(workers=state.running, number=state.received))
        return state, ()
    if now < halt.asked + HALT_SECONDS:
        return state, ()
    waited = f"not all workers have come to a step in {HALT_SECONDS:g} s"
    if halt.purpose is Purpose.RESIZE:
        state = replace(state, halt=None, wanted=state.size)
        return state, (GoOn(), Say(text=f"{waited}; the number of workers stays"))
    if halt.purpose is Purpose.EVICT:
        return replace(state, halt=None, leaving=event.leaving), (GoOn(), Say(text=f"{waited}; all workers stay"))
    state, actions = fail_together(state, now, rules)
    return state, (*actions, Say(text=f"{waited}; they are killed"))


def stop(
    state: State, verdict: Verdict, now: float, rules: Rules, *, said: str = "", number: int | None = None
) -> Next:
    words = (Say(text=said),) if said else ()
    state = replace(state, verdict=verdict, asked_at=now)
    if not state.running:
        return replace(state, phase=Phase.DONE, deadline=None), words
    state = replace(state, phase=Phase.STOPPING, deadline=now + rules.grace_seconds)
    scripts = rules.scripts(state.running)
    if number is not None and scripts:
        return state, (Send(workers=scripts, number=number), *words)
    return state, (Send(workers=state.running, number=signal.SIGTERM), *words)


def kill(state: State, now: float) -> Next:
    if not state.running:
        return replace(state, phase=Phase.DONE, deadline=None), ()
    state = replace(state, phase=Phase.KILLING, deadline=now + KILL_SECONDS)
    return state, (Send(workers=state.running, number=signal.SIGKILL),)


def kill_aloud(state: State, now: float, rules: Rules) -> Next:
    state, actions = kill(state, now)
    return state, (*actions, Say(text=f"killing {rules.shown(state.running)}"))


def give_up(state: State, rules: Rules) -> Next:
    """Go on without processes that survive SIGKILL."""
    verdict = Verdict.FAILED if state.verdict is Verdict.RESTART else state.verdict  # they are in the way of a restart
    text = f"{rules.names(state.running)} did not end after SIGKILL; the kernel holds them. Look with ps."
    return replace(state, phase=Phase.LOST, deadline=None, verdict=verdict), (Say(text=text),)


def fail_together(state: State, now: float, rules: Rules) -> Next:
    """Kill processes that step together: none holds unsaved state."""
    verdict = Verdict.RESTART if may_restart(state, rules) else Verdict.FAILED
    if state.received is not None:
        verdict = Verdict.INTERRUPTED
    return kill(replace(state, failed=True, verdict=verdict), now)


def may_restart(state: State, rules: Rules) -> bool:
    return state.restarts < rules.max_restarts
