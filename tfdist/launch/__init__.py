"""Starts a script on several local workers, or on a chief that workers and parameter servers serve; supervises them.

Loads no TensorFlow.

Example:
    >>> LaunchConfig(target="train.py", workers=2).workers
    2
"""

from tfdist.launch.agent import planned, run
from tfdist.launch.config import LaunchConfig, require_script
from tfdist.launch.failure import Failure, Outcome, Record
from tfdist.launch.plan import WorkerSpec

__all__ = ["Failure", "LaunchConfig", "Outcome", "Record", "WorkerSpec", "planned", "require_script", "run"]
