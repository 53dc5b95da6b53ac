"""The reaction to a process's request to end (SIGTERM), as before a preemption: save training, then end or shrink it.

Under an agent SIGINT and SIGHUP mean the same: sent to every process of a job, they ask the agent to end it. Elsewhere
they are the user's.
"""

import os
import signal
import threading
from types import FrameType
from typing import Any

import keras

from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat.keras import epochs as keras_epochs
from tfdist.monitor.process_clock import step_clock
from tfdist.monitor.reporter import StatusReporter

# Where no agent brings workers to the same step, they ask each other every so many steps: it takes milliseconds.
_ASK_EVERY = 10


class PreemptionHandler:
    """A handler of SIGTERM that decides whether training ends, and at which step."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._model: keras.Model | None = None
        self._asked: int | None = None
        self._before: dict[int, Any] = {}  # handlers, by their signal
        self.is_watched = False

    def begin(self, model: keras.Model) -> None:
        """Start to listen for the signal, unless another handler is set."""
        self._model = model
        if threading.current_thread() is not threading.main_thread():
            return
        has_agent = step_clock().reporter is not None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) if has_agent else (signal.SIGTERM,):
            handler = signal.getsignal(number)
            left = getattr(handler, "__self__", None)
            if isinstance(left, PreemptionHandler):  # `fit` was left by an exception
                handler = left._before.get(number, signal.SIG_DFL)
            if handler in (signal.SIG_DFL, signal.default_int_handler):
                self._before[number] = handler
                signal.signal(number, self._on_signal)
        self.is_watched = signal.SIGTERM in self._before

    def stop(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not keras_epochs.is_in_fit(frame, self._model):  # `fit` was left by an exception
            self.stop()
            os.kill(os.getpid(), number)
            return
        self._asked = number
        agent = _agent()
        if agent is not None and not agent.leaves():  # it is ending the job already
            self.stop()
            os.kill(os.getpid(), number)

    def is_due(self, steps: int) -> bool:
        """Return whether training ends before the next step; the answer is the same on all workers."""
        if _agent() is not None:
            return False  # it decides
        if self._workers.count == 1:
            return self._asked is not None
        return steps % _ASK_EVERY == 0 and bool(self._workers.gather([self._asked is not None]).any())

    def end(self) -> Any:
        """End this process as the signal does."""
        raise SystemExit(128 + (self._asked or signal.SIGTERM))


def _agent() -> StatusReporter | None:
    """Return the connection to an agent that brings all workers to the same step; a chief has none."""
    reporter = step_clock().reporter
    return None if reporter is None or reporter.is_chief else reporter
