"""The outcome of one start of a job: the first failure, its cause, and the exit code. Pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tfdist.jobs.agent.restart_reporter import Cause, cause_of, kind_of
from tfdist.jobs.agent.worker_group import Attempt
from tfdist.jobs.supervision.hangs import Seen
from tfdist.jobs.supervision.restarts import Decision, History
from tfdist.jobs.supervision.supervisor_state import Phase, Rules, Verdict
from tfdist.processes.worker_failure import Failure, Outcome, Record, how_it_ended, own_failures

LEFT_CODE = 143  # as if SIGTERM, which a worker that leaves has got, had ended the job


def failures_of(attempt: Attempt, rules: Rules, records: Mapping[int, Record | None]) -> tuple[Failure, ...]:
    """Return the processes that failed on their own, the root cause first.

    Of workers that step together the first failure by time is the cause. Else the supervisor has named it, and what
    those that run the script made of it comes after it.
    """
    state = attempt.state
    ended = {
        index: Failure(
            worker=index,
            name=None if rules.in_step else str(rules.task(index)),
            time=end.time if (record := records.get(index)) is None else record.clock,
            returncode=end.returncode,
            record=record,
        )
        for index, end in attempt.exits.items()
        if index not in state.halted
    }
    if rules.in_step:
        return own_failures(ended.values(), stopped_at=attempt.stopped_at, received=state.received)
    cause = ended.get(state.cause) if state.cause is not None and state.verdict is Verdict.FAILED else None
    if cause is None:  # nobody has failed, or the kernel holds who has
        return ()
    others = [ended[index] for index in rules.scripts(ended) if index != cause.worker]
    later = own_failures(others, stopped_at=attempt.stopped_at, received=state.received)
    first = min([cause.time, *(one.time for one in later)])  # others may have seen the end before the agent did
    return (replace(cause, time=first), *later)


def cause_of_attempt(attempt: Attempt, rules: Rules, failures: Sequence[Failure], seen: Sequence[Seen]) -> Cause | None:
    """Return why a start has failed; None when it has not."""
    state = attempt.state
    if not state.failed:
        return None
    if rules.in_step or state.cause is None:
        return cause_of(failures, state.hang, seen, attempt.stopped_at)
    ended = attempt.exits.get(state.cause)
    if state.hang is not None and state.hang.worker == state.cause:
        kind, text = "hang", state.hang.text
    elif ended is None:
        kind, text = "exit", "it does not end"
    else:
        kind, text = kind_of(ended.returncode, recorded=ended.recorded), how_it_ended(ended.returncode)
    return Cause(
        worker=state.cause,
        kind=kind,
        text=text,
        time=attempt.stopped_at if ended is None else ended.time,
        status=seen[0].status if seen else None,
        task=str(rules.task(state.cause)),
    )


def outcome_of(attempt: Attempt, rules: Rules, failures: tuple[Failure, ...], decision: Decision) -> Outcome:
    """Return the outcome of a job that is not started again."""
    state = attempt.state
    if decision is Decision.TOO_FEW_WORKERS:
        return Outcome(exit_code=LEFT_CODE)
    if failures and not (rules.in_step and state.hang is not None):
        return Outcome(exit_code=failures[0].exit_code or 1, failures=failures)  # a server that ends well fails too
    if state.verdict is Verdict.INTERRUPTED and state.received is not None:
        return Outcome.interrupted(state.received)
    return Outcome(exit_code=1 if state.failed or state.phase is Phase.LOST else 0)


def why_not_again(attempt: Attempt, rules: Rules, decision: Decision, history: History) -> str:
    """Return why a start that failed is not followed by another one; empty when there is nothing to say."""
    if decision is Decision.REPEATED_FAILURE:
        same = rules.roles[0].restart_policy.same_failures
        return f"that came {same} times in a row at the same step, so the job is not started again"
    if decision is Decision.END and rules.max_restarts and attempt.state.verdict is Verdict.FAILED:
        count = f"{history.failures - 1} of {rules.max_restarts} times (--max-restarts)"
        return f"the workers were started again {count}, so the job fails"
    return ""
