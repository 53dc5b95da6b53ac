"""How a job's processes end, as pure functions: asked, killed after the grace period, then given up."""

import signal
from dataclasses import replace

from tfdist.jobs.supervision.supervisor_state import Next, Phase, Rules, Say, Send, State, Verdict

KILL_SECONDS = 15.0


def stop(
    state: State, verdict: Verdict, now: float, rules: Rules, *, said: str = "", number: int | None = None
) -> Next:
    """Ask all processes to end.

    Example:
        >>> from tfdist.jobs.plan.launch_config import LaunchConfig
        >>> from tfdist.jobs.plan.roles import roles_of
        >>> from tfdist.jobs.supervision.supervisor_state import first_state
        >>> rules = Rules(roles=roles_of(LaunchConfig(target="train.py")), grace_seconds=10.0)
        >>> stop(first_state(rules), Verdict.INTERRUPTED, 5.0, rules)[0].deadline
        15.0
    """
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
    """Kill all processes, without a word."""
    if not state.running:
        return replace(state, phase=Phase.DONE, deadline=None), ()
    state = replace(state, phase=Phase.KILLING, deadline=now + KILL_SECONDS)
    return state, (Send(workers=state.running, number=signal.SIGKILL),)


def kill_aloud(state: State, now: float, rules: Rules) -> Next:
    """Kill processes that were asked to end and do not, and say so."""
    state, actions = kill(state, now)
    return state, (*actions, Say(text=f"killing {rules.shown(state.running)}"))


def give_up(state: State, rules: Rules) -> Next:
    """Go without processes that survive SIGKILL."""
    verdict = Verdict.FAILED if state.verdict is Verdict.RESTART else state.verdict  # they are in the way of a restart
    text = f"{rules.names(state.running)} did not end after SIGKILL; the kernel holds them. Look with ps."
    return replace(state, phase=Phase.LOST, deadline=None, verdict=verdict), (Say(text=text),)


def fail_together(state: State, now: float, rules: Rules) -> Next:
    """Kill processes that step together at once: nobody holds anything that is not saved."""
    verdict = Verdict.RESTART if may_restart(state, rules) else Verdict.FAILED
    if state.received is not None:
        verdict = Verdict.INTERRUPTED
    return kill(replace(state, failed=True, verdict=verdict), now)


def may_restart(state: State, rules: Rules) -> bool:
    """Return whether a failure is followed by another start of all processes."""
    return state.restarts < rules.max_restarts
