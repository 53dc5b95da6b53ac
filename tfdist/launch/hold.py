"""How workers that step together are stopped before the same step, as a pure function.

The agent asks; every worker that is about to start a tick sees the request and holds, or had looked a moment before and
starts it. So what a worker will do is known once it is HELD before a tick or RUNNING one, and nothing is known of one
that is BEHIND its last: it may have looked already. When all are known, the largest tick that somebody has really
started is the target: whoever is held at or before it goes on, takes part in it, and all stop before the next.

Nobody waits for ever: ticks up to the target are started by everybody, because the others need them, and a worker
that ends, or starts no other tick, is for the agent's deadline, or for its look at hangs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class Standing(IntEnum):
    """Where a worker is, given the number of a tick."""

    BEHIND = 0  # it has ended the tick, and whether it will start another is not known
    RUNNING = 1  # it has started the tick
    HELD = 2  # it has not started the tick, and waits for the target


@dataclass(frozen=True, kw_only=True)
class Position:
    """A worker between the ticks, which are numbered alike on all workers and rise by one.

    Attributes:
        tick: number of a tick; -1 before the first.
        standing: where the worker is, with respect to it.
    """

    tick: int
    standing: Standing

    @property
    def started(self) -> int:
        """The largest tick that the worker has really started.

        Example:
            >>> Position(tick=7, standing=Standing.HELD).started
            6
        """
        return self.tick - 1 if self.standing is Standing.HELD else self.tick


def target_of(positions: Iterable[Position]) -> int | None:
    """Return the last tick that all workers run; None while it cannot be known, or when there is no worker.

    Args:
        positions: of all workers that have not ended, read after the request was seen by everybody.

    Example:
        >>> held, running = (Position(tick=6, standing=s) for s in (Standing.HELD, Standing.RUNNING))
        >>> target_of([held, held]), target_of([held, running])
        (5, 6)
        >>> target_of([held, Position(tick=5, standing=Standing.BEHIND)])
    """
    known = tuple(positions)
    if not known or any(position.standing is Standing.BEHIND for position in known):
        return None
    return max(position.started for position in known)
