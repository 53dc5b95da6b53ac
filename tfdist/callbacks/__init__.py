"""Keras callbacks of tfdist; they work in any tfdist scope, and in none."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers, and for the API reference
    from tfdist.callbacks.backup_and_restore import BackupAndRestore
    from tfdist.callbacks.gradient_noise_scale import GradientNoiseScale
    from tfdist.callbacks.monitor_callback import Monitor
    from tfdist.training.loss_scale import LossScaleLogger

_WHERE = {
    "BackupAndRestore": "tfdist.callbacks.backup_and_restore",
    "GradientNoiseScale": "tfdist.callbacks.gradient_noise_scale",
    "LossScaleLogger": "tfdist.training.loss_scale",
    "Monitor": "tfdist.callbacks.monitor_callback",
}

__all__ = ["BackupAndRestore", "GradientNoiseScale", "LossScaleLogger", "Monitor"]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(_WHERE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
