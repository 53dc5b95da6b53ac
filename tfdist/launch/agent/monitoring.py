"""What `tfdist run --monitor` tells: by what the job is bound, from what its workers have recorded."""

from collections.abc import Callable
from pathlib import Path
from threading import Event

import numpy as np

from tfdist.errors import ConfigError
from tfdist.launch.agent.events import EventFile
from tfdist.launch.plan.plan import steps_folder
from tfdist.monitor.recording import ring
from tfdist.monitor.verdict.judge import Verdict, judge
from tfdist.monitor.verdict.text import lines
from tfdist.monitor.verdict.timeline import Part, timeline


class Monitoring:
    """Tells the verdict when it is asked, and at the end.

    Args:
        memory: the directory in memory of the job.
        file: the event file.
        say: tells the user.
        asked: set when somebody asks.
    """

    def __init__(self, memory: Path, file: EventFile, say: Callable[[str], None], asked: Event) -> None:
        self._memory = memory
        self._file = file
        self._say = say
        self._asked = asked
        self._start = 0

    def begins(self, start: int) -> None:
        """Learn how often the workers had been started again."""
        self._start = start

    def look(self) -> None:
        """Tell the verdict if somebody has asked for it; called some times a second."""
        if self._asked.is_set():
            self._asked.clear()
            self.tell()

    def tell(self) -> None:
        """Tell the verdict on the present start."""
        found = verdict_of(steps_folder(self._memory, self._start))
        if found is not None:
            self._say("\n".join(["what the job is bound by", *(f"  {line}" for line in lines(found))]))
            parts = {str(rank): _labelled(row) for rank, row in zip(found.ranks, found.means, strict=True)}
            self._file.write(
                "verdict",
                start=self._start,
                bound=found.bound.name.lower(),
                worker=found.rank,
                part=None if found.part is None else found.part.label,
                step_seconds=round(found.step_seconds, 9),
                won_seconds=round(found.won_seconds, 9),
                explained=round(found.explained, 4),
                steps=found.steps,
                parts=parts,
            )


def read_folder(folder: Path) -> dict[int, np.ndarray]:
    """Return the rows of each worker that has recorded steps there."""
    found = {}
    for path in folder.glob("worker-*"):
        try:
            rows = ring.read(path)
        except (OSError, ConfigError):  # it ends meanwhile
            continue
        if len(rows):
            found[int(path.name.partition("-")[2])] = rows
    return found


def verdict_of(folder: Path) -> Verdict | None:
    """Return the verdict on the workers of a start, None where none of them has recorded a step."""
    rows = read_folder(folder)
    return judge(timeline(rows)) if rows else None


def _labelled(row: np.ndarray) -> dict[str, float]:
    return {part.label: round(float(row[part]), 9) for part in Part}
