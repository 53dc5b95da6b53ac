"""Stop workers that step together before the same step, as a pure function.

After the agent's request, every worker that is about to start a step holds, or had looked before and starts it. A
worker that is HELD or RUNNING is known; one that is DONE may have looked already, so it is not. Once all are known, the
largest step that a worker has started is the target: workers run up to it, and all stop before the next.

No wait is endless: all workers start the steps up to the target, and the agent has a deadline for the others.
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
    """The number of a worker's step (-1 before the first), the same on all workers, and its state."""

    step: int
    state: StepState

    @property
    def started(self) -> int:
        """The largest step that the worker has really started."""
        return self.step - 1 if self.state is StepState.HELD else self.step


def target_of(positions: Iterable[StepPosition]) -> int | None:
    """Return the last step that all workers run; None while it is unknown, or without workers."""
    known = tuple(positions)
    if not known or any(position.state is StepState.DONE for position in known):
        return None
    return max(position.started for position in known)
