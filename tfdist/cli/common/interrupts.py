"""SIGTERM and SIGHUP that unwind the stack as Ctrl-C does, so that whatever a command started ends with it."""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any, NoReturn

from tfdist.waiting import handled

_LIKE_INTERRUPT = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def unwinding() -> Iterator[None]:
    """End with 128 + the number of the signal, through every ``finally``; one that is ignored stays ignored."""

    def leave(number: int, _frame: Any) -> NoReturn:
        raise SystemExit(128 + number)

    with handled(leave, _LIKE_INTERRUPT):
        yield
