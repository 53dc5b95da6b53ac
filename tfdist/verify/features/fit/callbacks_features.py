"""Keras' callbacks: what they decide, and what they write."""

import contextlib
import csv
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.verify.feature import Context, Outcome, feature, keras, tf
from tfdist.verify.feature_tasks import BATCH, EVEN, compiled, dense, regression, sgd, state, trained


def _model(ctx: Context, **optimizer: Any) -> Any:
    return compiled(ctx, optimizer=lambda: sgd(**optimizer), metrics=["mae"])


def _fit(ctx: Context, *callbacks: Any, model: Any = None, epochs: int = 3) -> Outcome:
    x, y = regression(EVEN)
    model = _model(ctx) if model is None else model
    return trained(ctx, model, x, y, epochs=epochs, callbacks=list(callbacks), validation_data=(x[:BATCH], y[:BATCH]))


def _overfit(ctx: Context, *callbacks: Any) -> Outcome:
    """Train towards targets that are the opposite of validation's, which gets worse and worse."""
    x, y = regression(EVEN)
    return trained(ctx, _model(ctx), x, y, epochs=5, callbacks=list(callbacks), validation_data=(x, -y))


def _files(directory: Path) -> str:
    return " ".join(sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()))


@feature()
def checkpoint_keras(ctx: Context) -> Outcome:
    """ModelCheckpoint of the model: one file, whole, with the weights of the model."""
    path = ctx.directory / "model.keras"
    outcome = _fit(ctx, keras.callbacks.ModelCheckpoint(path))
    ctx.barrier("written")
    loaded = keras.models.load_model(path)
    inside = {f"file/{index}": value for index, value in enumerate(loaded.get_weights())}
    return {**outcome, **inside, "files": _files(ctx.directory)}


@feature()
def checkpoint_weights(ctx: Context) -> Outcome:
    """ModelCheckpoint of the weights, a file per epoch."""
    path = ctx.directory / "epoch-{epoch}.weights.h5"
    outcome = _fit(ctx, keras.callbacks.ModelCheckpoint(path, save_weights_only=True))
    ctx.barrier("written")
    loaded = dense()
    loaded.load_weights(ctx.directory / "epoch-2.weights.h5")
    inside = {f"file/{index}": value for index, value in enumerate(loaded.get_weights())}
    return {**outcome, **inside, "files": _files(ctx.directory)}


@feature()
def checkpoint_best(ctx: Context) -> Outcome:
    """ModelCheckpoint of the best epoch alone, and every two batches."""
    best = keras.callbacks.ModelCheckpoint(ctx.directory / "best-{epoch}.keras", save_best_only=True)
    often = keras.callbacks.ModelCheckpoint(ctx.directory / "often-{epoch}-{batch}.keras", save_freq=2)
    outcome = _overfit(ctx, best, often)
    ctx.barrier("written")
    return {**outcome, "files": _files(ctx.directory)}


@feature()
def csv_logger(ctx: Context) -> Outcome:
    """CSVLogger: one well-formed file with the numbers of the history."""
    path = ctx.directory / "log.csv"
    outcome = _fit(ctx, keras.callbacks.CSVLogger(str(path)))
    ctx.barrier("written")
    with path.open(newline="") as file:
        head, *rows = csv.reader(file)
    columns = {f"csv/{name}": [float(row[place]) for row in rows] for place, name in enumerate(head)}
    return {**outcome, **columns, "files": _files(ctx.directory)}


@feature()
def tensorboard(ctx: Context) -> Outcome:
    """TensorBoard: one writer each for training and validation, with the losses of the history."""
    outcome = _fit(ctx, keras.callbacks.TensorBoard(ctx.directory, write_graph=False, update_freq=1))
    ctx.barrier("written")
    for kind in ("train", "validation"):
        files = sorted((ctx.directory / kind).glob("events.*"))
        outcome = {**outcome, f"{kind}/files": len(files), f"{kind}/epoch_loss": _scalars(files, "epoch_loss")}
    return outcome


def _scalars(files: list[Path], tag: str) -> np.ndarray:
    found = {}
    for record in tf.data.TFRecordDataset([str(path) for path in files]).as_numpy_iterator():
        event = tf.compat.v1.Event.FromString(record)
        for value in event.summary.value:
            if value.tag == tag:
                found[event.step] = float(tf.make_ndarray(value.tensor))
    return np.array([found[step] for step in sorted(found)])


@feature()
def only_chief_writes(ctx: Context) -> Outcome:
    """Callbacks that write, told another path on every worker: only the chief's paths exist."""
    home = ctx.directory / f"worker-{ctx.worker}"
    if ctx.is_chief:
        home.mkdir()
    _fit(
        ctx,
        keras.callbacks.ModelCheckpoint(home / "model.keras"),
        keras.callbacks.CSVLogger(str(home / "log.csv")),
        keras.callbacks.TensorBoard(home / "board"),
        keras.callbacks.BackupAndRestore(home / "backup"),
    )
    ctx.barrier("written")
    found = [path.relative_to(ctx.directory) for path in ctx.directory.rglob("*")]
    return {"files and directories": " ".join(sorted(str(path) for path in found if len(path.parts) < 3))}


@feature()
def early_stopping(ctx: Context) -> Outcome:
    """EarlyStopping with restore_best_weights: the same epoch and weights everywhere."""
    stop = keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)
    outcome = _overfit(ctx, stop)
    return {**outcome, "stopped in epoch": stop.stopped_epoch, "best epoch": stop.best_epoch}


@feature()
def reduce_lr_on_plateau(ctx: Context) -> Outcome:
    """ReduceLROnPlateau: the learning rate goes down everywhere."""
    return _fit(ctx, keras.callbacks.ReduceLROnPlateau("loss", factor=0.3, patience=1, min_delta=0.5), epochs=5)


@feature()
def learning_rate_scheduler(ctx: Context) -> Outcome:
    """LearningRateScheduler: a rate for every epoch."""
    return _fit(ctx, keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.2 / (1 + epoch)))


@feature()
def learning_rate_per_batch(ctx: Context) -> Outcome:
    """A callback that sets the learning rate before every batch."""
    model = _model(ctx)

    class Warm(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.model.optimizer.learning_rate = 0.02 * (batch + 1)

    return _fit(ctx, Warm(), model=model)


@feature()
def terminate_on_nan(ctx: Context) -> Outcome:
    """TerminateOnNaN: a loss that is not a number, caused by one example, ends training in the same step."""
    x, y = regression(EVEN)
    x[17] = np.nan
    stop = keras.callbacks.TerminateOnNaN()
    outcome = trained(ctx, _model(ctx), x, y, callbacks=[stop], epochs=3)
    return {name: value for name, value in outcome.items() if not np.isnan(value).all()}


@feature()
def swap_ema_weights(ctx: Context) -> Outcome:
    """SwapEMAWeights: validation and the end of training see the averaged weights."""
    model = _model(ctx, use_ema=True, ema_momentum=0.8)
    return _fit(ctx, keras.callbacks.SwapEMAWeights(swap_on_epoch=True), model=model)


class _InterruptedError(Exception):
    """Stands for whatever may end a program between two epochs."""


@feature()
def backup_and_restore(ctx: Context) -> Outcome:
    """Keras' BackupAndRestore: a new program continues in the right epoch and ends with the same weights."""

    def interrupt(epoch: int, logs: Any = None) -> None:
        if epoch == 2:
            raise _InterruptedError

    x, y = regression(EVEN)
    first = _model(ctx)
    stop = keras.callbacks.LambdaCallback(on_epoch_begin=interrupt)
    options = {"batch_size": BATCH, "epochs": 4, "shuffle": False, "verbose": 0}
    with contextlib.suppress(_InterruptedError):
        first.fit(x, y, callbacks=[keras.callbacks.BackupAndRestore(ctx.directory / "backup"), stop], **options)
    ctx.barrier("interrupted")
    keras.utils.set_random_seed(99)  # other weights: what follows must come from the backup
    second = _model(ctx)
    result = second.fit(x, y, callbacks=[keras.callbacks.BackupAndRestore(ctx.directory / "backup")], **options)
    return {"epochs": result.epoch, "losses": result.history["loss"], **state(ctx, second)}
