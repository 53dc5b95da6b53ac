"""The callbacks of a trial, which report each epoch, pause `fit` at the rung, and resume it.

The process of a paused trial waits inside `fit`, or it ends and the trial resumes from its backup. The backup is made
at the end of an epoch and does not depend on the pause, so a resumed trial trains like one that was never paused.
"""

import sys
from pathlib import Path
from typing import Any

import keras

from tfdist.callbacks.backup.session import BackupSession
from tfdist.callbacks.backup_and_restore import BackupAndRestore
from tfdist.compat.keras import epochs as keras_epochs
from tfdist.compat.keras import keras_trainer
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.tune.search.search_trial import BACKUP, TrialRequest, continued, requested, write_report


def callbacks() -> list[keras.callbacks.Callback]:
    """Return the callbacks that make a `fit` a trial: a backup, and a reporter; none outside of a search.

    Put them after your own. They report the metric after each epoch. Where the trial pauses, they wait until it is
    resumed, or end the process: the code after `fit` runs only in a trial that has trained to the end. Let `fit` train
    as many epochs as the search allows at most.

    Guaranteed, with deterministic ops: a paused trial that is resumed has the weights of one that was never paused, bit
    for bit, as `tfdist.callbacks.BackupAndRestore` says. A clone of another trial has its weights and slots; its
    learning rate is the one that the script sets, if that differs from the donor's.

    Returns:
        Callbacks for one call of `fit`; an empty list outside of a search.

    Example:
        >>> callbacks()
        []
    """
    request = requested()
    if request is None:
        return []
    backup = BackupAndRestore(Path(request.folder, BACKUP), delete_checkpoint=False, asynchronous=True)
    return [backup, TrialReporter(request)]


class TrialReporter(keras.callbacks.Callback):
    """The callback that reports, and adds `_Pause` after the session of the backup, which saves the epoch first."""

    def __init__(self, request: TrialRequest) -> None:
        super().__init__()
        self._request = request
        self._fit: keras_epochs.Fit | None = None
        self.epochs = 0
        self.compiled: list[float] = []
        self.restored: list[float] | None = None

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        self._fit = fit = keras_epochs.running_fit(model)
        if fit is not None and not any(isinstance(one, _Pause) for one in fit.callbacks.callbacks):
            fit.callbacks.callbacks.append(_Pause(self._request, self, fit))

    def on_train_begin(self, logs: Any = None) -> None:
        """Record the learning rates that the script has set, before the optimizer is restored.

        A step that makes variables is traced twice, which takes longer than the training of a short trial.
        """
        if self._fit is not None and not keras_trainer.is_built(self.model):
            keras_epochs.build(self.model, self._fit)
        self.compiled = [float(rate.numpy()) for rate in learning_rates(self.model)]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        write_report(self._request, logs or {}, epoch + 1)
        self.epochs = epoch + 1

    def get_state(self) -> dict[str, Any]:
        """Return the learning rates of the script, for a clone to compare with its own."""
        return {"compiled": self.compiled}

    def set_state(self, state: dict[str, Any]) -> None:
        self.restored = list(state["compiled"])


class _Pause(keras.callbacks.Callback):
    """The last callback, which sets the learning rate of a clone, and waits or ends the process at the rung."""

    def __init__(self, request: TrialRequest, reporter: TrialReporter, fit: keras_epochs.Fit) -> None:
        super().__init__()
        self._request, self._reporter, self._fit = request, reporter, fit

    def on_train_begin(self, logs: Any = None) -> None:
        """Set the rates in which the script differs from the run that made the backup; the others are restored."""
        own, before = self._reporter.compiled, self._reporter.restored
        for variable, value, old in zip(learning_rates(self.model), own, before or own, strict=False):
            if value != old:
                variable.assign(value)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch >= self._request.until:  # it was ended after its last backup
            self._leave()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch + 1 < self._request.until:
            return
        has_ended = self.model.stop_training or epoch + 1 >= self._fit.epochs
        if has_ended or not self._is_resumed():
            self.model.stop_training = True

    def _is_resumed(self) -> bool:
        """Wait, once the backup is on the disk; return False if the process is to end."""
        for one in self._fit.callbacks.callbacks:
            if isinstance(one, BackupSession):
                one.wait_for_saves()
        found = continued(self._request)
        self._request = found or self._request
        return found is not None

    def on_train_end(self, logs: Any = None) -> None:
        if self._reporter.epochs >= self._request.until:
            self._leave()

    def _leave(self) -> None:
        if not self._request.ends_for_good:
            sys.exit(0)
        self.model.stop_training = True


def learning_rates(model: keras.Model) -> list[Any]:
    """Return the variables of learning rates without a schedule."""
    optimizers = keras_trainer.optimizers(model)
    return [one for optimizer in optimizers for one in keras_optimizer.learning_rate_variables(optimizer)]
