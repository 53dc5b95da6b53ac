"""Signals to the agent as events, and as something that is set."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from types import FrameType
from typing import Any

from tfdist.jobs.supervision.supervisor_state import Received
from tfdist.waiting import ENDING, Flag, handled


@contextlib.contextmanager
def signals_into(events: "SimpleQueue[Any]", *more: signal.Signals) -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into events; one that is ignored (nohup, a background job) stays ignored.

    Outside of the main thread, where Python allows no handlers, nothing changes.
    """

    def put(number: int, frame: FrameType | None) -> None:
        events.put(Received(number=number))

    with handled(put, (*ENDING, *more) if _in_main() else ()):
        yield


@contextlib.contextmanager
def signal_sets(number: signal.Signals) -> Iterator[Flag]:
    """Yield what is set when the signal arrives; outside of the main thread, or where it is ignored, it never is."""
    asked = Flag()
    with handled(lambda *_: asked.set(), (number,) if _in_main() else ()):
        yield asked


def _in_main() -> bool:
    return threading.current_thread() is threading.main_thread()
