"""Translate timestamps of other hosts to the agent's clock; clocks need not agree."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace

from tfdist.monitor.halt import StepPosition, StepState
from tfdist.monitor.status import Word, WorkerStatus, status_of
from tfdist.processes.worker_failure import HOST_LOST


def on_our_clock(content: str, clock_offset: float) -> str:
    """Return a worker's record of its failure with its time on our clock.

    Example:
        >>> on_our_clock('{"clock": 5.0}', 2.0)
        '{"clock": 7.0}'
        >>> on_our_clock('damaged', 2.0)
        'damaged'
    """
    try:
        values = json.loads(content)
        values["clock"] += clock_offset if math.isfinite(clock_offset) else 0.0
    except (ValueError, TypeError, KeyError):
        return content
    return json.dumps(values)


def of_lost_host(why: str, *, now: float) -> str:
    """Return the record of a worker whose host is lost.

    Example:
        >>> json.loads(of_lost_host("the connection to host b has ended", now=1.0))["type"]
        'HostLostError'
    """
    values = {"time": 0.0, "clock": now, "type": HOST_LOST, "message": why, "exit_code": 1}
    return json.dumps({**values, "traceback": f"{why}\n"})


class RecentOffset:
    """What is added to another host's clock to have this host's, as the messages of the last seconds say it.

    It is the smallest difference that one of them has had, of which nothing is left but the time of the fastest on its
    way. Clocks that go apart are followed.

    Example:
        >>> offset = RecentOffset(seconds=10.0)
        >>> for heard, said in ((7.0, 2.0), (8.0, 3.5), (19.0, 14.0), (30.0, 25.0)):
        ...     offset.add(heard, said)
        ...     print(offset.value)
        5.0
        4.5
        4.5
        5.0
    """

    def __init__(self, seconds: float = 10.0) -> None:
        self._seconds = seconds
        self._begun = -math.inf
        self._now = self._before = math.inf

    def add(self, heard: float, said: float) -> None:
        """Take a message, by when it was heard here and what its host's clock said."""
        if heard - self._begun >= self._seconds:
            self._begun, self._before, self._now = heard, self._now, math.inf
        self._now = min(self._now, heard - said)

    @property
    def value(self) -> float:
        """The offset in seconds; infinite before the first message."""
        return min(self._now, self._before)


def shown(words: Sequence[int], *, clock_offset: float) -> list[int]:
    """Return the words of a worker's record for who looks here: on this host's clock, and of no process of this host.

    Example:
        >>> from tfdist.monitor.status import RECORD, Word
        >>> words = [0] * RECORD
        >>> words[Word.PID], words[Word.CHANGED] = 12, 5 * 10**9
        >>> found = shown(words, clock_offset=2.0)
        >>> found[Word.PID], found[Word.CHANGED], found[Word.FIRST_STEP]
        (0, 7000000000, 0)
    """
    found = list(words)
    found[Word.PID] = 0
    for word in (Word.CHANGED, Word.FIRST_STEP):
        if found[word] and math.isfinite(clock_offset):
            found[word] += int(clock_offset * 1e9)
    return found


def status(words: Sequence[int], request: int, *, is_settled: bool, clock_offset: float) -> WorkerStatus:
    """Return what a worker on another host has said.

    While a request to halt is on its way, which step it will run is not known, whatever it had said before.

    Example:
        >>> from tfdist.monitor.status import RECORD, Word
        >>> words = [0] * RECORD
        >>> words[Word.POSITION], words[Word.CHANGED] = 4 * 8 + StepState.RUNNING, 5 * 10**9
        >>> said = status(words, 0, is_settled=True, clock_offset=-1.0)
        >>> said.position.step, said.position.state.name, said.changed
        (7, 'RUNNING', 4.0)
        >>> status(words, 0, is_settled=False, clock_offset=-1.0).position.state.name
        'DONE'
    """
    said, offset = status_of(words, request), clock_offset if math.isfinite(clock_offset) else 0.0
    first = said.first_step_ended
    position = said.position if is_settled else StepPosition(step=said.position.step, state=StepState.DONE)
    return replace(
        said,
        position=position,
        changed=said.changed + offset if said.changed else 0.0,
        first_step_ended=None if first is None else first + offset,
    )
