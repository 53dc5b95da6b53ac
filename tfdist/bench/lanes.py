"""Lanes of a benchmark: worker processes that run in turns with those of other lanes."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import Any

from tfdist.cluster import ports
from tfdist.errors import MissingDependencyError, TfdistError
from tfdist.testing.environment import worker_environments
from tfdist.testing.pool import WorkerPool

__all__ = ["LONGEST_SECONDS", "Lane", "turn"]

#: how long a call, and therefore a turn of another lane, may take
LONGEST_SECONDS = 1800.0


class Lane:
    """Worker processes that are started by the first call and ended on leaving the ``with`` block.

    Args:
        strategy: registered name for their environment; None where no strategy of tfdist's is made.
        workers: number of processes.
        replicas_per_worker: replicas in each.
    """

    def __init__(self, strategy: str | None, *, workers: int, replicas_per_worker: int = 1) -> None:
        #: whether the workers use the processor also when they have nothing to do, as Horovod does 1,000 times a second
        self.spins = strategy == "ring"
        self._pool = WorkerPool(
            lambda: worker_environments(
                os.environ, strategy=strategy, ports=ports.free_ports(workers), replicas_per_worker=replicas_per_worker
            )
        )
        self._started = False

    def __enter__(self) -> "Lane":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def call(self, target: str, **arguments: Any) -> list[Any]:
        """Run ``module:function`` on every worker and return what each returned.

        Raises:
            MissingDependencyError: a worker lacks a package.
            TfdistError: a worker failed; the message has its traceback.
        """
        if not self._started:
            # a worker that is held does not see that this process is gone; the kernel does
            self._started = True
            self.call("tfdist.launch.worker:end_with_parent", parent=os.getpid())
        replies = self._pool.call(target, arguments, timeout_seconds=LONGEST_SECONDS)
        for reply in sorted(replies, key=lambda reply: reply.seconds):
            if MissingDependencyError.__name__ in reply.types:
                raise MissingDependencyError(reply.message)
            if reply.status != "returned":
                raise TfdistError(f"worker {reply.worker} {reply.status}: {reply.message}\n{reply.detail}")
        return [reply.value for reply in replies]

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep the workers from using the processor in the ``with`` block."""
        with self._pool.paused():
            yield


@contextlib.contextmanager
def turn(lane: Lane, lanes: Iterable[Lane]) -> Iterator[Lane]:
    """Let a lane run alone: those of the others that use the processor although they have nothing to do are held."""
    with contextlib.ExitStack() as stack:
        for other in lanes:
            if other.spins and other is not lane:
                stack.enter_context(other.held())
        yield lane
