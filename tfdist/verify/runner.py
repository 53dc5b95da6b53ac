"""The runner of the matrix: every feature runs on one device once, and in every column, and is compared."""

import contextlib
import os
import platform
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

import tfdist
from tfdist.jobs.placement.worker_environment import WorkerSession, shared_environment
from tfdist.processes.pool import forked_workers
from tfdist.processes.pool.worker_pool import Reply, Start
from tfdist.validation import integer
from tfdist.verify import cell_judge
from tfdist.verify.cell_judge import Verdict
from tfdist.verify.column import COLUMNS, Column
from tfdist.verify.feature import Feature
from tfdist.verify.feature import features as all_features
from tfdist.verify.matrix_report import Cell, Report, of_cells
from tfdist.waiting import done_heeding_signals

_CELL = "tfdist.verify.matrix_cell"
#: what all processes import, before they are forked
_PRELOADED = (*tfdist.PRELOADED, _CELL, "tfdist.optimizers", "tfdist.compression.registry")
_START_SECONDS = 120.0
_PROBE_SECONDS = 15.0

Outcome = Mapping[str, Any]
_Key = tuple[str, int, int]


def run(
    features: Sequence[Feature] | None = None,
    columns: Sequence[Column] = COLUMNS,
    *,
    baseline: bool = False,
    jobs: int = 2,
    deadline_seconds: float | None = None,
    on_cell: Callable[[Cell], None] | None = None,
) -> Report:
    """Run features under strategies and compare each with one device.

    A cell that fails, hangs or kills its processes is reported as such, and the others still run. When this returns or
    raises, every process that it started has ended.

    Args:
        features: the rows, see `tfdist.verify.feature.select`; None for all.
        columns: the columns, see `tfdist.verify.column.select`.
        baseline: whether to run plain Keras and TensorFlow's own strategies as well.
        jobs: the number of columns that run at the same time; one device counts as a column.
        deadline_seconds: the longest time in seconds for a cell, and for the start of its processes, which get at least
            two minutes; None: each feature's own.
        on_cell: a function that is called with each finished cell, from several threads.
    Returns:
        The report, with a cell for every feature and column, and with ``baseline`` for both kinds.
    Raises:
        ConfigError: ``jobs`` is less than 1.

    Example:
        >>> from tfdist.verify import column, feature
        >>> report = run(feature.select(["even"]), column.select(["mirrored-2"]))     # doctest: +SKIP
        >>> report.is_green                                                            # doctest: +SKIP
        True
    """
    integer("jobs", jobs, minimum=1)
    rows = tuple(all_features().values()) if features is None else tuple(features)
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="tfdist-verify-") as root,
        forked_workers.forked_workers(shared_environment(os.environ), _PRELOADED) as start,
    ):
        matrix = _Matrix(
            rows,
            columns,
            Path(root),
            baseline=baseline,
            deadline_seconds=deadline_seconds,
            on_cell=on_cell,
            start=start,
        )
        matrix.run(jobs)
    return of_cells(
        rows,
        columns,
        matrix.cells,
        versions={**matrix.one_device.versions, "Python": platform.python_version()},
        seconds=time.monotonic() - started,
    )


class FeatureSession(WorkerSession):
    """A session that runs features in processes, started when needed, and again after a feature has broken them."""

    def __init__(
        self,
        directory: Path,
        *,
        column: Column | None,
        baseline: bool = False,
        deadline_seconds: float | None = None,
        start: Start | None = None,
    ) -> None:
        super().__init__(
            column.strategy if column else None,
            workers=column.workers if column else 1,
            replicas_per_worker=column.replicas_per_worker if column else 1,
            start=start,
        )
        self.column = column
        self.baseline = baseline
        self.versions: dict[str, str] = {}
        self._directory = directory
        self._deadline_seconds = deadline_seconds
        self._mode = {"baseline": baseline, "one_device": column is None}
        self._cannot_start: Verdict | None = None
        self._calls = 0

    def outcomes(self, entry: Feature, *, workers: int, replicas: int) -> list[Mapping[str, Any]] | Verdict:
        if self.column is not None and entry.name in self.column.may_refuse:
            entry = replace(entry, may_refuse=True)
        if verdict := self._ready(entry):
            return verdict
        self._calls += 1
        shared = self._directory / f"{self._calls:03d}"
        shared.mkdir()
        replies = self.pool.call(
            f"{_CELL}:run",
            {
                "module": entry.module,
                "feature": entry.name,
                "directory": str(shared),
                "output": f"{shared}-{{worker}}.npz",
                "workers": workers,
                "replicas": replicas,
                **self._mode,
            },
            timeout_seconds=self._deadline_seconds or entry.deadline_seconds,
        )
        try:
            if verdict := cell_judge.failure(entry, replies):
                self._keep_only_if_sound(replies)
                return verdict
            return [_load(Path(f"{shared}-{reply.worker}.npz")) for reply in replies]
        finally:
            shutil.rmtree(shared, ignore_errors=True)

    def close(self) -> None:
        """End the processes, also while another thread waits for an outcome."""
        self.pool.close()

    def environments(self) -> list[dict[str, str]]:
        return [{**one, **dict(self.column.variables if self.column else ())} for one in super().environments()]

    def _ready(self, entry: Feature) -> Verdict | None:
        """Start the processes if there are none; a lane that could not start once does not try for every cell."""
        if self._cannot_start is None and not self.pool.running:
            seconds = max(_START_SECONDS, self._deadline_seconds or 0.0)
            replies = self.pool.call(f"{_CELL}:prepare", self._mode, timeout_seconds=seconds)
            self._cannot_start = cell_judge.failure(entry, replies)
            if self._cannot_start is None:
                self.versions = replies[0].value
        return self._cannot_start

    def _keep_only_if_sound(self, replies: tuple[Reply, ...]) -> None:
        """End the processes if the failure may have left their collectives out of step."""
        if not self.pool.running:
            return
        if len({(reply.status, reply.types[:1]) for reply in replies}) == 1:
            probes = self.pool.call(f"{_CELL}:probe", self._mode, timeout_seconds=_PROBE_SECONDS)
            if all(probe.value is True for probe in probes):
                return
        self.pool.end()


def _load(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file.items())


class _Matrix:
    """The lanes of one run, and their results so far."""

    def __init__(
        self,
        rows: Sequence[Feature],
        columns: Sequence[Column],
        root: Path,
        *,
        baseline: bool,
        deadline_seconds: float | None,
        on_cell: Callable[[Cell], None] | None,
        start: Start | None,
    ) -> None:
        def lane(name: str, column: Column | None, plain: bool = False) -> FeatureSession:
            (root / name).mkdir()
            return FeatureSession(
                root / name, column=column, baseline=plain, deadline_seconds=deadline_seconds, start=start
            )

        self.rows = rows
        self.cells: list[Cell] = []
        self.one_device = lane("one-device", None)
        self.lanes = [lane(column.name, column) for column in columns]
        if baseline:
            self.lanes += [lane(f"{column.name}-plain", column, plain=True) for column in columns]
        pairs = [(entry, column) for entry in rows for column in columns if entry.applies(column)]
        self._references: dict[_Key, Future[Outcome | Verdict]] = {_key(*pair): Future() for pair in pairs}
        self._entries = {_key(*pair): pair[0] for pair in pairs}
        self._on_cell = on_cell or (lambda cell: None)
        self._stopped = threading.Event()

    def run(self, jobs: int) -> None:
        # One device goes first, so a column that waits for a reference never holds the place of the lane that makes it.
        with ThreadPoolExecutor(jobs, thread_name_prefix="tfdist-verify") as executor:
            work = [executor.submit(self._run_one_device), *(executor.submit(self._run_lane, x) for x in self.lanes)]
            try:
                for done in done_heeding_signals(work):
                    done.result()
            except BaseException:
                self._stop(work)
                raise

    def _stop(self, work: Sequence[Future[None]]) -> None:
        self._stopped.set()
        for lane_work in work:
            lane_work.cancel()
        for reference in self._references.values():
            reference.cancel()
        for lane in (self.one_device, *self.lanes):
            lane.close()

    def _run_one_device(self) -> None:
        with contextlib.closing(self.one_device) as lane:
            for key, future in self._references.items():
                if self._stopped.is_set():
                    return
                _, workers, replicas = key
                found = lane.outcomes(self._entries[key], workers=workers, replicas=replicas)
                if future.set_running_or_notify_cancel():
                    future.set_result(found if isinstance(found, Verdict) else found[0])

    def _run_lane(self, lane: FeatureSession) -> None:
        assert lane.column is not None
        with contextlib.closing(lane):
            for entry in self.rows:
                if self._stopped.is_set():
                    return
                started = time.monotonic()
                try:
                    verdict = self._verdict(lane, lane.column, entry)
                except CancelledError:
                    return
                if self._stopped.is_set():  # its processes were ended, which looks like a crash
                    return
                cell = Cell(
                    feature=entry.name,
                    column=lane.column.name,
                    baseline=lane.baseline,
                    seconds=round(time.monotonic() - started, 2),
                    **asdict(verdict),
                )
                self.cells.append(cell)
                self._on_cell(cell)

    def _verdict(self, lane: FeatureSession, column: Column, entry: Feature) -> Verdict:
        if not entry.applies(column):
            return Verdict(status="left out")
        found = lane.outcomes(entry, workers=column.workers, replicas=column.replicas)
        if isinstance(found, Verdict):
            return found
        reference = self._references[_key(entry, column)].result()
        if isinstance(reference, Verdict):
            return cell_judge.without_reference(reference)
        return cell_judge.equality(entry, found, reference)


def _key(entry: Feature, column: Column) -> _Key:
    """Return the name of a reference: columns share it unless it depends on their layout."""
    return (entry.name, column.workers, column.replicas) if entry.per_layout else (entry.name, 1, 1)
