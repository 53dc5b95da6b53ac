"""The step clock of this process, and the order of its observers."""

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
    """Return the kinds of observers that an environment asks for, in their order at each point of a step.

    First those that may end the process (`tfdist tune`, then the agent, so that a measured job is not held), then
    records, then observers attached later, and last faults, of which all others know the step.
    """
    if not MONITOR_DIR.read(environ):  # a process that records nothing need not load NumPy for it
        return Stopwatch, StatusReporter, FaultInjector
    from tfdist.monitor.recording.recorder import Recorder

    return Stopwatch, StatusReporter, Recorder, FaultInjector


@functools.cache
def step_clock() -> StepClock:
    observers = [one for kind in kinds() if (one := kind.from_environment()) is not None]
    reporter = next((one for one in observers if isinstance(one, StatusReporter)), None)
    return StepClock(observers, reporter=reporter)


def recorder() -> "Recorder | None":
    from tfdist.monitor.recording.recorder import Recorder

    return next((one for one in step_clock().observers if isinstance(one, Recorder)), None)
