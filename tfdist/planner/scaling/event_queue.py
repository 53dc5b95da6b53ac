"""A queue of events in the order of their times: the clock of simulations. Loads no TensorFlow."""

import heapq
import itertools
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from tfdist.planner.planner_link import Link

_Event = TypeVar("_Event")


class EventQueue(Generic[_Event]):
    """A heap of events. Events of one moment come in the order in which they were put.

    Example:
        >>> queue = EventQueue()
        >>> queue.put(2.0, "late"), queue.put(1.0, "soon")
        (None, None)
        >>> queue.pop(), queue.next_time
        ((1.0, 'soon'), 2.0)
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, _Event]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_time(self) -> float:
        """The time of the next event; infinity if there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    def put(self, time: float, event: _Event) -> None:
        heapq.heappush(self._heap, (time, next(self._numbers), event))

    def pop(self) -> tuple[float, _Event]:
        time, _, event = heapq.heappop(self._heap)
        return time, event


class Message(NamedTuple):
    """A message: a part of a sum on its way to the next member of a ring, which adds it or keeps it."""

    sender: int
    turn: int
    begin: float
    end: float


def ring_messages(link: Link, size: float, begins: Sequence[float]) -> list[Message]:
    """Return the messages of a ring that reduces this many bytes of each member; members begin at these times.

    In each of 2 (n - 1) turns a member sends one of n parts, as soon as it has the part of the turn before and has sent
    its own. Its last message ends the sum: 2 (n - 1) (latency + size / n rate) after the last member begins.

    Example:
        >>> line = Link(latency_seconds=0.0, bytes_per_second=3.0)
        >>> max(one.end for one in ring_messages(line, 9.0, [0.0, 0.0, 5.0]))
        9.0
    """
    members, found = len(begins), list[Message]()
    turns, part = 2 * (members - 1), size / members
    sending, adding = link.latency_seconds + part / link.bytes_per_second, part * link.add_seconds_per_byte
    if not turns:
        return found
    ready = [[begin] * turns for begin in begins]
    missing = [[0, *[2] * (turns - 1)] for _ in begins]  # the part that comes, and the line
    queue = EventQueue[tuple[int, int]]()
    for member, begin in enumerate(begins):
        queue.put(begin, (member, 0))
    while queue:
        now, (member, turn) = queue.pop()
        end, following = now + sending, turn + 1
        found.append(Message(member, turn, now, end))
        if following == turns:
            continue
        added = end + (adding if turn < members - 1 else 0.0)  # in the second half, sums are handed on
        for waiting, time in (((member + 1) % members, added), (member, end)):
            ready[waiting][following] = max(ready[waiting][following], time)
            missing[waiting][following] -= 1
            if not missing[waiting][following]:
                queue.put(ready[waiting][following], (waiting, following))
    return found
