"""Limit the rate of sending."""

import time
from collections.abc import Callable


class Pace:
    """Says how long to wait so that no more than so many bytes a second are sent, over any time.

    Example:
        >>> now = iter([0.0, 0.0, 5.0])
        >>> pace = Pace(100, clock=lambda: next(now))
        >>> pace.delay(200), pace.delay(50), pace.delay(50)        # the pause before the last is long over
        (0.0, 2.0, 0.0)
    """

    def __init__(self, bytes_per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._free = 0.0  # clock time from which more may be sent

    def delay(self, count: int) -> float:
        """Return the seconds to wait before so many bytes more are sent, which they then have to be."""
        now = self._clock()
        begin = max(now, self._free)
        self._free = begin + count / self._rate
        return begin - now
