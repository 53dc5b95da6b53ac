"""Recover the Python error behind a TensorFlow error, which carries only its text."""

import functools
import threading
from collections.abc import Callable
from typing import Any

from tfdist.errors import TfdistError

_KEPT = 16  # threads that read may fail at once


class Failures:
    """The errors that functions of one pipeline have raised; threads may share one.

    Example:
        >>> failures = Failures()
        >>> def broken():
        ...     raise TfdistError("example 3 is corrupt")
        >>> try:
        ...     failures.noted(broken)()
        ... except TfdistError as error:
        ...     text = f"UNKNOWN: {type(error).__name__}: {error} [[{{{{node PyFunc}}}}]]"
        >>> failures.behind(text)
        TfdistError('example 3 is corrupt')
    """

    def __init__(self) -> None:
        self._last: list[TfdistError] = []
        self._lock = threading.Lock()

    def noted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, whose errors of tfdist are kept."""

        @functools.wraps(function)
        def noting(*args: Any) -> Any:
            try:
                return function(*args)
            except TfdistError as error:
                with self._lock:
                    self._last = [*self._last[1 - _KEPT :], error]
                text = str(error)
                kind = type(error)
            # TensorFlow quotes the whole traceback: what raised it is of no use to who reads that
            raise kind(text)

        return noting

    def behind(self, text: str) -> TfdistError | None:
        """Return the error that another one quotes, None where it quotes none of these."""
        with self._lock:
            return next((error for error in reversed(self._last) if _quote(error) in text), None)


def _quote(error: TfdistError) -> str:
    return f"{type(error).__name__}: {error}"
