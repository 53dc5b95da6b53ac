"""The reports of `tfdist run --monitor`: the bottleneck, alerts, and workers to evict.

NumPy is loaded with the first report, so `tfdist run` starts without it.
"""

import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tfdist.cluster.job_files import progress_file, steps_folder
from tfdist.errors import TfdistError
from tfdist.jobs.agent.restart_reporter import EventFile
from tfdist.jobs.process.exporter_process import Exporting
from tfdist.jobs.supervision.evicting import Evictions, Means, Measure, is_due, told, what_to_do
from tfdist.jobs.supervision.supervisor_state import Evict
from tfdist.waiting import Flag

if TYPE_CHECKING:
    from tfdist.monitor.verdict.alerts import Alarm
    from tfdist.monitor.verdict.stragglers import Slow, Staying

#: between two looks for alerts
ALERT_SECONDS = 2.0


class Monitoring:
    """A reporter of the verdict, on request and at the end, and of alerts as they occur."""

    def __init__(
        self, memory: Path, file: EventFile, say: Callable[[str], None], asked: Flag, *, evicts: bool = False
    ) -> None:
        self._memory = memory
        self._file = file
        self._say = say
        self._asked = asked
        self._evicts = evicts
        self._start = 0
        self._alarm: Alarm | None = None
        self._due = 0.0
        self._failed: set[str] = set()
        self._exporting: Exporting | None = None
        self._staying: Staying | None = None
        self._slow: list[Slow] = []
        self._kept: set[int] = set()
        self._evictions = Evictions()
        self._step_seconds = 0.0

    def export(self, job: str, exporters: Sequence[str]) -> None:
        self._exporting = Exporting(job, exporters, self._say)

    def close(self) -> None:
        if self._exporting is not None:
            self._exporting.end()

    def begins(self, start: int) -> None:
        self._start = start
        if self._alarm is not None:
            self._alarm.begins()
        self._staying, self._slow, self._kept = None, [], set()

    def look(self) -> None:
        """Report a requested verdict and new alerts; called several times a second."""
        if self._asked.is_set():
            self._asked.clear()
            self.tell()
        if time.monotonic() >= self._due:
            self._try("looking for alerts", self._tell_alerts)
            self._due = time.monotonic() + ALERT_SECONDS

    def _try(self, what: str, do: Callable[[], None]) -> None:
        """Do something with the workers' records; each kind of failure is reported once, and ends no job."""
        try:
            do()
        except Exception as error:  # noqa: BLE001 - other processes write the records, and descriptors may run out
            if what not in self._failed:
                self._failed.add(what)
                self._say(f"warning: {what} has failed ({error!r}); the job continues")

    def _tell_alerts(self) -> None:
        folder = steps_folder(self._memory, self._start)
        if not folder.exists():
            return
        from tfdist.monitor.verdict.alerts import Alarm, sizes
        from tfdist.monitor.verdict.job_bound import recent
        from tfdist.monitor.verdict.stragglers import Staying, slow_workers

        if self._alarm is None:
            self._alarm = Alarm()
        memory, found = sizes(progress_file(self._memory, self._start)), recent(folder)
        for alert in self._alarm.look(found, memory, time.monotonic()):
            self._say(f"alert: {alert.text}")
            self._file.write("alert", start=self._start, alert=str(alert.kind), worker=alert.worker, text=alert.text)
        if not self._evicts or found is None or not len(found.steps):
            return
        if self._staying is None:
            self._staying = Staying()
        self._slow = self._staying.look(slow_workers(found), known_from=int(found.steps[0]))

    def straggler(self, patience_seconds: float, means: Means) -> Evict | None:
        """Return the eviction of a worker that has been slow for too long, if any; report a worker that stays once."""
        for slow in self._slow:
            if slow.worker in self._kept or not is_due(slow, self._evictions, patience_seconds=patience_seconds):
                continue
            decided = what_to_do(slow, self._evictions, means)
            text = told(slow, decided)
            self._file.write(
                "straggler",
                start=self._start,
                worker=slow.worker,
                part=slow.part.label,
                seconds=round(slow.seconds, 9),
                median_seconds=round(slow.others, 9),
                steps=slow.steps,
                waited=round(slow.waited, 4),
                measure=str(decided.measure),
                text=text,
            )
            if decided.measure is Measure.KEPT:
                self._kept.add(slow.worker)
                self._say(text)
                continue
            self._evictions = self._evictions.after(slow.worker, decided.measure)
            self._slow = []
            return Evict(worker=slow.worker, is_replaced=decided.measure is Measure.REPLACED, text=text)
        return None

    def write_trace(self, path: str) -> None:
        """Write the steps of this start as a Chrome trace; failure is only reported."""
        from tfdist.monitor.recording import chrome_trace
        from tfdist.monitor.verdict.job_bound import read_folder

        rows = read_folder(steps_folder(self._memory, self._start))
        try:
            chrome_trace.write(path, chrome_trace.trace(rows))
        except OSError as error:
            self._say(f"warning: the trace {path} (--trace) cannot be written ({error})")
        else:
            self._say(f"{path}: {sum(map(len, rows.values()))} steps of {len(rows)} workers")

    def tell(self) -> None:
        """Report the verdict on this start, and alerts before it."""
        self._try("looking for alerts", self._tell_alerts)
        self._try("judging the steps", self._tell_verdict)

    def _tell_verdict(self) -> None:
        from tfdist.monitor.verdict.job_bound import labelled, lines, verdict_of

        found = verdict_of(steps_folder(self._memory, self._start))
        if found is None:
            self._say("no worker has recorded a step: the script does not train through tfdist, or has just begun")
            return
        self._step_seconds = found.step_seconds
        self._say("\n".join(["what the job is bound by", *(f"  {line}" for line in lines(found))]))
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
            parts=labelled(found),
            lines=list(lines(found)),
        )

    def compare(self, strategy: str | None, workers: int, words: Sequence[str]) -> None:
        """Add the step of the last verdict to the record of planning, if `tfdist plan` has predicted this command."""
        from tfdist.planner.scaling import plan_record

        key, path = plan_record.key_of(strategy or "multi-worker", workers, words), plan_record.path_of(os.environ)
        now, step = datetime.now().astimezone().isoformat(timespec="seconds"), self._step_seconds
        try:
            planned = plan_record.read(path).expected.get(key)
            if planned is None or not step:
                return
            plan_record.change(path, lambda found: found.measured(key, step, now))
        except (TfdistError, OSError) as error:
            self._say(f"warning: the step is not compared with the plan ({error})")
        else:
            self._say(f"a step took {1e3 * step:.3g} ms, and {1e3 * planned:.3g} ms were planned")
