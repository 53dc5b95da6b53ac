"""Saving on several workers: the chief alone writes, only whole files, and the others continue when it is done.

A script may call `model.save` on every worker or on the chief alone. So the chief does not wait: it leaves a note when
a file is complete, and a worker that saves the same state to a file of the same name waits for the note. The note says
which path the chief's file has. A worker whose path is another, as in TensorFlow's guide, writes a file of its own.
Names that differ only in digits count as one, so a worker that saves `model1.keras` does not wait in vain for a note
about it when the chief has saved `model0.keras`.

Where weights are sharded every worker has to save, because reading a weight gathers its parts. The chief's file counts,
as one device would write it; the others keep theirs only at paths of their own. An exported model reads whole
variables, so `export` saves such a model, loads it on one device, and exports that.
"""

import contextlib
import functools
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import keras

from tfdist.collectives.collective import Notes
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat.keras import keras_variables
from tfdist.compat.keras.callback_fields import NoPath
from tfdist.compat.tensorflow import partitioned as tf_partitioned
from tfdist.compat.tensorflow.meshes import sharded_variable
from tfdist.compat.tensorflow.steps import replica_contexts
from tfdist.errors import DeadlineError, DisagreementError, UnsupportedError

# A worker that saves what the chief does not even begin to save waits in vain, and then writes itself.
_PATIENCE_SECONDS = 30.0


def adopt(
    model: keras.Model, workers: Workers, gathering: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
) -> None:
    """Let this model's `save`, `save_weights` and `export` write on the chief alone."""
    if workers.count == 1:
        vars(model)["export"] = functools.partial(_export, model)
        return
    for name in ("save", "save_weights", "export"):
        vars(model)[name] = functools.partial(_all_save, model, workers, gathering, name)


def _all_save(
    model: keras.Model,
    workers: Workers,
    gathering: Callable[[], AbstractContextManager[None]],
    name: str,
    filepath: Any,
    *args: Any,
    **kwargs: Any,
) -> None:
    with contextlib.nullcontext() if name == "export" and not _is_cut(model) else gathering():
        if not isinstance(filepath, NoPath):
            _chief_saves(model, workers, name, filepath, *args, **kwargs)


def _export(model: keras.Model, filepath: Any, *args: Any, **kwargs: Any) -> None:
    in_parts = tf_partitioned.PartitionedVariable
    if _is_cut(model) or any(isinstance(keras_variables.value_of(weight), in_parts) for weight in model.weights):
        with tempfile.TemporaryDirectory(prefix="tfdist-") as scratch:
            _exporting_whole(model, scratch)(filepath, *args, **kwargs)
    else:
        type(model).export(model, filepath, *args, **kwargs)


def _exporting_whole(model: keras.Model, scratch: str) -> Callable[..., None]:
    """Save a model in parts whole, on every worker that has parts; return the function that exports what was saved."""
    saved = os.path.join(scratch, "whole.keras")
    type(model).save(model, saved)

    @replica_contexts.outside_scope()
    def export(path: Any, *args: Any, **kwargs: Any) -> None:
        try:
            whole = keras.models.load_model(saved, compile=False, safe_mode=False)
        except Exception as error:
            raise UnsupportedError(
                f"the model cannot be exported to {os.fspath(path)}: its weights are in parts, and a copy with whole "
                f"ones could not be loaded ({type(error).__name__}, above). Give its layers a `get_config`, or make "
                "the model on one device, load its weights from model.save_weights(), and export that.",
                path=os.fspath(path),
            ) from error
        whole.export(path, *args, **kwargs)

    return export


def _chief_saves(model: keras.Model, workers: Workers, name: str, filepath: Any, *args: Any, **kwargs: Any) -> None:
    assert workers.notes is not None
    path = os.fspath(filepath)
    optimizer = getattr(model, "optimizer", None)  # none before compile, as in a loop of the user's own
    steps = int(optimizer.iterations.numpy()) if optimizer is not None and optimizer.built else 0
    state = f"tfdist/{name}/{steps}/{re.sub('[0-9]+', '#', os.path.basename(path))}"
    note = f"{state}/{workers.next_number(state)}"
    is_cut = _is_cut(model)
    if is_cut:
        _require_all(workers, state, name, path)
    save: Callable[..., None] = functools.partial(getattr(type(model), name), model)
    if not is_cut:
        save = replica_contexts.outside_scope()(save)  # Keras makes variables to save, here on one worker alone
    with tempfile.TemporaryDirectory(prefix="tfdist-") as scratch:
        if is_cut and name == "export":
            save, is_cut = _exporting_whole(model, scratch), False
        if workers.is_chief:
            _write_and_tell(save, workers.notes, note, path, *args, **kwargs)
            return
        aside = os.path.join(scratch, os.path.basename(path))
        if is_cut:  # reads all weights as the chief reads them
            save(aside, *args, **kwargs)
        said = _of_chief(workers, note, path)
        if said is None and is_cut:
            raise DeadlineError(f"worker 0 has not begun to write {path} in {_PATIENCE_SECONDS:.0f} s; see its output.")
        of_chief, _, failure = (said or "").partition("\n")
        if of_chief == path:
            if failure:
                raise DisagreementError(f"worker 0 could not write {path}: {failure}")
        elif not is_cut:
            _write_whole(save, path, *args, **kwargs)
        elif "://" not in path:
            for base in os.listdir(scratch):  # several where max_shard_size cuts the file
                shutil.move(os.path.join(scratch, base), os.path.join(os.path.dirname(path), base))


def _write_and_tell(save: Callable[..., None], notes: Notes, note: str, path: str, *args: Any, **kwargs: Any) -> None:
    notes.leave_note(f"{note}/begun", "")
    try:
        _write_whole(save, path, *args, **kwargs)
    except Exception as error:
        notes.leave_note(note, f"{path}\n{type(error).__name__}: {error}")
        raise
    notes.leave_note(note, f"{path}\n")


def _of_chief(workers: Workers, note: str, path: str) -> str | None:
    """Return the chief's note of what it has written, or None if it writes nothing; wait for a large file long."""
    assert workers.notes is not None
    if workers.notes.wait_for_note(f"{note}/begun", _PATIENCE_SECONDS) is None:
        return None
    said = workers.notes.wait_for_note(note, workers.timeout_seconds)
    if said is None:
        raise DeadlineError(
            f"worker 0 has been writing {path} for {workers.timeout_seconds:g} s. See its output; if a file takes that "
            "long to write, pass a larger timeout_seconds to the strategy."
        )
    return said


def _require_all(workers: Workers, state: str, name: str, path: str) -> None:
    """Wait until every worker saves: gathering parts needs all of them."""
    absent = workers.first_absent(f"{state}/here", _PATIENCE_SECONDS)
    if absent is not None:
        raise DeadlineError(
            f"worker {absent} has not called model.{name}({path!r}) in {_PATIENCE_SECONDS:.0f} s. Weights are "
            "sharded over all workers, so call it on every worker; only the chief's file is kept."
        )


def _is_cut(model: keras.Model) -> bool:
    return any(sharded_variable.sharding_of(weight) is not None for weight in model.weights)


def _write_whole(write: Any, path: str, *args: Any, **kwargs: Any) -> None:
    """Write to a temporary folder and rename: a reader finds the old file or the new one, never a part."""
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
