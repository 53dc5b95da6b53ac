"""The channel by which workers report to the agent: the interface, and the one of this host.

On one host it is a table in shared memory, of which the workers find the path in TFDIST_PROGRESS_FILE. Beyond one host
another channel takes its place, over authenticated TCP.
"""

from pathlib import Path
from typing import Protocol

from tfdist.cluster.job_files import progress_file
from tfdist.monitor.status import StatusTable, WorkerStatus


class StatusChannel(Protocol):
    """The agent's side. No call waits for a worker."""

    def read(self, worker: int) -> WorkerStatus:
        """Return what a worker has said until now."""

    def new_warnings(self) -> list[str]:
        """Return what workers have warned of since the last call; the same sentence may come from each of them."""

    def ask_to_halt(self) -> None:
        """Ask all workers to hold before their next step; what they say is sure SETTLE_SECONDS later."""

    def take_back(self) -> None:
        """Let the workers that hold go on; only while there is no target."""

    def set_target(self, step: int) -> None:
        """Let the workers run up to and including this step, and stop before the next."""

    def take_over(self) -> None:
        """Let workers in reserve go on."""

    def end(self) -> None:
        """Say that the signals which workers get now mean their end, not a halt."""

    def close(self) -> None:
        """Let go of the channel; workers that still write to it are not harmed."""


def opened(memory: Path, restarts: int, *, workers: int, reserve: bool = False, chief: bool = False) -> StatusChannel:
    """Return the channel of one start of a job on this host, where `plan` has told its workers to look."""
    return StatusTable(progress_file(memory, restarts), workers, reserve=reserve, chief=chief)
