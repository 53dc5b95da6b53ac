"""The `Placement` protocol: runs the processes of a job, and lets the agent reach them.

The agent starts, waits for, signals and ends processes through this alone. `local` places them on this host; another
launcher (ssh, Ray, Slurm) has another implementation, and runs the battery of tests/integration/test_placement.py.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tfdist.jobs.plan.worker_spec import WorkerSpec


class Handle(Protocol):
    """A process that was started."""

    @property
    def spec(self) -> WorkerSpec:
        """What was started."""

    @property
    def pid(self) -> int:
        """The number of its process, on its host."""

    @property
    def address(self) -> str:
        """Where the others reach it, as "host:port"; empty where nobody has to."""

    @property
    def outputs(self) -> Mapping[int, int]:
        """Descriptors to read standard output (1) and error (2) from; those that are missing are the agent's."""

    @property
    def outputs_end_later(self) -> bool:
        """Whether what it has written may come after its end, and then the end of each output for certain."""

    @property
    def is_stopped(self) -> bool:
        """Whether the process stands still, because of SIGSTOP or the like; False where this cannot be told."""

    @property
    def ended_unasked(self) -> bool:
        """Whether it had ended, or was ending, before a signal of the agent's came to it; False as long as it runs."""

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        """Wait until it has ended; return its exit code, or the negative number of the signal that killed it.

        Any thread may call it, and as often as it likes. It is None when the process has not ended in time.
        """

    def signal(self, number: int) -> None:
        """Send a signal: SIGKILL to the process and its children, any other to it alone; to one that has ended, none.

        Children that an ended process has left get SIGKILL too, until `close`.
        """

    def close(self, timeout_seconds: float) -> None:
        """Give back what the ended process has held: its number, and the descriptors."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """What a process of the job finds where it runs.

    Attributes:
        directory: where it records its failure.
        memory: what is in it outlives the process, and not the job.
        python: the interpreter.
        agent_pid: the process that starts it, which it does not outlive.
    """

    directory: Path
    memory: Path
    python: str
    agent_pid: int


class Factory(Protocol):
    """Prepares for the next start of a job, while the workers step."""

    @property
    def waiting(self) -> int:
        """How many workers are forked and have nothing to run."""

    def prepare(self, pid: int) -> None:
        """Prepare, if this worker, which steps, has loaded TensorFlow; once is enough."""

    def tend(self, workers: int) -> None:
        """Keep so many workers ready, once that is possible."""

    def wait(self, interrupted: Callable[[], bool]) -> None:
        """Wait for what is being prepared, unless interrupted."""


class Placement(Protocol):
    """Starts processes of one job."""

    def addresses(self, count: int, *, but: Collection[str] = ()) -> list[tuple[str, int]]:
        """Return host and port for so many processes that listen.

        Args:
            count: how many.
            but: addresses, as "host:port", of earlier starts: what is left of those must not be met there.
        Raises:
            ConfigError: there are not enough ports.
        """

    def site(self, host: str) -> Site:
        """Return what processes find at a host that `addresses` has returned."""

    def start(self, spec: WorkerSpec) -> Handle:
        """Start a process, which ends with the agent at the latest.

        The calling thread must outlive it: Linux ends a process together with the thread that started it.

        Raises:
            TfdistError: it cannot be started.
        """

    def end_leftovers(self, handles: Sequence[Handle], *, grace_seconds: float) -> int:
        """End what ended processes have left running: SIGTERM, the grace period, SIGKILL; return how many there were.

        Args:
            handles: of all that were started and have ended; not closed yet.
            grace_seconds: between SIGTERM and SIGKILL.
        """
