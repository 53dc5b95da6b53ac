"""Saving over several workers: the chief writes, whole files only, and the others go on when it is done.

A script may call `model.save` on every worker or on the chief alone. So the chief waits for nobody: it leaves a note
with the cluster's coordination service when a file stands, and a worker that saves the same state to the same path
waits for it.
"""

import functools
import os
import tempfile
from typing import Any

import keras

from tfdist.compat import tf_coordination
from tfdist.training.workers import DEADLINE_SECONDS, Workers


def adopt(model: keras.Model, workers: Workers) -> None:
    """Let this model's `save`, `save_weights` and `export` write on the chief alone."""
    if workers.count == 1:
        return
    for name in ("save", "save_weights", "export"):
        vars(model)[name] = functools.partial(_chief_saves, model, workers, name)


def _chief_saves(model: keras.Model, workers: Workers, name: str, filepath: Any, *args: Any, **kwargs: Any) -> None:
    path = os.fspath(filepath)
    optimizer = model.optimizer
    steps = int(optimizer.iterations.numpy()) if optimizer is not None and optimizer.built else 0
    state = f"tfdist/{name}/{steps}/{path}"
    note = f"{state}/{workers.next_number(state)}"
    if workers.is_chief:
        _write_whole(functools.partial(getattr(type(model), name), model), path, *args, **kwargs)
        tf_coordination.leave_note(note)
    else:
        tf_coordination.wait_for_note(note, timeout_seconds=DEADLINE_SECONDS, what=f"worker 0 to write {path}")


def _write_whole(write: Any, path: str, *args: Any, **kwargs: Any) -> None:
    """Write beside the file and rename: who opens the path finds the old file or the new one, never a part."""
    folder, base = os.path.split(path)
    if "://" in path or not base.endswith((".keras", ".h5")) or not os.path.isdir(folder or "."):
        write(path, *args, **kwargs)
        return
    if os.path.exists(path) and kwargs.get("overwrite") is False:
        write(path, *args, **kwargs)  # Keras asks, or refuses
        return
    with tempfile.TemporaryDirectory(dir=folder or ".", prefix=".tfdist-") as scratch:
        whole = os.path.join(scratch, base)
        write(whole, *args, **kwargs)
        os.replace(whole, path)
