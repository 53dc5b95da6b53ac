"""Starts a script on several local workers, or on a chief that workers and parameter servers serve; supervises them.
`notebook` does the same with a function, from a notebook, a REPL or a script.

Loads no TensorFlow.

Example:
    >>> LaunchConfig(target="train.py", workers=2).workers
    2
"""

from tfdist.launch.agent import planned, run
from tfdist.launch.config import LaunchConfig, require_script
from tfdist.launch.failure import Failure, Outcome, Record
from tfdist.launch.notebook_job import notebook
from tfdist.launch.plan import WorkerSpec

__all__ = ["Failure", "LaunchConfig", "Outcome", "Record", "WorkerSpec", "notebook", "planned", "require_script", "run"]
