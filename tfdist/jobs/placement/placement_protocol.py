"""The `Placement` protocol, which runs the processes of a job and lets the agent reach them.

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
        """The specification of the process."""

    @property
    def pid(self) -> int:
        """The process number on its host."""

    @property
    def outputs(self) -> Mapping[int, int]:
        """The descriptors of its standard output (1) and error (2); missing ones are the agent's own."""

    @property
    def outputs_end_later(self) -> bool:
        """Whether output may arrive after the end of the process, followed by the certain end of each stream."""

    @property
    def is_stopped(self) -> bool:
        """Whether the process is stopped, for instance by SIGSTOP; False if unknown."""

    @property
    def ended_unasked(self) -> bool:
        """Whether the process had ended, or was ending, before the agent's first signal."""

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        """Wait for the end of the process; return the exit code, the negative number of a signal, or None.

        Any thread may call it, repeatedly.
        """

    def signal(self, number: int) -> None:
        """Send a signal: SIGKILL to the process group, any other to the process alone.

        Until `close`, SIGKILL also reaches children that the process left behind.
        """

    def close(self, timeout_seconds: float) -> None:
        """Release the process number and the descriptors of the ended process."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """The folders, the interpreter and the agent that processes find on a host."""

    directory: Path  # for error files
    memory: Path  # outlives the processes
    python: str
    agent_pid: int  # they end with it


class Factory(Protocol):
    """A factory, which prepares the next start of a job while the workers step."""

    @property
    def waiting(self) -> int:
        """The number of forked workers that wait for work."""

    def prepare(self, pid: int) -> None:
        """Prepare, once this stepping worker has loaded TensorFlow; repeated calls do nothing."""

    def tend(self, workers: int) -> None:
        """Keep this many workers ready, once that is possible."""

    def wait(self, interrupted: Callable[[], bool]) -> None:
        """Wait for preparations under way, unless interrupted."""


class Placement(Protocol):
    """A placement, which starts the processes of one job."""

    def addresses(self, count: int, *, but: Collection[str] = ()) -> list[tuple[str, int]]:
        """Return host and port for each process, but none of ``but``: earlier starts may still use theirs."""

    def site(self, host: str) -> Site:
        """Return the site of a host that `addresses` has returned."""

    def start(self, spec: WorkerSpec) -> Handle:
        """Start a process, which ends with the agent at the latest, on Linux with the calling thread."""

    def end_leftovers(self, handles: Sequence[Handle], *, grace_seconds: float) -> int:
        """End processes that ended ones left running (SIGTERM, grace period, SIGKILL), and return their number.

        Other processes of this placement go on, with what they have started.
        """
