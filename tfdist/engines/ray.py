"""A function as a job on a cluster of Ray, with the names that users of Ray Train know."""

from typing import TYPE_CHECKING, Any

from tfdist.jobs.notebooks.ray_trainer import FailureConfig, Result, RunConfig, ScalingConfig, Trainer
from tfdist.jobs.reporting.reports import get_checkpoint, report
from tfdist.jobs.reporting.run_folder import Checkpoint, CheckpointConfig

if TYPE_CHECKING:  # for type checkers, and for the API reference
    from tfdist.callbacks.report_checkpoint import ReportCheckpointCallback

__all__ = [
    "Checkpoint",
    "CheckpointConfig",
    "FailureConfig",
    "ReportCheckpointCallback",
    "Result",
    "RunConfig",
    "ScalingConfig",
    "Trainer",
    "get_checkpoint",
    "report",
]


def __getattr__(name: str) -> Any:
    if name == "ReportCheckpointCallback":  # loads Keras
        from tfdist.callbacks import report_checkpoint

        return report_checkpoint.ReportCheckpointCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
