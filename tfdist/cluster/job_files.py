"""Names of a job's folders and files on a host; pure paths.

A job has a directory, and another one in memory, for what its processes tell each other while it runs. The launcher
makes both; callbacks and programs that look at a job from outside find the files by these names.
"""

from pathlib import Path

from tfdist.cluster.cluster_values import TaskId

#: where a folder is memory and no disk
MEMORY = Path("/dev/shm")
#: what the name of a job's folder begins with; the id of the job and "-" follow
PREFIX = "tfdist-job-"


def job_of(folder: Path) -> str:
    """Return the id of the job whose folder this is.

    Example:
        >>> job_of(MEMORY / "tfdist-job-3f9ac1d2aa-x7k2")
        '3f9ac1d2aa'
    """
    return folder.name.removeprefix(PREFIX).partition("-")[0]


def state_folder(memory: Path) -> Path:
    """Return where workers hold the newest states of their trainings."""
    return memory / "state"


def copies_folder(memory: Path) -> Path:
    """Return where copies of the states are that workers on another host hold."""
    return memory / "copies"


def progress_file(memory: Path, restarts: int) -> Path:
    """Return where the workers of a start say how far they are."""
    return memory / f"progress-{restarts}"


def steps_folder(memory: Path, restarts: int) -> Path:
    """Return where the workers of a start record their steps."""
    return memory / f"steps-{restarts}"


def stacks_file(memory: Path, restarts: int, task: TaskId) -> Path:
    """Return where a process of a start writes where it stands, when it is asked."""
    return memory / f"stacks-{restarts}-{task.type}-{task.index}"


def processes_file(memory: Path) -> Path:
    """Return the file that says which process each task of a job is now, for who looks from outside."""
    return memory / "processes"


def event_copy(memory: Path) -> Path:
    """Return where a job that is monitored keeps its events for who watches it."""
    return memory / "events"


def environment_file(directory: Path) -> Path:
    """Return where a worker writes which variables it has set for TensorFlow and the like."""
    return directory / "environment.json"


def tasks_file(directory: Path) -> Path:
    """Return the file that says which process is which task."""
    return directory / "tasks"
