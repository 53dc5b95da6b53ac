"""The rows that the workers of a start have recorded, and the verdict on them."""

from pathlib import Path

import numpy as np

from tfdist.errors import ConfigError
from tfdist.monitor.recording import row_ring
from tfdist.monitor.verdict.job_bound import Verdict, judge
from tfdist.monitor.verdict.step_parts import Timeline, of_workers, timeline

#: steps of which alerts are raised: enough to know what is usual, and for twice as many norms as are looked at
RECENT = 1024


def read_folder(folder: Path) -> dict[int, np.ndarray]:
    """Return the rows of each worker that has recorded steps there."""
    found = {}
    for path in folder.glob("worker-*"):
        try:
            rows = row_ring.read(path)
        except (OSError, ConfigError):  # it ends meanwhile
            continue
        if len(rows):
            found[int(path.name.partition("-")[2])] = rows
    return found


def verdict_of(folder: Path) -> Verdict | None:
    """Return the verdict on the workers of a start, None where none of them has recorded a step."""
    rows = read_folder(folder)
    return judge(timeline(of_workers(rows))) if rows else None


def recent(folder: Path) -> Timeline | None:
    """Return the last steps of the workers of a start, None where none of them has recorded a step."""
    rows = {rank: found[-RECENT:] for rank, found in read_folder(folder).items()}
    return timeline(of_workers(rows)) if rows else None
