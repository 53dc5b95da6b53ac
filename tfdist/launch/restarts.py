"""Whether workers are started again when none is left, and how many, as a pure function.

Failures have a budget (`--max-restarts`); a change of the number of workers costs nothing of it. A failure that comes
again and again at the same step is not the machine's: the job ends before its budget does.
"""

from dataclasses import dataclass, replace
from enum import Enum

from tfdist.launch.supervise import Phase
from tfdist.launch.supervise_workers import Purpose, WorkersState

SAME_FAILURES = 3  # in a row, at the same step


class Follow(Enum):
    """What follows when no process is left."""

    END = "end"  # as the last start has ended
    AGAIN = "again"  # with as many workers as `next_size` says
    LEFT = "left"  # workers were asked to leave, and too few would be left
    STALLED = "stalled"  # the same failure has come too often


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


def next_size(state: WorkersState) -> int:
    """Return how many workers the next start has.

    Example:
        >>> from tfdist.launch.supervise_workers import first_state
        >>> next_size(replace(first_state(3), leaving=frozenset({1})))
        2
    """
    return min(state.wanted, state.size - len(state.leaving)) if state.leaving else state.wanted


def after_failure(history: History, signature: str | None) -> History:
    """Return the history with one more failure.

    Args:
        history: before it.
        signature: equal for failures that are the same, at the same step; None where the step is not known.

    Example:
        >>> history = History()
        >>> for _ in range(3):
        ...     history = after_failure(history, "ValueError in step 7")
        >>> history.same, after_failure(history, "ValueError in step 8").same
        (3, 1)
    """
    again = signature is not None and signature == history.signature
    return replace(history, failures=history.failures + 1, same=history.same + 1 if again else 1, signature=signature)


def follow(state: WorkersState, history: History, *, max_restarts: int, min_workers: int) -> Follow:
    """Return what follows.

    Args:
        state: in which the last start has ended.
        history: with the failure, if it has ended with one.
        max_restarts: how many failures are followed by another start.
        min_workers: with fewer the job does not go on.

    Example:
        >>> from tfdist.launch.supervise import State
        >>> ended = WorkersState(base=State(running=frozenset(), phase=Phase.DONE), size=2, wanted=2, failed=True)
        >>> follow(ended, History(failures=1), max_restarts=1, min_workers=2)
        <Follow.AGAIN: 'again'>
    """
    if state.received is not None or state.phase is Phase.LOST:
        return Follow.END
    stopped = state.halt is not None and state.halt.purpose is not Purpose.END and bool(state.halted)
    if not state.failed and not stopped:
        return Follow.END
    if state.failed and history.failures > max_restarts:
        return Follow.END
    if state.failed and history.same >= SAME_FAILURES:
        return Follow.STALLED
    return Follow.AGAIN if next_size(state) >= min_workers else Follow.LEFT
