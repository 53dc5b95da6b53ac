"""The shortest interval at which meetings of workers cost little beside steps. Loads no TensorFlow."""

import math
from dataclasses import dataclass

from tfdist import validation
from tfdist.planner.planner_link import Link

#: the share that meetings may add to the time of steps
WAITING_PART = 0.05


@dataclass(frozen=True, kw_only=True)
class Meetings:
    """The cost of one meeting, of all weights or of one of the fragments that are exchanged in turn."""

    step_seconds: float  # the time of a step that a worker takes without others, above 0
    travel_seconds: float  # the time in which the data of a meeting travel
    # the time to read, encode, decode and apply them, on the processors that compute steps
    computing_seconds: float = 0.0
    fragments: int = 1  # the number of meetings in a period
    delay: int = 0  # the number of steps that continue while a fragment travels

    def __post_init__(self) -> None:
        validation.number("step_seconds", self.step_seconds, above=0)
        validation.number("travel_seconds", self.travel_seconds, minimum=0)
        validation.number("computing_seconds", self.computing_seconds, minimum=0)
        validation.integer("fragments", self.fragments, minimum=1)
        validation.integer("delay", self.delay, minimum=0)

    @property
    def period_seconds(self) -> float:
        """The seconds that the meetings of a period add to its steps.

        fragments (computing + max(travel - delay step, 0))
        """
        waits = max(self.travel_seconds - self.delay * self.step_seconds, 0.0)
        return self.fragments * (self.computing_seconds + waits)


def smallest_interval(meetings: Meetings) -> int:
    """Return the fewest steps between two meetings such that these add at most `WAITING_PART` to the time of steps.

    A fragment is applied before the next one is sent, so there are at least ``fragments (delay + 1)`` steps.

    Example:
        >>> line = Link.parse("100mbit", delay_ms=25.0)
        >>> travel = line.all_reduce_seconds(8_800_000, 2)
        >>> smallest_interval(Meetings(step_seconds=0.1, travel_seconds=travel))
        151
        >>> smallest_interval(Meetings(step_seconds=0.1, travel_seconds=travel, delay=8))
        9
    """
    fewest = meetings.fragments * (meetings.delay + 1)
    exact = meetings.period_seconds / (WAITING_PART * meetings.step_seconds)
    return max(fewest, math.ceil(exact - 1e-9))


def travel_seconds(link: Link, wire_bytes: float, workers: int) -> float:
    """Return the seconds of an exchange in which each worker sends this many bytes, as in an all_reduce of as many.

    Example:
        >>> travel_seconds(Link.parse("100mbit", delay_ms=25.0), 12_500_000, 2)
        1.05
    """
    return link.all_reduce_seconds(wire_bytes * workers / (2 * (workers - 1)), workers) if workers > 1 else 0.0
