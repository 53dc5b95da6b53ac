"""Stop workers that step together before the same step, as a pure function.

The agent asks; every worker that is about to start a step sees the request and holds, or had looked a moment before and
starts it. So what a worker will do is known once it is HELD before a step or RUNNING one, and nothing is known of one
that is DONE with its last: it may have looked already. When all are known, the largest step that somebody has really
started is the target: whoever is held at or before it goes on, takes part in it, and all stop before the next.

Nobody waits for ever: steps up to the target are started by everybody, because the others need them, and a worker
that ends, or starts no other step, is for the agent's deadline, or for its look at hangs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class StepState(IntEnum):
    """What a worker does with a step."""

    DONE = 0  # it has ended the step, and whether it will start another is not known
    RUNNING = 1  # it has started the step
    HELD = 2  # it has not started the step, and waits for the target


@dataclass(frozen=True, kw_only=True)
class StepPosition:
    """How far a worker is in the steps, which are numbered alike on all workers and rise by one.

    Attributes:
        step: its number; -1 before the first.
        state: what the worker does with it.
    """

    step: int
    state: StepState

    @property
    def started(self) -> int:
        """The largest step that the worker has really started.

        Example:
            >>> StepPosition(step=7, state=StepState.HELD).started
            6
        """
        return self.step - 1 if self.state is StepState.HELD else self.step


def target_of(positions: Iterable[StepPosition]) -> int | None:
    """Return the last step that all workers run; None while it cannot be known, or when there is no worker.

    Example:
        >>> held, running = (StepPosition(step=6, state=s) for s in (StepState.HELD, StepState.RUNNING))
        >>> target_of([held, held]), target_of([held, running])
        (5, 6)
        >>> target_of([held, StepPosition(step=5, state=StepState.DONE)])
    """
    known = tuple(positions)
    if not known or any(position.state is StepState.DONE for position in known):
        return None
    return max(position.started for position in known)
