"""The fields of Keras' callbacks that hold their state of the training so far.

Private names, read in Keras 3.15.1 (`keras/src/callbacks/`): the fields in `_FIELDS`, since callbacks cannot export
their state and most reset it in `on_train_begin`; `ModelCheckpoint._get_file_path`, `BackupAndRestore._weights_path`
and `_save_model`, where they save; `SwapEMAWeights._tf_swap_variables` and `_tf_finalize_ema_values`.
"""

import contextlib
import os
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

_FIELDS: dict[type, tuple[str, ...]] = {
    keras.callbacks.EarlyStopping: ("wait", "stopped_epoch", "best", "best_weights", "best_epoch"),
    keras.callbacks.ReduceLROnPlateau: ("wait", "best", "cooldown_counter"),
    keras.callbacks.ModelCheckpoint: ("best", "_batches_seen_since_last_saving", "_last_batch_seen", "_current_epoch"),
    keras.callbacks.OrbaxCheckpoint: (
        *("best", "_batches_seen_since_last_saving", "_last_batch_seen", "_total_batches_seen"),
    ),
    keras.callbacks.TensorBoard: ("_global_train_batch", "_global_test_batch", "_previous_epoch_iterations"),
    keras.callbacks.SwapEMAWeights: ("_ema_weights_in_model",),
    keras.callbacks.History: ("history", "epoch"),
}


def state(callback: keras.callbacks.Callback) -> dict[str, Any] | None:
    """Return the state of a callback of Keras, or of a class derived from one; None for other callbacks."""
    if isinstance(callback, keras.callbacks.CSVLogger):
        return _csv_state(callback)
    names = [name for kind, names in _FIELDS.items() if isinstance(callback, kind) for name in names]
    own = vars(callback)
    return {name: _plain(own[name]) for name in names if name in own} if names else None


def set_state(callback: keras.callbacks.Callback, found: dict[str, Any]) -> None:
    """Restore a result of `state` into a callback; to be called after its `on_train_begin`."""
    if isinstance(callback, keras.callbacks.CSVLogger):
        callback.keys = found["keys"]
        return
    own = vars(callback)
    if own.get("monitor_op", 0) is None and found.get("best") is not None:
        with contextlib.suppress(ValueError):  # it has its direction from a metric that is gone: Keras says so later
            callback._set_monitor_op()  # else it compares with `best` from the end of the epoch on, and fails before
    for name, value in found.items():
        if name == "history":  # the object is what `fit` returns, and users may hold it
            callback.history.clear()
            callback.history.update(value)
        else:
            own[name] = value


def go_on_writing(logger: keras.callbacks.CSVLogger, found: dict[str, Any]) -> None:
    """Let a logger continue, without rows of epochs that are trained again; to be called before `on_train_begin`."""
    if os.path.isfile(logger.filename) and os.path.getsize(logger.filename) >= found["bytes"]:
        os.truncate(logger.filename, found["bytes"])
    logger.append = True


class NoPath(str):
    """The path of a file that another worker writes: a save to it participates, but writes nothing."""


class _NoCheckpointer:
    """The checkpointer of `OrbaxCheckpoint` on a worker that writes nothing."""

    def save_checkpointables(self, step: int, payload: Any) -> None:
        pass

    def wait(self) -> None:
        pass

    def close(self) -> None:
        pass


def let_take_part(
    callback: keras.callbacks.ModelCheckpoint | keras.callbacks.OrbaxCheckpoint | keras.callbacks.BackupAndRestore,
) -> None:
    """Let one callback that saves the model save to nowhere, whenever it would save, and remove nothing."""
    own = vars(callback)
    if isinstance(callback, keras.callbacks.OrbaxCheckpoint):
        callback.checkpointer.close()
        callback.checkpointer, callback.save_on_background = _NoCheckpointer(), False
    elif isinstance(callback, keras.callbacks.ModelCheckpoint):
        own["_get_file_path"] = lambda *args, **kwargs: NoPath()
        callback.verbose = 0
    else:
        own["_save_model"] = lambda: callback.model.save_weights(NoPath(), overwrite=True)
        own["on_train_end"] = lambda logs=None: None


def let_share_folder(callback: keras.callbacks.ModelCheckpoint) -> None:
    """Let one callback make the folder of each file before it looks for it: where several look at once, Keras fails."""

    def path(*args: Any, **kwargs: Any) -> Any:
        found = type(callback)._get_file_path(callback, *args, **kwargs)
        if folder := os.path.dirname(found):
            tf.io.gfile.makedirs(folder)  # one that is there will do
        return found

    vars(callback)["_get_file_path"] = path


def finds_backup(callback: keras.callbacks.BackupAndRestore) -> bool:
    """Return whether a `fit` that begins now would continue from a backup."""
    return bool(tf.io.gfile.exists(callback._weights_path))


def let_swap(
    callback: keras.callbacks.SwapEMAWeights, swap: Callable[[Any], None], settle: Callable[[Any], None]
) -> None:
    """Let one `SwapEMAWeights` exchange weights and averages in another way."""
    own = vars(callback)
    own["_tf_swap_variables"] = swap
    own["_tf_finalize_ema_values"] = settle


def _csv_state(logger: keras.callbacks.CSVLogger) -> dict[str, Any]:
    size = os.path.getsize(logger.filename) if os.path.isfile(logger.filename) else 0
    return {"keys": None if logger.keys is None else list(logger.keys), "bytes": size}


def _plain(value: Any) -> Any:
    """Return numbers as Python numbers, and values that may change later as copies."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if getattr(value, "shape", None) == () and hasattr(value, "dtype"):
        return value.numpy().item() if hasattr(value, "numpy") else value.item()
    return value
