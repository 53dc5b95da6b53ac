"""Starts a script on several local workers and supervises them; loads no TensorFlow.

Example:
    >>> LaunchConfig(target="train.py", workers=2).workers
    2
"""

from tfdist.launch.agent import Outcome, planned, run
from tfdist.launch.config import LaunchConfig, require_script
from tfdist.launch.failure import Failure, Record
from tfdist.launch.plan import WorkerSpec

__all__ = ["Failure", "LaunchConfig", "Outcome", "Record", "WorkerSpec", "planned", "require_script", "run"]
