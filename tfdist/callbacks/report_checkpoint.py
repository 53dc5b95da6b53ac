"""A callback that reports each epoch of a `fit` in a Ray job."""

import shutil
from typing import Any

import keras

from tfdist import cluster, validation
from tfdist.jobs.reporting import reports
from tfdist.jobs.reporting.run_folder import SAVING

__all__ = ["ReportCheckpointCallback"]


class ReportCheckpointCallback(keras.callbacks.ModelCheckpoint):
    """A callback that reports each epoch's logs, and the model as a checkpoint, in a function that `Trainer.fit` calls.

    It is the counterpart of the callback of this name in `ray.train.tensorflow.keras`. The checkpoint is a folder with
    ``model.keras``, the whole model as one device would save it, also where weights are sharded. Give it to `fit` on
    every worker; the chief's report counts.

    Guaranteed, with `tfdist.callbacks.BackupAndRestore`: after a failure each epoch is reported once, and repeated
    epochs replace their reports. Without it training begins anew, and new reports follow the old ones.

    Args:
        checkpoint_every: the number of epochs between checkpoints; None: no checkpoints.
        metrics: the names in the logs to report; None: all.
    Raises:
        ConfigError: as for `report`; or a metric is not in the logs.

    Example:
        >>> def callbacks():  # for `fit` in a function as `tfdist.engines.ray.Trainer` has one in its example
        ...     return [ReportCheckpointCallback(checkpoint_every=5), tfdist.callbacks.BackupAndRestore("backup")]
    """

    def __init__(self, *, checkpoint_every: int | None = 1, metrics: list[str] | None = None) -> None:
        if checkpoint_every is not None:
            validation.integer("checkpoint_every", checkpoint_every, minimum=1)
        self._every, self._metrics = checkpoint_every, metrics
        self._is_chief = cluster.from_environment().is_chief
        self._saving = reports.here(checked=self._is_chief).folder / SAVING
        super().__init__(str(self._saving / "model.keras"))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save a checkpoint if one is due, and report the epoch."""
        logs = logs or {}
        saves = self._every is not None and (epoch + 1) % self._every == 0
        if saves:
            if self._is_chief:
                shutil.rmtree(self._saving, ignore_errors=True)
                self._saving.mkdir()
            super().on_epoch_end(epoch, logs)
        if self._is_chief:
            names = list(logs) if self._metrics is None else self._metrics
            for name in names:
                validation.one_of("a name in metrics", name, logs)
            metrics = reports.plain_metrics({name: logs[name] for name in names})
            reports.write(metrics, self._saving if saves else None, move=True)

    def get_state(self) -> dict[str, Any]:
        """Return the number of reports so far."""
        return {"reports": reports.place()} if self._is_chief else {"reports": 0}

    def set_state(self, state: dict[str, Any]) -> None:
        """Let the next report have the number that it had when this state was kept."""
        if self._is_chief:
            reports.resume_at(int(state["reports"]))
