"""The step clock of this process, and who observes it, in which order."""

import functools

from tfdist.monitor.clock import StepClock
from tfdist.monitor.faults import FaultInjector
from tfdist.monitor.recording.recorder import Recorder
from tfdist.monitor.reporter import StatusReporter
from tfdist.monitor.stopwatch import Stopwatch

#: the observers that the environment may ask for. At each point of a step they are told in this order: first what may
#: end the process before a step (`tfdist tune`, then the agent, so that a measured job is not held); then what records
#: steps; then what is attached while the process runs, in the order of attaching; last the faults, which happen to a
#: step that everybody else knows of.
ORDER = (Stopwatch, StatusReporter, Recorder, FaultInjector)


@functools.cache
def step_clock() -> StepClock:
    """Return the step clock of this process, which is made when it is asked for first.

    Raises:
        ConfigError: a variable that asks for an observer is none that tfdist wrote.

    Example:
        >>> step_clock() is step_clock()
        True
    """
    observers = [one for kind in ORDER if (one := kind.from_environment()) is not None]
    reporter = next((one for one in observers if isinstance(one, StatusReporter)), None)
    return StepClock(observers, reporter=reporter)


def recorder() -> Recorder | None:
    """Return what records the steps of this process, or None where nobody asks for that.

    Example:
        >>> recorder() is None
        True
    """
    return next((one for one in step_clock().observers if isinstance(one, Recorder)), None)
