"""The folder of a Ray job's run, shared by its nodes and its starter.

`result.json` has a line for each report, as Ray Tune writes it, so `ray.tune.Result.from_path` reads the folder.
`checkpoint_000003` came with report 4. Each report replaces the file after its checkpoint is complete, so all earlier
reports survive a kill.
"""

import contextlib
import json
import math
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdist import validation
from tfdist.errors import ConfigError, CorruptDataError, DeadlineError
from tfdist.storage.files import explained, sync_directory
from tfdist.storage.local_storage import LocalStorage
from tfdist.variables import REPORTS

FILE = "result.json"
SIGN = ".run"  # says which job reports here
SAVING = ".saving"  # where the callback writes a checkpoint before it is one
OWN = ("checkpoint_dir_name", "training_iteration", "timestamp")  # added to each report

_CHECKPOINT = re.compile(r"checkpoint_\d{6}")
_TEMPORARY = ".checkpoint"
_FOLDER, _NUMBER, _TIME = OWN


@dataclass(frozen=True)
class Checkpoint:
    """A folder in which a training was saved, compatible with `ray.train.Checkpoint`.

    Attributes:
        path: the path of the folder.

    Example:
        >>> Checkpoint.from_directory("/tmp/saved").path
        '/tmp/saved'
    """

    path: str

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str]) -> "Checkpoint":
        """Return a folder as a checkpoint."""
        return cls(os.fspath(path))

    def to_directory(self, path: str | os.PathLike[str] | None = None) -> str:
        """Copy the checkpoint to a folder, by default a new temporary one, and return its path."""
        target = tempfile.mkdtemp(prefix="checkpoint-") if path is None else os.fspath(path)
        with explained(Path(self.path), "read"):
            shutil.copytree(self.path, target, dirs_exist_ok=True)
        return target

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """Yield the path of a folder with the checkpoint, for a block that does not write there."""
        yield self.path


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """The rule by which checkpoints are kept; the fields of `ray.train.CheckpointConfig`.

    Attributes:
        num_to_keep: the number of checkpoints to keep; the last one is always kept. None: all.
        checkpoint_score_attribute: the metric by which checkpoints are chosen; None: the newest are kept.
        checkpoint_score_order: "max" to keep the largest values of the metric, "min" to keep the smallest.
    """

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: str = "max"

    def __post_init__(self) -> None:
        if self.num_to_keep is not None:
            validation.integer("num_to_keep", self.num_to_keep, minimum=1)
        if self.checkpoint_score_attribute is not None:
            validation.text("checkpoint_score_attribute", self.checkpoint_score_attribute)
        validation.one_of("checkpoint_score_order", self.checkpoint_score_order, ("max", "min"))

    def of(self, rows: list[dict[str, Any]]) -> set[str]:
        """Return the names of the checkpoints that are kept.

        Args:
            rows: the reports, in order.

        Example:
            >>> rows = [{"checkpoint_dir_name": f"c{i}", "loss": loss} for i, loss in enumerate((3.0, 1.0, 2.0, 4.0))]
            >>> sorted(CheckpointConfig(num_to_keep=2).of(rows))
            ['c2', 'c3']
            >>> best = CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="min")
            >>> sorted(best.of(rows))
            ['c1', 'c3']
        """
        saved = [(number, row) for number, row in enumerate(rows) if row.get(_FOLDER)]
        if self.num_to_keep is None:
            return {row[_FOLDER] for _, row in saved}
        ranked = sorted(saved[:-1], key=lambda one: (self._score(one[1]), one[0]), reverse=True)
        return {row[_FOLDER] for _, row in (*saved[-1:], *ranked[: self.num_to_keep - 1])}

    def _score(self, row: Mapping[str, Any]) -> float:
        value = row.get(self.checkpoint_score_attribute or "")
        if not isinstance(value, int | float) or math.isnan(value):  # one without a score is the worst
            return -math.inf
        return value if self.checkpoint_score_order == "max" else -value


class Reports:
    def __init__(self, folder: Path, kept: CheckpointConfig | None = None) -> None:
        self.folder = folder
        self._kept = kept or CheckpointConfig()
        self._storage = LocalStorage(folder)

    def rows(self) -> list[dict[str, Any]]:
        if FILE not in self._storage.names():
            return []
        rows = []
        for number, line in enumerate(self._storage.read(FILE).decode(errors="replace").splitlines(), start=1):
            try:
                rows.append(json.loads(line))
            except ValueError:
                rows.append(None)
            if not isinstance(rows[-1], dict):
                raise CorruptDataError(
                    f"line {number} of {self.folder / FILE} is not a report: {validation.shown(line)}. Move the folder "
                    "away, or name another: RunConfig(name=...)",
                    path=self.folder / FILE,
                    received=line,
                )
        return rows

    def add(self, metrics: dict[str, Any], source: Path | None, *, at: int | None, move: bool = False) -> int:
        """Add a report durably; return its index."""
        rows = self.rows()
        place = len(rows) if at is None else min(at, len(rows))
        with explained(self.folder, "written"):
            name = None if source is None else self._save(source, rows, move=move)
        row = {**metrics, _NUMBER: place + 1, _TIME: int(time.time()), _FOLDER: name}
        rows[place : place + 1] = [row]
        text = "".join(f"{json.dumps(one)}\n" for one in rows)
        with self._storage.create(FILE) as file:
            file.write(text.encode())
        self._clean(rows)
        return place

    def checkpoints(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        """Return the kept checkpoints in order, each with the metrics of its report."""
        found = [(self.folder / row[_FOLDER], row) for row in self.rows() if row.get(_FOLDER)]
        return [(Checkpoint(str(path)), metrics_of(row)) for path, row in found if path.is_dir()]

    def _save(self, source: Path, rows: list[dict[str, Any]], *, move: bool) -> str:
        names = [*os.listdir(self.folder), *(row.get(_FOLDER) or "" for row in rows)]
        used = [int(name[-6:]) for name in names if _CHECKPOINT.fullmatch(name)]
        name = f"checkpoint_{max(used, default=-1) + 1:06d}"
        temporary = source
        if not move:
            temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=self.folder))
            shutil.copytree(source, temporary, dirs_exist_ok=True)
        for place, _, files in os.walk(temporary):
            for file in files:
                with open(os.path.join(place, file), "rb") as written:
                    os.fsync(written.fileno())
            sync_directory(Path(place))
        os.rename(temporary, self.folder / name)
        return name

    def _clean(self, rows: list[dict[str, Any]]) -> None:
        kept = self._kept.of(rows)
        for name in os.listdir(self.folder):
            is_ours = _CHECKPOINT.fullmatch(name) or name.startswith(_TEMPORARY)
            if is_ours and name not in kept:
                shutil.rmtree(self.folder / name, ignore_errors=True)


def metrics_of(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in OWN}


@contextlib.contextmanager
def running(folder: Path, kept: CheckpointConfig) -> Iterator[dict[str, str]]:
    """Be the only job that reports to a folder; yield the variables of its workers."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(LocalStorage(folder).lock(timeout_seconds=0.0))
        except DeadlineError:
            raise ConfigError(
                f"another job that runs reports to {folder}. Give this one another name: RunConfig(name=...)",
                path=folder,
            ) from None
        Reports(folder).rows()  # damaged reports are an error now, not at the end of the job
        run = secrets.token_hex(8)
        with explained(folder, "written"):
            (folder / SIGN).write_text(run, encoding="utf-8")
        yield {REPORTS.name: json.dumps({"folder": os.path.abspath(folder), "run": run, "kept": vars(kept)})}
