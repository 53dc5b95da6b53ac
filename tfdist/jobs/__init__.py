"""Jobs: a script on several local workers, or on a chief with workers and parameter servers, started and supervised.
`notebook` does the same with a function, from a notebook, a REPL or a script.

Loads no TensorFlow. A name loads its module when it is first used: a job without notebooks needs nothing of them.

Example:
    >>> from pathlib import Path
    >>> from tfdist.jobs import LaunchConfig, planned
    >>> config = LaunchConfig(target="train.py", workers=2)
    >>> [str(spec.task) for spec in planned(config, job_id="a", directory=Path("a"), agent_pid=0)]
    ['worker 0', 'worker 1']
"""

from typing import TYPE_CHECKING

from tfdist.lazy_exports import exported

if TYPE_CHECKING:
    from tfdist.jobs.agent.run_job import planned, run
    from tfdist.jobs.notebooks.notebook_job import notebook
    from tfdist.jobs.output.tf_log_filter import hide_noise
    from tfdist.jobs.plan.launch_config import LaunchConfig, require_script
    from tfdist.jobs.plan.worker_spec import WorkerSpec
    from tfdist.processes.worker_failure import Failure, Outcome, Record

__all__ = [
    "Failure",
    "LaunchConfig",
    "Outcome",
    "Record",
    "WorkerSpec",
    "hide_noise",
    "notebook",
    "planned",
    "require_script",
    "run",
]

__getattr__, __dir__ = exported(__name__, __file__)
