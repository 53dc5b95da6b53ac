"""SIGTERM and SIGHUP that unwind the stack as Ctrl-C does, so that whatever a command started ends with it."""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any, NoReturn

_LIKE_INTERRUPT = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def unwinding() -> Iterator[None]:
    """End with 128 + the number of the signal, through every ``finally``; one that is ignored stays ignored."""

    def leave(number: int, _frame: Any) -> NoReturn:
        raise SystemExit(128 + number)

    before = {s: signal.getsignal(s) for s in _LIKE_INTERRUPT if signal.getsignal(s) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
