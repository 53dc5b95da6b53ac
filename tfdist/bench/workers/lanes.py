"""Lanes of a benchmark: worker processes that run in turns with those of other lanes."""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import IO, Any

from tfdist.bench.workers.slow_network import DEVICE, Network
from tfdist.cluster import from_environment
from tfdist.collectives import rendezvous_store
from tfdist.collectives.rendezvous_store import StoreServer
from tfdist.errors import MissingDependencyError, TfdistError
from tfdist.jobs.placement.worker_environment import WorkerSession
from tfdist.processes.pool.worker_pool import started
from tfdist.variables import HOST_ID, WORKER_INDEX

#: calls ``module:function`` with keyword arguments on all workers of an arm, and returns what each returned
Call = Callable[..., list[Any]]

#: the longest call, and therefore the longest turn of another lane
LONGEST_SECONDS = 1800.0

#: lanes whose processes are not told of a strategy of tfdist's
NOT_STRATEGIES = ("tensorflow", "horovod", "native", "chief", "open-mpi", "tcp", "bare", "memcpy")

_NONE: Mapping[str, str] = MappingProxyType({})


class Lane(WorkerSession):
    """The worker processes of a lane, which the first call starts and which end with the block."""

    def __init__(
        self,
        name: str,
        *,
        workers: int,
        replicas_per_worker: int = 1,
        environment: Mapping[str, str] = _NONE,
        network: Network | None = None,
    ) -> None:
        super().__init__(
            None if name in NOT_STRATEGIES else name,
            workers=workers,
            replicas_per_worker=replicas_per_worker,
            hosts=network.hosts if network else None,
            start=self._start_inside if network else None,
        )
        self.name, self._network, self._environment = name, network, environment
        self._stores = contextlib.ExitStack()
        self._started = False

    @property
    def spins(self) -> bool:
        """Whether idle workers use the processor, as Horovod's do a thousand times a second."""
        return self.name in ("horovod", "ring")

    def environments(self) -> list[dict[str, str]]:
        environments = super().environments()
        if self.name == "horovod":
            here = self._network.gateway if self._network else "127.0.0.1"
            store = self._stores.enter_context(contextlib.closing(StoreServer(here, 0)))
            for environment in environments:
                environment.update(rendezvous_store.variables(from_environment(environment), store.address))
                # outlasts others' turns
                environment["HOROVOD_GLOO_TIMEOUT_SECONDS"] = str(round(LONGEST_SECONDS))
                if self._network:
                    environment["HOROVOD_GLOO_IFACE"] = DEVICE  # which this process does not see
        if self._network:  # or native collectives would find that the workers share a kernel, and take its memory
            for environment, host in zip(environments, self._network.hosts, strict=True):
                environment[HOST_ID.name] = host
        return [{**environment, **self._environment} for environment in environments]

    def __enter__(self) -> "Lane":
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.close()
        self._stores.close()

    def call(self, target: str, **arguments: Any) -> list[Any]:
        if not self._started:
            # a worker that is held does not see that this process is gone; the kernel does
            self._started = True
            self.call("tfdist.jobs.process.script_worker:end_with_parent", parent=os.getpid())
        replies = self.pool.call(target, arguments, timeout_seconds=LONGEST_SECONDS)
        for reply in sorted(replies, key=lambda reply: reply.seconds):
            if MissingDependencyError.__name__ in reply.types:
                raise MissingDependencyError(reply.message)
            if reply.status != "returned":
                raise TfdistError(f"{self.name}: worker {reply.worker} {reply.status}: {reply.message}\n{reply.detail}")
        return [reply.value for reply in replies]

    def held(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which the workers do not use the processor."""
        return self.pool.paused()

    def _start_inside(
        self, environment: Mapping[str, str], requests: int, replies: int, log: IO[bytes]
    ) -> "subprocess.Popen[bytes]":
        assert self._network is not None
        inside = self._network.inside(WORKER_INDEX.read(environment))
        return started(environment, requests, replies, log, inside=inside)


@contextlib.contextmanager
def turn(lane: Lane, lanes: Iterable[Lane]) -> Iterator[Lane]:
    """Let a lane run alone: idle workers of others that use the processor are stopped."""
    with contextlib.ExitStack() as stack:
        for other in lanes:
            if other.spins and other is not lane:
                stack.enter_context(other.held())
        yield lane


@contextlib.contextmanager
def running(lane_of: Mapping[Any, Lane]) -> Iterator[Call]:
    """Yield a `Call` that lets the lane of an arm run alone; the lanes end with the block."""
    with contextlib.ExitStack() as stack:
        for lane in dict.fromkeys(lane_of.values()):
            stack.enter_context(lane)

        def call(arm: Any, target: str, /, **arguments: Any) -> list[Any]:
            with turn(lane_of[arm], lane_of.values()) as alone:
                return alone.call(target, **arguments)

        yield call
