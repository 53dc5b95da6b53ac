"""Check a training that records its steps for problems, in a background thread."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tfdist.cluster.job_files import progress_file
from tfdist.monitor.verdict.alarm import Alarm, sizes
from tfdist.monitor.verdict.alerts import Alert
from tfdist.monitor.verdict.row_collection import recent

_SECONDS = 2.0
_logger = logging.getLogger("tfdist")


class Alerting:
    """Tells alerts until it is ended, at which it looks once more."""

    def __init__(self, steps: Path, tell: Callable[[Alert], None]) -> None:
        self._steps = steps
        self._table = progress_file(steps.parent, int(steps.name.rpartition("-")[2]))
        self._tell = tell
        self._alarm = Alarm()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tfdist alerts", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Look for the last time, and stop."""
        self._ends.set()
        self._thread.join()
        self._look()

    def _run(self) -> None:
        while not self._ends.wait(_SECONDS):
            self._look()

    def _look(self) -> None:
        for alert in self._alarm.look(recent(self._steps), sizes(self._table), time.monotonic()):
            try:
                self._tell(alert)
            except Exception:
                _logger.exception("on_alert of Monitor has failed at the alert %r; training goes on.", alert.text)
