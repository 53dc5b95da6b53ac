"""The agent's next actions, as a pure function: (state, event, now) -> (state, actions). No process, no clock.

The restart policy of its role decides the effect of the end of a process:

    a worker that steps with others fails   all are killed and restarted, or end if the budget is spent
    a worker of a chief ends                it is restarted alone at its port, because it holds no state
    a server ends, or the chief is killed   all are ended and restarted
    the chief fails                         the job fails, unless a server ends soon after, which was the cause
    the chief ends well                     the others are ended
    workers hang                            in step, all fail; otherwise the one is killed, and its end decides
    a signal                                workers in step save and end; otherwise it goes to the scripts first
"""

import signal
from dataclasses import dataclass, replace
from enum import Enum

from tfdist.jobs.plan.roles import Consequence, RestartPolicy, Scope, Success, consequence
from tfdist.jobs.supervision.evicting import evicted
from tfdist.jobs.supervision.halting import (
    asked,
    end_after_this_step,
    fail_together,
    give_up,
    kill_aloud,
    looked,
    may_restart,
    stop,
)
from tfdist.jobs.supervision.hangs import Hang, Hung
from tfdist.jobs.supervision.supervisor_state import (
    Asked,
    Event,
    Evict,
    Exited,
    Looked,
    Next,
    Phase,
    Received,
    Recorded,
    Rules,
    Say,
    Send,
    Start,
    State,
    Verdict,
)
from tfdist.monitor.status import HALTED
from tfdist.processes.worker_failure import how_it_ended, is_end_by

RECORDED_SECONDS = 0.25  # for a worker that has recorded its failure to show it and end, before all are killed
_RESIZING = {signal.SIGUSR1: 1, signal.SIGUSR2: -1}


def decide(state: State, event: Event, *, now: float, rules: Rules) -> Next:
    if isinstance(event, Exited):
        return _exited(state, event, now, rules)
    if isinstance(event, Received):
        step = _RESIZING.get(signal.Signals(event.number))
        return _received(state, event.number, now, rules) if step is None else asked(state, state.wanted + step, rules)
    if isinstance(event, Asked):
        return asked(state, event.workers, rules)
    if isinstance(event, Evict):
        return evicted(state, event, now)
    if isinstance(event, Hung):
        return _hung(state, event.hang, now, rules)
    if isinstance(event, Looked):
        state, actions = looked(state, event, now, rules)
        return (state, actions) if actions else _by_time(state, now, rules)
    if isinstance(event, Recorded) and state.deadline is None:  # else another failure or request came before
        return _recorded(state, event, now, rules)
    return _by_time(state, now, rules)


def _by_time(state: State, now: float, rules: Rules) -> Next:
    if state.deadline is None or now < state.deadline:
        return state, ()
    if state.phase is Phase.RUNNING:
        return _blamed(state, now, rules)
    return kill_aloud(state, now, rules) if state.phase is Phase.STOPPING else give_up(state, rules)


def _recorded(state: State, event: Recorded, now: float, rules: Rules) -> Next:
    """Let a process that has recorded a failure end by itself; its cause, the end of another process, may follow."""
    policy = rules.role(event.worker).restart_policy
    at_once = policy.kills and may_restart(state, rules)
    seconds = RECORDED_SECONDS if at_once else max(rules.grace_seconds, policy.blame_seconds)
    return replace(state, failed_at=now, deadline=now + seconds), ()


def _exited(state: State, event: Exited, now: float, rules: Rules) -> Next:
    if event.returncode == HALTED and state.halt is not None and state.halt.target is not None:
        state = replace(state, halted=state.halted | {event.worker})
        event = replace(event, returncode=0)
    state = replace(state, running=state.running - {event.worker})
    if state.phase is not Phase.RUNNING:
        return _exited_while_ending(state, event, now, rules)
    role = rules.role(event.worker)
    policy = role.restart_policy
    used = state.replaced if policy.scope is Scope.MEMBER else state.restarts
    follows = consequence(policy, event.returncode, recorded=event.recorded, restarts_left=used < rules.max_restarts)
    if follows is Consequence.WAIT:
        return (state, ()) if state.running else (_done(state), ())
    if follows is Consequence.COMPLETE:
        return stop(state, Verdict.FINISHED, now, rules)
    if policy.scope is Scope.MEMBER:
        return _lost_one(state, event, follows, now, rules)
    if policy.blame_seconds:
        return _suspected(state, event, policy, now, rules)
    if _is_late(state, now, rules):
        return _blamed(state, now, rules)  # another process has failed long before, and does not end
    return _failed(state, event, follows, now, rules)


def _exited_while_ending(state: State, event: Exited, now: float, rules: Rules) -> Next:
    role = rules.role(event.worker)
    completes = role.restart_policy.on_success is Success.COMPLETE
    if completes and event.returncode == 0 and event.time <= state.asked_at:
        state = replace(state, verdict=Verdict.FINISHED, failed=False)  # it ended unasked: its work was done
    heard = state.received is not None and is_end_by(event.returncode, state.received)
    if state.phase is Phase.STOPPING and state.halt is not None and event.returncode != 0 and not heard:
        return fail_together(state, now, rules)
    if not state.running:
        return _done(state), ()
    if state.phase is Phase.STOPPING and role.runs_script and not rules.scripts(state.running):
        return state, (Send(workers=state.running, number=signal.SIGTERM),)
    return state, ()


def _done(state: State) -> State:
    verdict = state.verdict
    if verdict is Verdict.OPEN:
        verdict = Verdict.RESTART if state.halted else Verdict.FINISHED
    return replace(state, phase=Phase.DONE, deadline=None, verdict=verdict)


def _lost_one(state: State, event: Exited, follows: Consequence, now: float, rules: Rules) -> Next:
    if state.failed_at is not None:
        return state, ()  # the job is about to end, or to start again
    ended, used, most = _ended(event, rules), state.replaced, rules.max_restarts
    role = rules.role(event.worker)
    if follows is Consequence.REPLACE:
        hang = None if state.hang is not None and state.hang.worker == event.worker else state.hang
        state = replace(state, running=state.running | {event.worker}, replaced=used + 1, hang=hang)
        said = f"{ended}; it is started again at its port ({role.name}s: {used + 1} of {most} times)"
        return state, (Start(worker=event.worker), Say(text=said))
    spent = f"{role.name}s were started again {used} of {most} times (--max-restarts)"
    if any(rules.role(index) is role for index in state.running):
        return state, (Say(text=f"{ended}; {spent}, so the job continues without it"),)
    said = f"{ended}; {spent} and none is left, so the job fails"
    return stop(replace(state, failed=True, cause=event.worker), Verdict.FAILED, now, rules, said=said)


def _suspected(state: State, event: Exited, policy: RestartPolicy, now: float, rules: Rules) -> Next:
    """Wait to see whether the end of another process is the cause of this failure."""
    failed_at = now if state.failed_at is None else state.failed_at
    state = replace(state, suspect=event, failed_at=failed_at)
    if now >= failed_at + policy.blame_seconds:
        return _blamed(state, now, rules)
    return replace(state, deadline=failed_at + policy.blame_seconds), ()


def _is_late(state: State, now: float, rules: Rules) -> bool:
    blame = max(role.restart_policy.blame_seconds for role in rules.roles)
    return state.failed_at is not None and not rules.in_step and now > state.failed_at + blame


def _blamed(state: State, now: float, rules: Rules) -> Next:
    """Decide about a failure without another cause, or without the expected end."""
    if rules.in_step:
        if may_restart(state, rules):
            return fail_together(state, now, rules)
        said = f"a worker has failed and does not end; {rules.have(state.running)} {rules.grace_seconds:g} s to end"
        return stop(replace(state, failed=True), Verdict.FAILED, now, rules, said=said)
    end = state.suspect
    if end is None:
        chief = min(rules.scripts(state.running))
        said = f"the {rules.task(chief)} has failed and does not end; "
        said += f"{rules.have(state.running)} {rules.grace_seconds:g} s to end"
        return stop(replace(state, failed=True, cause=chief), Verdict.FAILED, now, rules, said=said)
    policy = rules.role(end.worker).restart_policy
    follows = consequence(policy, end.returncode, recorded=end.recorded, restarts_left=may_restart(state, rules))
    if policy.only_if_killed and (end.returncode >= 0 or end.recorded):
        said = f"the {rules.task(end.worker)} failed ({how_it_ended(end.returncode)}); its tasks are ended"
        return stop(replace(state, failed=True, cause=end.worker), Verdict.FAILED, now, rules, said=said)
    return _failed(state, end, follows, now, rules)


def _failed(state: State, event: Exited, follows: Consequence, now: float, rules: Rules) -> Next:
    again = follows is Consequence.RESTART
    if rules.in_step:
        if again:
            return fail_together(state, now, rules)
        said = f"worker {event.worker} failed ({how_it_ended(event.returncode)}); "
        said += f"{rules.have(state.running)} {rules.grace_seconds:g} s to end"
        said = said if state.running else ""  # the report says it
        return stop(replace(state, failed=True), Verdict.FAILED, now, rules, said=said)
    ended, used, most = _ended(event, rules), state.restarts, rules.max_restarts
    state = replace(state, failed=True, cause=event.worker)
    if again:
        said = f"{ended}; the job is started again ({used + 1} of {most} times)"
        return stop(state, Verdict.RESTART, now, rules, said=said)
    said = f"{ended}; the job was started again {used} of {most} times (--max-restarts), so it fails"
    return stop(state, Verdict.FAILED, now, rules, said=said)


def _hung(state: State, hang: Hang, now: float, rules: Rules) -> Next:
    if rules.in_step:
        halting = state.phase is Phase.STOPPING and state.halt is not None
        ends_all = state.phase is Phase.RUNNING or halting
        return fail_together(replace(state, hang=hang), now, rules) if ends_all else (state, ())
    known = state.hang is not None and state.hang.worker == hang.worker  # it is killed already
    if known or hang.worker is None or hang.worker not in state.running or state.phase is not Phase.RUNNING:
        return state, ()
    sent = Send(workers=frozenset({hang.worker}), number=signal.SIGKILL)
    return replace(state, hang=hang), (sent, Say(text=f"{hang.text}; it is killed"))


def _received(state: State, number: int, now: float, rules: Rules) -> Next:
    name = signal.Signals(number).name
    if state.phase is Phase.RUNNING and state.steps:
        return end_after_this_step(state, number, now, rules)
    if state.phase is Phase.RUNNING:
        verdict = Verdict.INTERRUPTED
        state = replace(state, received=number)
        if state.failed_at is not None and not rules.in_step:  # that was before the signal
            first = min(rules.scripts(state.running)) if state.suspect is None else state.suspect.worker
            verdict, state = Verdict.FAILED, replace(state, failed=True, cause=first)
        said = f"{name}: {rules.have(state.running)} {rules.grace_seconds:g} s to end; Ctrl-C kills now"
        # a closed output is no request that a process could understand
        passed = signal.SIGTERM if number == signal.SIGPIPE else number
        return stop(state, verdict, now, rules, said=said, number=passed)
    if state.verdict is Verdict.RESTART:
        state = replace(state, received=number, verdict=Verdict.INTERRUPTED)
        return state, (Say(text=f"{name}: the job is not started again"),)
    if state.phase is Phase.STOPPING and number == signal.SIGINT:
        return kill_aloud(state, now, rules)
    return state, ()  # `timeout` and service managers send SIGTERM twice: once to the process, once to its group


def _ended(event: Exited, rules: Rules) -> str:
    return f"{rules.task(event.worker)} ended ({how_it_ended(event.returncode)})"


class Decision(Enum):
    END = "end"  # as the last start has ended
    RESTART = "restart"  # with as many workers as `next_size` says
    TOO_FEW_WORKERS = "too few workers"  # workers were asked to leave, and too few would be left
    REPEATED_FAILURE = "repeated failure"  # the same failure has come too often


@dataclass(frozen=True, kw_only=True)
class History:
    """Earlier starts and failures. `same` counts the last failure in a row; `signature` identifies it and its step."""

    starts: int = 0
    failures: int = 0
    same: int = 0
    signature: str | None = None


def next_size(state: State) -> int:
    return min(state.wanted, state.size - len(state.leaving)) if state.leaving else state.wanted


def after_failure(history: History, signature: str | None) -> History:
    again = signature is not None and signature == history.signature
    return replace(history, failures=history.failures + 1, same=history.same + 1 if again else 1, signature=signature)


def decide_restart(state: State, history: History, *, same_failures: int | None, min_workers: int) -> Decision:
    """Decide when no process is left; resizing uses no budget, and a failure that repeats at one step ends the job."""
    if state.verdict is not Verdict.RESTART:
        return Decision.END
    if same_failures is not None and history.same >= same_failures:
        return Decision.REPEATED_FAILURE
    return Decision.RESTART if next_size(state) >= min_workers else Decision.TOO_FEW_WORKERS
