"""The job files of a process that no launcher started, which let `tfdist watch` read it like any other job.

`tfdist run` makes the same files for its workers: a status table, a folder for records of steps, and the events. The
next job removes the files of a process that was killed. A thread checks the records for problems.
"""

import contextlib
import logging
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tfdist.cluster.job_files import MEMORY, event_copy, job_of, progress_file, steps_folder
from tfdist.jobs.agent.restart_reporter import EventFile
from tfdist.monitor.recording.recorder import Recorder
from tfdist.monitor.reporter import StatusReporter
from tfdist.monitor.status import StatusTable
from tfdist.monitor.step_clock import StepClock
from tfdist.monitor.verdict.alerts import Alarm, Alert, sizes
from tfdist.monitor.verdict.job_bound import recent
from tfdist.processes import job_resources
from tfdist.variables import MONITOR_DIR, PROGRESS_FILE

_SECONDS = 2.0  # between looks for alerts
_logger = logging.getLogger("tfdist")


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A job of which this process records its steps."""

    job: str
    start: int  # the number of times that its workers had been restarted
    steps: Path  # the folder of the records
    events: EventFile
    recorder: Recorder
    is_judged: bool  # whether an agent reports the verdict


@contextlib.contextmanager
def recorded(clock: StepClock, rank: int) -> Iterator[Recorded]:
    """Yield the job of this process, whose steps are recorded in the block: the launcher's job, or one of its own."""
    with contextlib.ExitStack() as stack:
        asked, status = MONITOR_DIR.read(os.environ), PROGRESS_FILE.read(os.environ)
        known = next((one for one in clock.observers if isinstance(one, Recorder)), None)
        is_judged = bool(asked) and known is not None
        if known is not None:
            steps = known.path.parent
        elif status and os.path.exists(status):
            steps = _beside(Path(status))
        else:
            steps, rank = stack.enter_context(_of_its_own(clock)), 0  # of a job of one worker
        recorder = known
        if recorder is None:
            recorder = Recorder(steps / f"worker-{rank}")
            clock.attach(recorder)
            stack.callback(recorder.close)
            stack.callback(clock.detach, recorder)
        memory, start = steps.parent, int(steps.name.rpartition("-")[2])
        job = job_of(memory)
        events = stack.enter_context(contextlib.closing(EventFile(None, job, copy=str(event_copy(memory)))))
        yield Recorded(job=job, start=start, steps=steps, events=events, recorder=recorder, is_judged=is_judged)


def _beside(status: Path) -> Path:
    """Return the folder of records of a start, next to its status table; workers make it together."""
    folder = steps_folder(status.parent, int(status.name.rpartition("-")[2]))
    folder.mkdir(exist_ok=True)
    return folder


@contextlib.contextmanager
def _of_its_own(clock: StepClock) -> Iterator[Path]:
    parent = MEMORY if os.access(MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    job_resources.clear([parent])
    with job_resources.claimed(secrets.token_hex(8), parent) as memory:
        table = StatusTable(progress_file(memory, 0), 1)
        reporter = StatusReporter(table.path, 0)
        clock.attach(reporter)
        try:
            yield _beside(table.path)
        finally:
            clock.detach(reporter)
            reporter.close()
            table.close()


class Alerting:
    """The report of alerts from a background thread; when it is ended, it checks once more."""

    def __init__(self, steps: Path, tell: Callable[[Alert], None]) -> None:
        self._steps = steps
        self._table = progress_file(steps.parent, int(steps.name.rpartition("-")[2]))
        self._tell = tell
        self._alarm = Alarm()
        self._has_failed = False
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tfdist alerts", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ends.set()
        self._thread.join()
        self._look()

    def _run(self) -> None:
        while not self._ends.wait(_SECONDS):
            self._look()

    def _look(self) -> None:
        try:
            found = self._alarm.look(recent(self._steps), sizes(self._table), time.monotonic())
        except Exception as error:  # no alert is worth a training
            if not self._has_failed:
                self._has_failed = True
                _logger.warning("Looking for alerts has failed with %r; training continues.", error, exc_info=error)
            return
        for alert in found:
            try:
                self._tell(alert)
            except Exception:
                _logger.exception("on_alert of Monitor has failed at the alert %r; training continues.", alert.text)
