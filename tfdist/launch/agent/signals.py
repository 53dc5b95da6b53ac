"""Signals to the agent as events, and as something that is set."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from types import FrameType
from typing import Any

from tfdist.launch.process.waiting import Flag
from tfdist.launch.supervision.state import Received

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def signals_into(events: "SimpleQueue[Any]", *more: signal.Signals) -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into events; one that is ignored (nohup, a background job) stays ignored.

    Outside of the main thread, where Python allows no handlers, nothing changes.

    Args:
        events: where they are put.
        more: other signals.
    """

    def put(number: int, frame: FrameType | None) -> None:
        events.put(Received(number=number))

    in_main = threading.current_thread() is threading.main_thread()
    wanted = (*PASSED_ON, *more) if in_main else ()
    previous = {number: signal.getsignal(number) for number in wanted if signal.getsignal(number) != signal.SIG_IGN}
    for number in previous:
        signal.signal(number, put)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def signal_sets(number: signal.Signals) -> Iterator[Flag]:
    """Yield what is set when the signal arrives; outside of the main thread, or where it is ignored, it never is."""
    asked = Flag()
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(number) == signal.SIG_IGN:
        yield asked
        return
    previous = signal.signal(number, lambda *_: asked.set())
    try:
        yield asked
    finally:
        signal.signal(number, previous)
