"""`ReportCheckpointCallback`: an epoch is a report with a model that loads, once, also where training goes on."""

import signal
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tfdist.callbacks import BackupAndRestore
from tfdist.engines.ray import CheckpointConfig, ReportCheckpointCallback, Result
from tfdist.errors import ConfigError
from tfdist.jobs.reporting import reports, run_folder
from tfdist.variables import REPORTS

pytestmark = pytest.mark.quick


class Dies(keras.callbacks.Callback):
    """Ends a training as a failure does."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if int(self.model.optimizer.iterations) == 7:  # in the fourth epoch; the backup is of the second
            raise InterruptedError


def test_epochs_are_reported_once_also_those_that_are_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = np.random.default_rng(1).normal(size=(8, 3)), np.arange(8.0)

    def fit(run: Path, *callbacks: Any, **options: Any) -> keras.Model:
        monkeypatch.setattr(reports, "_next", None)  # as in a new process
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse", metrics=["mae"])
        backup = BackupAndRestore(run.parent / f"backup-{run.name}", save_freq=5)
        own = [ReportCheckpointCallback(**options), backup, *callbacks]
        model.fit(x, y, batch_size=4, epochs=6, callbacks=own, verbose=0, shuffle=False)
        return model

    histories = []
    for name, dies in (("whole", ()), ("killed", (Dies(),))):
        run = tmp_path / name
        run.mkdir()
        with run_folder.running(run, CheckpointConfig(num_to_keep=2)) as variables:
            monkeypatch.setenv(REPORTS.name, variables[REPORTS.name])
            if dies:
                with pytest.raises(InterruptedError):
                    fit(run, *dies)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                assert len(Result.from_path(run).history) == 3
            model = fit(run)
            with pytest.raises(ConfigError, match=r"a name in metrics is 'loos'.*'loss'"):
                fit(run, metrics=["loos"], checkpoint_every=None)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # which a training that raises leaves to its process
        result = Result.from_path(run)
        histories.append([(one["training_iteration"], one["loss"], one["mae"]) for one in result.history])
        assert result.checkpoint is not None
        loaded = keras.saving.load_model(Path(result.checkpoint.path) / "model.keras")
        for one, other in zip(loaded.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)
        assert sorted(one.name[:10] for one in run.iterdir() if one.is_dir()) == ["checkpoint"] * 2
    assert [one[0] for one in histories[0]] == list(range(1, 7))
    assert histories[0] == histories[1]
