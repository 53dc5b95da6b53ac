"""Keras' callbacks that look at an optimizer's slots, of which a worker has a part."""

from collections.abc import Sequence
from typing import Any

import keras

from tfdist.compat.keras import callbacks as keras_callbacks
from tfdist.errors import UnsupportedError
from tfdist.training.sharding.sharding import updates_of


def adapt(callbacks: Sequence[keras.callbacks.Callback], *, is_chief: bool) -> None:
    """Let callbacks of a `fit`, `evaluate` or `predict` work together with those of the other workers.

    Args:
        callbacks: of a model whose optimizer is sharded.
        is_chief: whether this worker writes.
    Raises:
        UnsupportedError: one cannot.
    """
    for one in callbacks:
        if isinstance(one, keras.callbacks.BackupAndRestore):
            raise UnsupportedError(
                "keras.callbacks.BackupAndRestore is given to a model whose optimizer is sharded: it restores what the "
                "chief has on all workers, and each has slots of its own. Take tfdist.callbacks.BackupAndRestore, "
                "which keeps the part of each worker."
            )
        if isinstance(one, keras.callbacks.SwapEMAWeights):
            keras_callbacks.let_swap(one, _swap, _settle)
        if isinstance(one, keras.callbacks.ModelCheckpoint) and not is_chief:
            keras_callbacks.let_take_part(one)


def _swap(optimizer: Any) -> None:
    for updates in updates_of(optimizer):
        updates.swap_averages()


def _settle(optimizer: Any) -> None:
    for updates in updates_of(optimizer):
        updates.average_weights()
