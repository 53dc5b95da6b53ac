"""Training that resumes where it was killed: at the step, bit for bit."""

import os
from collections.abc import Mapping
from typing import Any, Literal

import keras

from tfdist import validation
from tfdist.callbacks.backup import run_identity
from tfdist.callbacks.backup.session import BackupSession
from tfdist.checkpoint.checkpoint_store import Store
from tfdist.compat.keras import epochs as keras_epochs
from tfdist.errors import ConfigError
from tfdist.optimizers import learning_rates
from tfdist.training import loss_scale
from tfdist.training.replicated_model import stand_by
from tfdist.training.strategy_mixin import KerasTraining
from tfdist.variables import COPIES_DIR, MEMORY_DIR, Variable


class BackupAndRestore(keras.callbacks.Callback):
    """A callback that backs up the whole state of `fit`, from which the next `fit` resumes: a drop-in for Keras' one.

    It keeps weights, optimizer slots, loss scale, moving averages, the states of random numbers (Keras' seed
    generators, TensorFlow's, NumPy's, Python's), the position in the data, epoch and step, the metrics of the running
    epoch, History, the states of single replicas (accumulated gradients; see `tfdist.checkpoint.ShardedState`), and the
    states of other callbacks: Keras' own, and every callback with ``get_state()`` and ``set_state(state)``, of None,
    bools, numbers, text and arrays in lists, tuples and dicts.

    Guaranteed, with deterministic ops: training that was killed at any moment and started again has the weights, the
    slots, the History and the order of examples of training that was never killed, bit for bit. A backup that exists
    can be read: it gets its name when it is complete, and every byte is checked. If the newest one is bad, the one
    before it is used, with a warning. A full disk costs a warning, not the training.

    It works in the scope of every tfdist strategy, where the chief writes and all workers resume from the same step,
    and outside of any. The position of `tfdist.data.read` is restored on any number of workers. Other input, which the
    program must make again in the same way, is replayed: set a seed if it is shuffled.

    Under ``tfdist run --max-restarts`` the state is also held in memory after steps, as often as that costs little, on
    several hosts in the memory of two; and a worker that receives SIGTERM saves before it ends. Elsewhere SIGTERM saves
    and ends the process with code 143.

    Args:
        backup_dir: a directory, or a URL that fsspec knows. Each call of `fit` needs one of its own.
        save_freq: "epoch": at the end of each epoch. A number: the steps between saves, counted across epochs. False:
            only on SIGTERM.
        double_checkpoint: whether at least two backups are kept, as in Keras; see ``keep``.
        delete_checkpoint: whether the backups are removed at the end of `fit`. Pass False if other calls of `fit`
            follow, or a restarted script trains again.
        keep: the number of newest backups that are kept.
        asynchronous: whether training continues while a backup is written. A backup that has not begun when the next
            one is due is skipped.
        learning_rate_rule: the change of the learning rate when the script resumes with another global batch: "none",
            "linear" multiplies it by the ratio r of the two, "sqrt" by the square root of r. Scripts whose batch does
            not depend on the number of workers need "none".
        storage_options: options of fsspec's driver, such as ``{"key": ..., "endpoint_url": ...}``; only for URLs.

    Raises:
        ConfigError: ``backup_dir`` is empty, or another argument has no valid value. In `fit`: the backup belongs to
            another model, to other data, or to another call of `fit`; or a rule is to be applied and the learning rate
            follows a schedule, or the size of the batch is not known.
        MissingDependencyError: the package that the URL needs is missing.

    Example:
        >>> import keras, numpy as np, tempfile
        >>> from tfdist.callbacks import BackupAndRestore
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> model.compile("adam", "mse")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     backup = BackupAndRestore(folder, save_freq=100)
        ...     history = model.fit(np.ones((10, 4)), np.ones(10), epochs=3, callbacks=[backup], verbose=0)
        >>> len(history.history["loss"])
        3

    Source: J. Mohan, A. Phanishayee, V. Chidambaram, "CheckFreq: Frequent, Fine-Grained DNN Checkpointing", 2021 (a
    snapshot in memory, written behind training); Z. Wang et al., "GEMINI: Fast Failure Recovery in Distributed Training
    with In-Memory Checkpoints", 2023. There a snapshot is a copy; here tensors are held, and TensorFlow copies what it
    is about to change.
    """

    def __init__(
        self,
        backup_dir: "str | os.PathLike[str]",
        save_freq: "Literal['epoch', False] | int" = "epoch",
        double_checkpoint: bool = False,
        delete_checkpoint: bool = True,
        *,
        keep: int = 2,
        asynchronous: bool = True,
        learning_rate_rule: Literal["none", "linear", "sqrt"] = "none",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if not os.fspath(backup_dir):
            raise ConfigError("backup_dir is empty; it must be a directory, or a URL such as s3://bucket/backup.")
        if save_freq is not False and save_freq != "epoch":
            validation.integer("save_freq", save_freq, minimum=1)
        validation.boolean("double_checkpoint", double_checkpoint)
        validation.boolean("delete_checkpoint", delete_checkpoint)
        validation.boolean("asynchronous", asynchronous)
        validation.integer("keep", keep, minimum=1)
        learning_rates.require_rule("learning_rate_rule", learning_rate_rule)
        self.backup_dir = os.fspath(backup_dir)
        self.save_freq, self.double_checkpoint = save_freq, double_checkpoint
        self.delete_checkpoint = delete_checkpoint
        self.keep = max(keep, 2) if double_checkpoint else keep
        self.asynchronous, self.learning_rate_rule = asynchronous, learning_rate_rule
        self.storage_options = storage_options

    def set_model(self, model: keras.Model) -> None:
        """Join the `fit` that is about to begin; Keras calls it."""
        super().set_model(model)
        fit = keras_epochs.running_fit(model)
        if fit is None or fit.callbacks is None:
            return
        if any(isinstance(one, BackupSession) for one in fit.callbacks.callbacks):
            return
        if isinstance(model.distribute_strategy, KerasTraining):
            loss_scale.show(model, fit.callbacks)  # before the scope does, to keep what it counts
        others = [one for one in fit.callbacks.callbacks if one is not self]
        if any(isinstance(one, (BackupAndRestore, keras.callbacks.BackupAndRestore)) for one in others):
            raise ConfigError("fit has two callbacks that back up and restore; the second would undo the first.")
        stand_by(model, training=True)  # what is found from here on has to be the newest there is
        memory, copies = _in_memory(MEMORY_DIR, self.backup_dir), _in_memory(COPIES_DIR, self.backup_dir)
        session = BackupSession(
            model=model,
            fit=fit,
            others=others,
            disk=Store(self.backup_dir, keep=self.keep, storage_options=self.storage_options),
            memory=None if memory is None else Store(memory, keep=2, durable=False),
            copies=None if copies is None else Store(copies, keep=1, durable=False),
            save_freq=self.save_freq,
            asynchronous=self.asynchronous,
            delete=self.delete_checkpoint,
            learning_rate_rule=self.learning_rate_rule,
        )
        # Its first part comes before all others, so that nothing has begun when it saves; the second behind all, so
        # that they have learnt all that they do from a step. Keras goes through this list at the moment: what is
        # appended it comes to by itself.
        session.first.set_model(model)
        fit.callbacks.callbacks.insert(0, session.first)
        fit.callbacks.callbacks.append(session)


def _in_memory(variable: Variable[str], backup_dir: str) -> str | None:
    """Return the path of the state in memory, if the agent gives room for it: one for each backup directory."""
    room = variable.read(os.environ)
    if not room:
        return None
    return os.path.join(room, run_identity.place_of(backup_dir), "state")
