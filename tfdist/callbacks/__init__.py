"""Keras callbacks of tfdist; they work in any tfdist scope, and in none."""

from typing import TYPE_CHECKING

from tfdist.lazy_exports import exported

if TYPE_CHECKING:  # for type checkers, and for the API reference
    from tfdist.callbacks.backup_and_restore import BackupAndRestore
    from tfdist.callbacks.gradient_noise_scale import GradientNoiseScale
    from tfdist.callbacks.monitor_callback import Monitor
    from tfdist.training.balance.balance_shares import BalanceShares
    from tfdist.training.loss_scale import LossScaleLogger

__all__ = ["BackupAndRestore", "BalanceShares", "GradientNoiseScale", "LossScaleLogger", "Monitor"]

__getattr__, __dir__ = exported(__name__, __file__)
