"""One pool of processes and the features that run in it: those of a column, or of one device, the reference."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.jobs.placement.worker_environment import WorkerSession
from tfdist.processes.pool.worker_pool import Reply
from tfdist.verify import cell_judge
from tfdist.verify.cell_judge import Verdict
from tfdist.verify.column import Column
from tfdist.verify.feature import Feature

_CELL = "tfdist.verify.matrix_cell"
_START_SECONDS = 120.0
_PROBE_SECONDS = 15.0


class FeatureSession(WorkerSession):
    """Runs features in processes that it starts when they are needed, and again after a feature has ruined them."""

    def __init__(
        self, directory: Path, *, column: Column | None, baseline: bool = False, deadline_seconds: float | None = None
    ) -> None:
        super().__init__(
            column.strategy if column else None,
            workers=column.workers if column else 1,
            replicas_per_worker=column.replicas_per_worker if column else 1,
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
