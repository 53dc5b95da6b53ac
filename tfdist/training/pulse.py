"""What a worker tells the agent that looks after it: which step it is in, and what else takes time.

Without an agent it tells nobody. Steps are counted over everything that all workers do together: training, validation,
prediction.
"""

import contextlib
import functools
from collections.abc import Callable

import tensorflow as tf

from tfdist.launch import faults
from tfdist.launch.progress import HALTED, Phase, Reporter
from tfdist.launch.stopwatch import Stopwatch

__all__ = ["Phase", "Pulse", "pulse"]


class Pulse:
    """The steps of this process.

    Args:
        reporter: the way to the agent, if there is one.
        stopwatch: measures steps, and says when they are enough; if one is asked for.
    """

    def __init__(self, reporter: Reporter | None, stopwatch: Stopwatch | None = None) -> None:
        self.reporter = reporter
        self.stopwatch = stopwatch
        #: called when all stop before the step that would begin now; it saves, and need not return
        self.before_halt: Callable[[], None] | None = None
        self._tick = -1
        self._begun = False

    def stand_by(self, prepare: Callable[[], None] = lambda: None) -> None:
        """Wait, if this process is in reserve, until it is needed; called before anything that others could see.

        Args:
            prepare: called in reserve alone, before the wait.
        """
        if self.reporter is not None and self.reporter.is_in_reserve:
            with self.reporter.inside(Phase.RESERVE):
                prepare()
                self.reporter.stand_by()

    def begin(self) -> None:
        """Begin a step, unless it has begun; where the agent asks for it, end this process before it."""
        if self._begun:
            return
        if self.stopwatch is not None and self.stopwatch.is_done:
            raise SystemExit(0)
        self._begun = True
        self._tick += 1
        if self.reporter is None:
            faults.at("step", self._tick)
            return
        self.reporter.stand_by()
        self.reporter.phase(Phase.STEPPING)  # what had no bound is over
        if self.reporter.begins(self._tick):
            with self.reporter.inside(Phase.SAVING):
                if self.before_halt is not None:
                    self.before_halt()
            raise SystemExit(HALTED)

    def end(self) -> None:
        """End the step, unless it has ended."""
        if not self._begun:
            return
        self._begun = False
        if self.reporter is not None:
            self.reporter.ends(self._tick)

    def tracing(self) -> None:
        """Say that a function is being made, which takes as long as it takes; its first run says that it is done."""
        self.phase(Phase.TRACING)
        faults.at("tracing", max(self._tick, 0))

    def phase(self, phase: Phase) -> None:
        """Say what is done from now on."""
        if self.reporter is not None:
            self.reporter.phase(phase)

    def inside(self, phase: Phase) -> contextlib.AbstractContextManager[None]:
        """Say what is done in the block; afterwards it is again what it was before."""
        return contextlib.nullcontext() if self.reporter is None else self.reporter.inside(phase)


@functools.cache
def pulse() -> Pulse:
    """Return the pulse of this process."""
    watch = Stopwatch.from_environment(settle=tf.test.experimental.sync_devices, device_memory=_device_memory)
    return Pulse(Reporter.from_environment(), watch)


def _device_memory() -> int:
    names = [device.name for device in tf.config.list_logical_devices("GPU")]
    return sum(int(tf.config.experimental.get_memory_info(name)["peak"]) for name in names)
