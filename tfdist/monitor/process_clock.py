"""The step clock of this process, and its observers in their order."""

import functools
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tfdist.monitor.faults import FaultInjector
from tfdist.monitor.reporter import StatusReporter
from tfdist.monitor.step_clock import StepClock
from tfdist.monitor.stopwatch import Stopwatch
from tfdist.variables import MONITOR_DIR

if TYPE_CHECKING:
    from tfdist.monitor.recording.recorder import Recorder


def kinds(
    environ: Mapping[str, str] = os.environ,
) -> tuple[type["Stopwatch | StatusReporter | Recorder | FaultInjector"], ...]:
    """Return the kinds of observers that an environment may ask for.

    At each point of a step they are told in this order: first what may end the process before a step (`tfdist tune`,
    then the agent, so that a measured job is not held); then what records steps; then what is attached while the
    process runs, in the order of attaching; last the faults, which happen to a step that everybody else knows of.

    Example:
        >>> [kind.__name__ for kind in kinds({})]
        ['Stopwatch', 'StatusReporter', 'FaultInjector']
    """
    if not MONITOR_DIR.read(environ):  # a process that records nothing need not load NumPy for it
        return Stopwatch, StatusReporter, FaultInjector
    from tfdist.monitor.recording.recorder import Recorder

    return Stopwatch, StatusReporter, Recorder, FaultInjector


@functools.cache
def step_clock() -> StepClock:
    """Return the step clock of this process, which is made when it is asked for first.

    Example:
        >>> step_clock() is step_clock()
        True
    """
    observers = [one for kind in kinds() if (one := kind.from_environment()) is not None]
    reporter = next((one for one in observers if isinstance(one, StatusReporter)), None)
    return StepClock(observers, reporter=reporter)


def recorder() -> "Recorder | None":
    """Return what records the steps of this process, or None where nobody asks for that.

    Example:
        >>> recorder() is None
        True
    """
    from tfdist.monitor.recording.recorder import Recorder

    return next((one for one in step_clock().observers if isinstance(one, Recorder)), None)
