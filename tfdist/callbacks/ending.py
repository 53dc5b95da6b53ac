"""A process that is asked to end (SIGTERM), as before a machine is taken away: training saves, and ends or shrinks."""

import os
import signal
import threading
from types import FrameType
from typing import Any

import keras

from tfdist.launch.progress import Reporter
from tfdist.training.pulse import pulse
from tfdist.training.workers import Workers

# Where no agent brings workers to the same step, they ask each other every so many steps: it takes milliseconds.
_ASK_EVERY = 10


class Ending:
    """Whether to end, and where.

    Args:
        workers: who have to end before the same step.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._model: keras.Model | None = None
        self._asked = False
        self._installed = False
        self.is_watched = False

    def begin(self, model: keras.Model) -> None:
        """Listen, unless somebody else does."""
        self._model = model
        in_main = threading.current_thread() is threading.main_thread()
        handler = signal.getsignal(signal.SIGTERM)
        is_free = handler is signal.SIG_DFL or isinstance(getattr(handler, "__self__", None), Ending)
        if in_main and is_free:  # one of ours is left where `fit` was left by an exception
            signal.signal(signal.SIGTERM, self._on_signal)
            self._installed = self.is_watched = True

    def stop(self) -> None:
        """Listen no more."""
        if self._installed:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._installed = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._is_training(frame):  # `fit` was left by an exception
            self.stop()
            os.kill(os.getpid(), number)
            return
        self._asked = True
        agent = _agent()
        if agent is not None and not agent.leaves():  # it is ending the job already
            self.stop()
            os.kill(os.getpid(), number)

    def _is_training(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if frame.f_code.co_name == "fit" and frame.f_locals.get("self") is self._model:
                return True
            frame = frame.f_back
        return False

    def is_due(self, steps: int) -> bool:
        """Return whether to end before the next step; the same on all workers."""
        if _agent() is not None:
            return False  # it decides
        if self._workers.count == 1:
            return self._asked
        return steps % _ASK_EVERY == 0 and bool(self._workers.gather([self._asked]).any())

    def end(self) -> Any:
        """End this process, as SIGTERM does."""
        raise SystemExit(128 + signal.SIGTERM)


def _agent() -> Reporter | None:
    """Return the way to an agent that brings all workers to the same step; none does so for a chief."""
    reporter = pulse().reporter
    return None if reporter is None or reporter.is_chief else reporter
