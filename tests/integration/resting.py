"""A pool of workers that use no processor between calls, as Horovod's do, which ask each other all the time."""

import contextlib
from collections.abc import Mapping
from typing import Any

from tfdist.testing.pool import Reply, WorkerPool


class RestingPool(WorkerPool):
    """A pool whose processes are stopped between calls.

    For workers that nobody misses meanwhile, and that do not miss each other: a ring is made by `cases/rested.py`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._rest = contextlib.ExitStack()

    def call(self, target: str, arguments: Mapping[str, Any], *, timeout_seconds: float) -> tuple[Reply, ...]:
        """Wake the processes, and stop them when all have answered."""
        self._rest.close()
        replies = super().call(target, arguments, timeout_seconds=timeout_seconds)
        self._rest.enter_context(self.paused())
        return replies

    def close(self) -> None:
        """End the processes, which sleep too deeply to end by themselves."""
        self._rest.close()
        super().close()
