"""Keras' callbacks that look at an optimizer's slots or save them, of which a worker has a part."""

from collections.abc import Sequence
from typing import Any

import keras

from tfdist.compat.keras import callback_fields as keras_callbacks
from tfdist.errors import UnsupportedError
from tfdist.gradients.sharding.sharded_slots import updates_of

#: of what writes, what saves the slots too: all workers take part
SAVE_SLOTS = (keras.callbacks.BackupAndRestore, keras.callbacks.ModelCheckpoint)


def adapt(callbacks: Sequence[keras.callbacks.Callback], *, writes: bool) -> None:
    """Let callbacks of a `fit`, `evaluate` or `predict` work together with those of the other workers."""
    for one in callbacks:
        if isinstance(one, keras.callbacks.SwapEMAWeights):
            keras_callbacks.let_swap(one, _swap, _settle)
        if isinstance(one, SAVE_SLOTS) and not writes:
            keras_callbacks.let_take_part(one)


def require_same_backup(found: Sequence[bool]) -> None:
    """Raise if some workers would go on from a backup of Keras' and others not."""
    if any(found) and not all(found):
        raise UnsupportedError(
            f"keras.callbacks.BackupAndRestore finds a backup on worker {list(found).index(True)} and none on worker "
            f"{list(found).index(False)}; the optimizer is sharded, and each worker reads its part of the slots. Give "
            "all the same backup_dir, on a disk that they share, or take tfdist.callbacks.BackupAndRestore."
        )


def _swap(optimizer: Any) -> None:
    for updates in updates_of(optimizer):
        updates.swap_averages()


def _settle(optimizer: Any) -> None:
    for updates in updates_of(optimizer):
        updates.average_weights()
