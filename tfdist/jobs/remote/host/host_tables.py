"""The status tables of the workers of one host, which the agent of the job reads and writes from another."""

import threading
import time
from pathlib import Path
from typing import Any

from tfdist.monitor.status import SETTLE_SECONDS, StatusTable, Word


class Tables:
    """The status tables of the starts that this host has processes of, by the number of the start.

    Example:
        >>> import tempfile
        >>> tables = Tables()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     tables.open(0, Path(folder, "status"), workers=1, chief=False, here=[0])
        ...     [(number, settled, asked, _)] = tables.said()
        ...     tables.close(0)
        >>> number, settled, asked
        (0, 0, 0)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, tuple[StatusTable, list[int]]] = {}
        self._settled: dict[int, int] = {}  # the request that every worker has seen, or will before its next step

    @property
    def is_halting(self) -> bool:
        """Whether workers hold, or are to."""
        return any(self._settled.values())

    def open(
        self, number: int, path: Path, workers: int, *, chief: bool, here: list[int], reserve: bool = False
    ) -> None:
        """Make the table of a start."""
        with self._lock:
            self._open[number] = (StatusTable(path, workers, chief=chief, reserve=reserve), here)
            self._settled[number] = 0

    def tell(self, number: int, what: str, step: int) -> None:
        """Write what the agent tells the workers of a start."""
        with self._lock:
            table, _ = self._open[number]
            if what == "halt":
                table.ask_to_halt()
                time.sleep(SETTLE_SECONDS)
                self._settled[number] = table.request
            elif what == "take back":
                table.take_back()
                self._settled[number] = 0
            elif what == "target":
                table.set_target(step)
            elif what == "take over":
                table.take_over()
            else:
                assert what == "end"
                table.end()

    def said(self) -> list[Any]:
        """Return of each start its number, the request that has settled, that in force, and its workers' words."""
        with self._lock:
            return [
                [number, self._settled[number], table.request, {str(one): table.record(one) for one in here}]
                for number, (table, here) in self._open.items()
            ]

    def new_warnings(self) -> list[dict[str, Any]]:
        """Return what workers here have warned of since the last call, as messages."""
        with self._lock:
            return [
                {"warning": sentence, "start": number}
                for number, (table, _) in self._open.items()
                for sentence in table.new_warnings()
            ]

    def states(self) -> list[int]:
        """Return of each worker here how often the states that it holds in memory have changed."""
        with self._lock:
            return [table.record(one)[Word.STATES] for table, here in self._open.values() for one in here]

    def close(self, number: int) -> None:
        """Remove the table of a start."""
        with self._lock:
            self._open.pop(number)[0].close()
            del self._settled[number]
