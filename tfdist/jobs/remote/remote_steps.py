"""Steps recorded by workers on other hosts, stored as local workers' are."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from tfdist.cluster.job_files import steps_folder

if TYPE_CHECKING:
    from tfdist.monitor.recording.row_ring import Ring


class Recorded:
    """Takes rows, and puts their times on this host's clock. NumPy is loaded with the first."""

    def __init__(self, memory: Path) -> None:
        self._memory = memory
        self._rings: dict[tuple[int, int], Ring] = {}
        self._lock = threading.Lock()

    def take(self, start: int, worker: int, data: bytes, clock_offset: float) -> None:
        """Keep the rows of a worker."""
        import numpy as np

        from tfdist.monitor.recording.row_ring import Ring
        from tfdist.monitor.recording.rows import TIMES, WIDTH

        rows = np.frombuffer(data, np.int64).reshape(-1, WIDTH).copy()
        times = rows[:, TIMES]
        rows[:, TIMES] = np.where(times, times + int(clock_offset * 1e9), 0)
        with self._lock:
            if (start, worker) not in self._rings:
                self._rings[start, worker] = Ring(steps_folder(self._memory, start) / f"worker-{worker}")
            self._rings[start, worker].add(rows)

    def close(self) -> None:
        """Let go of the files; they stay."""
        with self._lock:
            for ring in self._rings.values():
                ring.close()
            self._rings.clear()
