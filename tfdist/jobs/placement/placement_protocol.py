"""The `Placement` protocol: runs the processes of a job, and lets the agent reach them.

`local_placement` starts them on this host, `remote_placement` on others. tests/integration/test_placement.py tests
both.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tfdist.jobs.plan.worker_spec import WorkerSpec


class Handle(Protocol):
    """A started process."""

    @property
    def spec(self) -> WorkerSpec:
        """Its specification."""

    @property
    def pid(self) -> int:
        """Its process number on its host."""

    @property
    def outputs(self) -> Mapping[int, int]:
        """Descriptors of its standard output (1) and error (2); missing ones are the agent's own."""

    @property
    def outputs_end_later(self) -> bool:
        """True if output may arrive after its end, followed by the certain end of each stream."""

    @property
    def is_stopped(self) -> bool:
        """True if it is stopped, as by SIGSTOP; False if unknown."""

    @property
    def ended_unasked(self) -> bool:
        """True if it had ended, or was ending, before the agent's first signal."""

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        """Wait for its end; the exit code, the negative number of a signal, or None.

        Any thread may call it, repeatedly.
        """

    def signal(self, number: int) -> None:
        """Send a signal: SIGKILL to its group, any other to it alone.

        Until `close`, SIGKILL also reaches children it left.
        """

    def close(self, timeout_seconds: float) -> None:
        """Release the number and the descriptors of the ended process."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """The folders, the interpreter and the agent that processes find on a host."""

    directory: Path  # for error files
    memory: Path  # outlives the processes
    python: str
    agent_pid: int  # they end with it


class Factory(Protocol):
    """Prepares for the next start of a job, while the workers step."""

    @property
    def waiting(self) -> int:
        """The number of forked workers that wait for something to run."""

    def prepare(self, pid: int) -> None:
        """Prepare, once this stepping worker has loaded TensorFlow; repeated calls do nothing."""

    def tend(self, workers: int) -> None:
        """Keep so many workers ready, once that is possible."""

    def wait(self, interrupted: Callable[[], bool]) -> None:
        """Wait for what is being prepared, unless interrupted."""


class Placement(Protocol):
    """Starts processes of one job."""

    def addresses(self, count: int, *, but: Collection[str] = ()) -> list[tuple[str, int]]:
        """Host and port for each process, but no addresses (``but``) of earlier starts, which may still be in use."""

    def site(self, host: str) -> Site:
        """The site of a host that `addresses` has returned."""

    def start(self, spec: WorkerSpec) -> Handle:
        """Start a process, which ends with the agent at the latest, and on Linux with the calling thread."""

    def end_leftovers(self, handles: Sequence[Handle], *, grace_seconds: float) -> int:
        """End what ended processes left running: SIGTERM, grace period, SIGKILL. Return their number."""
