"""The observation of a job on this host, from its status table, rings, events and processes; read-only.

Loads no TensorFlow.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tfdist.cluster.job_files import MEMORY, PREFIX, event_copy, job_of, progress_file, steps_folder
from tfdist.errors import ConfigError
from tfdist.monitor.status import WorkerStatus, is_in_reserve, read_all
from tfdist.monitor.verdict.job_bound import judge, lines, read_folder
from tfdist.monitor.verdict.step_parts import Part, Timeline, timeline
from tfdist.monitor.watch.event_log import read_events
from tfdist.monitor.watch.resource_usage import Gpus, Process, Usage
from tfdist.monitor.watch.snapshot import Snapshot, WorkerView

#: steps of which a look shows the mean
RECENT = 100


class Observer:
    """An observer of one job; `timeline` has the steps of the last look, or None without a record."""

    def __init__(self, job: str = "", *, folders: Sequence[Path] | None = None, instead: str = "") -> None:
        self.job, self._folder = found(job, folders, instead=instead)
        self.timeline: Timeline | None = None
        self._processes: dict[int, Process] = {}
        self._gpus = Gpus.found()
        self._before: dict[int, tuple[float, int]] = {}
        self._last: Snapshot | None = None

    def look(self) -> Snapshot | None:
        """Return a snapshot of the job; None when it has ended.

        Before the first start it has no workers. Between two starts, and after the last one, the workers stay as they
        were.
        """
        start = newest_start(self._folder)
        said: Sequence[WorkerStatus] = ()
        if start is not None:
            with contextlib.suppress(OSError, ConfigError):  # it goes at this moment, or is being made
                said = read_all(progress_file(self._folder, start))
        if said and start is not None:
            self._last = self._looked(start, said)
        elif self._folder.is_dir():
            last = self._last or Snapshot(job=self.job, start=0, time=0.0, is_running=True, workers=())
            self.timeline = self._steps(last.start)
            self._last = replace(last, time=time.time(), events=self._events())
        else:
            return None
        return self._last

    def _events(self) -> tuple[Mapping[str, Any], ...]:
        return tuple(read_events(event_copy(self._folder), self.job))

    def _steps(self, start: int) -> Timeline | None:
        rows = read_folder(steps_folder(self._folder, start))
        return timeline(rows) if rows else None

    def _looked(self, start: int, said: Sequence[WorkerStatus]) -> Snapshot:
        self.timeline = whole = self._steps(start)
        recent = None if whole is None else whole.last(RECENT)
        verdict = None if whole is None else judge(whole)
        events = self._events()
        views = tuple(self._view(worker, one, recent) for worker, one in enumerate(said))
        flops, utilization = of_model(events, start, views[0].steps_per_second if views else None)
        return Snapshot(
            job=self.job,
            start=start,
            time=time.time(),
            is_running=True,
            workers=views,
            model_flops_per_second=flops,
            model_flops_utilization=utilization,
            verdict=() if verdict is None else lines(verdict),
            bound="" if verdict is None else verdict.bound.name.lower(),
            events=events,
        )

    def _view(self, worker: int, said: WorkerStatus, recent: Timeline | None) -> WorkerView:
        steps = recorded(recent, worker)
        rate = steps.pop("steps_per_second", None) or self._rate(worker, said)
        usage = self._usage(said.pid)
        return WorkerView(
            worker=worker,
            pid=said.pid,
            activity=said.activity.name.lower(),
            step=said.ended,
            steps_per_second=rate,
            memory=usage.memory,
            cpu=usage.cpu,
            saved=said.saved,
            resumed=said.resumed or 0,
            resources={**usage.others, **({} if self._gpus is None else self._gpus.used_by(said.pid))},
            **steps,
        )

    def _rate(self, worker: int, said: WorkerStatus) -> float | None:
        now, before = time.monotonic(), self._before.get(worker)
        self._before[worker] = now, said.ended
        if before is not None and said.ended > before[1]:
            return (said.ended - before[1]) / max(now - before[0], 1e-9)
        return 1.0 / said.step_seconds if said.step_seconds else None

    def _usage(self, pid: int) -> Usage:
        if not pid:
            return Usage()
        if pid not in self._processes:
            try:
                self._processes[pid] = Process(pid)
            except psutil.Error:  # it has ended
                return Usage()
        return self._processes[pid].look()


def recorded(recent: Timeline | None, worker: int) -> dict[str, Any]:
    """Return fields of `WorkerView` from a worker's record: means of these steps, the last loss, and the last norm."""
    if recent is None or worker not in recent.ranks or not len(recent.steps):
        return {"parts": {}}
    place = recent.ranks.index(worker)
    means = recent.parts[:, place].mean(axis=0)
    norms = recent.gradient_norm[:, place]
    norms = norms[~np.isnan(norms)]
    return {
        "parts": {part.label: float(means[part]) for part in Part},
        "hidden": float(recent.hidden[:, place].mean()),
        "loss": float(recent.loss[-1, place]) if recent.has_loss[-1, place] else None,
        "gradient_norm": float(norms[-1]) if len(norms) else None,
        "steps_per_second": 1.0 / float(recent.step[:, place].mean()),
    }


def of_model(
    events: Sequence[Mapping[str, Any]], start: int, steps_per_second: float | None
) -> tuple[float | None, float | None]:
    """Return the model's FLOP/s, and their part of the devices' peak; None if unknown."""
    told = [one for one in events if one["event"] == "model" and one.get("start") == start and "flops_per_step" in one]
    if not told or steps_per_second is None:
        return None, None
    flops = float(told[-1]["flops_per_step"]) * steps_per_second
    peak = told[-1].get("peak_flops")
    return flops, None if peak is None else flops / float(peak)


def found(job: str, folders: Sequence[Path] | None = None, *, instead: str = "") -> tuple[str, Path]:
    """Return the id and the directory of this user's running job whose id begins with ``job``; empty: the only one.

    Errors end with ``instead``, a sentence about what else the user may name.
    """
    places = (MEMORY, Path(tempfile.gettempdir())) if folders is None else folders
    jobs: dict[str, Path] = {}
    for place in places:
        for path in place.glob(f"{PREFIX}*/"):
            name = job_of(path)
            if not os.access(path, os.R_OK | os.X_OK):  # another user's
                continue
            if name not in jobs or _known_from(path) > _known_from(jobs[name]):
                jobs[name] = path
    fitting = sorted(one for one in jobs if one.startswith(job))
    # folders of searches and builds look like those of jobs that have not begun
    fitting = [one for one in fitting if _known_from(jobs[one])] or fitting
    if len(fitting) == 1:
        return fitting[0], jobs[fitting[0]]
    if not jobs:
        what = f"JOB is {job!r}, and no" if job else "No"
        raise ConfigError(
            f"{what} job of tfdist runs on this machine as this user.{instead and ' ' + instead}",
            name="JOB",
            received=job,
        )
    if not job:
        what = "Several jobs of tfdist run on this machine"
    else:
        what = f"JOB is {job!r}; {'no' if not fitting else 'more than one'} job has an id like it"
    known = f"These run: {', '.join(fitting or sorted(jobs))}. Give the beginning of one's id."
    raise ConfigError(f"{what}. {known}{instead and ' ' + instead}", name="JOB", received=job)


def _known_from(folder: Path) -> int:
    """Return the completeness of a job's directory: on other hosts of a job it has no events."""
    return 2 if event_copy(folder).exists() else int(any(folder.glob("progress-*")))


def newest_start(folder: Path) -> int | None:
    """Return the number of the newest start with a status table, or None; starts in reserve come last."""
    numbers: dict[bool, list[int]] = {True: [], False: []}
    for path in folder.glob("progress-*"):
        with contextlib.suppress(OSError, ConfigError):  # it has gone, or is being made
            numbers[is_in_reserve(path)].append(int(path.name.rpartition("-")[2]))
    return max(numbers[False] or numbers[True], default=None)
