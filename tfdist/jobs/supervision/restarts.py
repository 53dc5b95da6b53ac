"""Decide on restarts when no worker is left, and their number, as a pure function.

Failures have a budget (`--max-restarts`); a change of the number of workers costs nothing of it. A failure that comes
again and again at the same step is deterministic: the job ends before its budget does.
"""

from dataclasses import dataclass, replace
from enum import Enum

from tfdist.jobs.supervision.supervisor_state import Phase, State, Verdict


class Decision(Enum):
    """What is done when no process is left."""

    END = "end"  # as the last start has ended
    RESTART = "restart"  # with as many workers as `next_size` says
    TOO_FEW_WORKERS = "too few workers"  # workers were asked to leave, and too few would be left
    REPEATED_FAILURE = "repeated failure"  # the same failure has come too often


@dataclass(frozen=True, kw_only=True)
class History:
    """What has happened until now.

    Attributes:
        starts: how often the workers have been started again, for whatever reason.
        failures: how often because of a failure.
        same: how often the last failure has come in a row.
        signature: what it was, and at which step.
    """

    starts: int = 0
    failures: int = 0
    same: int = 0
    signature: str | None = None


def next_size(state: State) -> int:
    """Return how many workers that step together the next start has.

    Example:
        >>> next_size(State(running=frozenset(), size=3, wanted=3, leaving=frozenset({1})))
        2
    """
    return min(state.wanted, state.size - len(state.leaving)) if state.leaving else state.wanted


def after_failure(history: History, signature: str | None) -> History:
    """Return the history with one more failure.

    Example:
        >>> history = History()
        >>> for _ in range(3):
        ...     history = after_failure(history, "ValueError in step 7")
        >>> history.same, after_failure(history, "ValueError in step 8").same
        (3, 1)
    """
    again = signature is not None and signature == history.signature
    return replace(history, failures=history.failures + 1, same=history.same + 1 if again else 1, signature=signature)


def decide_restart(state: State, history: History, *, same_failures: int | None, min_workers: int) -> Decision:
    """Return what is done.

    Example:
        >>> ended = State(running=frozenset(), size=2, wanted=2, phase=Phase.DONE, verdict=Verdict.RESTART)
        >>> decide_restart(ended, History(failures=1), same_failures=3, min_workers=2)
        <Decision.RESTART: 'restart'>
    """
    if state.received is not None or state.phase is Phase.LOST or state.verdict is not Verdict.RESTART:
        return Decision.END
    if state.failed and same_failures is not None and history.same >= same_failures:
        return Decision.REPEATED_FAILURE
    return Decision.RESTART if next_size(state) >= min_workers else Decision.TOO_FEW_WORKERS
