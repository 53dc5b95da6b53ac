"""The steps that the workers of a host have recorded, on their way to the agent of the job."""

import base64
import threading
from pathlib import Path
from typing import Any

from tfdist.cluster.job_files import steps_folder
from tfdist.errors import ConfigError


class Steps:
    """Reads the workers' files again and again. NumPy is loaded when there is the first.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     steps = Steps(Path(folder))
        ...     steps.open(0)
        ...     steps.new()
        []
    """

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        self._starts: list[int] = []
        self._seen: dict[tuple[int, int], int] = {}  # of a worker in a start: the number of its last row
        self._lock = threading.Lock()

    def open(self, start: int) -> None:
        """Make the folder in which the workers of a start record their steps."""
        steps_folder(self._memory, start).mkdir(exist_ok=True)
        with self._lock:
            self._starts.append(start)

    def new(self) -> list[dict[str, Any]]:
        """Return what has been recorded since the last call, as messages."""
        with self._lock:
            files = [(start, path) for start in self._starts for path in self._files(start)]
            return [message for start, path in files if (message := self._message(start, path)) is not None]

    def _files(self, start: int) -> list[Path]:
        return list(steps_folder(self._memory, start).glob("worker-*"))

    def _message(self, start: int, path: Path) -> dict[str, Any] | None:
        from tfdist.monitor.recording import row_ring
        from tfdist.monitor.recording.rows import Column

        worker = int(path.name.partition("-")[2])
        try:
            rows = row_ring.read(path)
        except (OSError, ConfigError):  # it is being made
            return None
        rows = rows[rows[:, Column.SEQUENCE] > self._seen.get((start, worker), 0)]
        if not len(rows):
            return None
        self._seen[start, worker] = int(rows[-1, Column.SEQUENCE])
        return {"rows": start, "worker": worker, "data": base64.b64encode(rows.tobytes()).decode()}
