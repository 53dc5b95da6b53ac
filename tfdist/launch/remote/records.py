"""What other hosts record, on the clock of the agent's host: no two clocks need to agree."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace

from tfdist.launch.supervision.failure import HOST_LOST
from tfdist.monitor.halt import StepPosition, StepState
from tfdist.monitor.status import WorkerStatus, status_of


def on_our_clock(content: str, clock_offset: float) -> str:
    """Return a worker's record of its failure with its time on our clock.

    Args:
        content: as the worker has written it.
        clock_offset: what is added to its clock, in seconds; infinite while it is not known.

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

    Args:
        why: how it is known.
        now: clock time, in seconds.

    Example:
        >>> json.loads(of_lost_host("the connection to host b has ended", now=1.0))["type"]
        'HostLostError'
    """
    values = {"time": 0.0, "clock": now, "type": HOST_LOST, "message": why, "exit_code": 1}
    return json.dumps({**values, "traceback": f"{why}\n"})


def status(words: Sequence[int], request: int, *, is_settled: bool, clock_offset: float) -> WorkerStatus:
    """Return what a worker on another host has said.

    While a request to halt is on its way, which step it will run is not known, whatever it had said before.

    Args:
        words: of its record.
        request: the number of the request to halt that was in force when they were read.
        is_settled: whether they were read when the worker had seen the agent's newest request.
        clock_offset: what is added to its clock, in seconds; infinite while it is not known.

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
