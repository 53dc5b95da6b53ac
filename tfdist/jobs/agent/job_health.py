"""Check that the jobs of this machine make progress, from their status tables.

It costs a fraction of a second and loads no TensorFlow, so a container can be asked again and again.

Example:
    >>> complaints({"progress-0": ()}, now=0.0, stall_seconds=60.0)
    ()
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdist.cluster.job_files import MEMORY
from tfdist.errors import ConfigError
from tfdist.monitor.phases import Activity
from tfdist.monitor.status import WorkerStatus, read_all

_PAGES = "tfdist-*/progress-*"  # `job_files.progress_file`, in a directory of `process.resources.guarded`


def observe(folders: Sequence[Path] | None = None) -> dict[str, tuple[WorkerStatus, ...]]:
    """Return what the workers of every job have said, by the path of the page; pages of other users are left out."""
    places = (MEMORY, Path(tempfile.gettempdir())) if folders is None else folders
    found = {}
    for path in sorted({path for place in places for path in place.glob(_PAGES)}):
        try:
            found[str(path)] = read_all(path)
        except (OSError, ConfigError):  # it has ended meanwhile, or is another user's
            continue
    return found


def complaints(pages: Mapping[str, Sequence[WorkerStatus]], *, now: float, stall_seconds: float) -> tuple[str, ...]:
    """Return a sentence for each worker that has not gone on for too long.

    A worker that has said nothing yet, or has ended, is not blamed.
    """
    return tuple(
        f"worker {worker} ({path}) has been {said.activity.name.lower()} for {now - said.changed:.0f} s"
        for path, workers in pages.items()
        for worker, said in enumerate(workers)
        if said.changed and said.activity is not Activity.ENDED and now - said.changed > stall_seconds
    )
