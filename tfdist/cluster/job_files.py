"""The names of a job's folders and files on a host; pure paths.

A job has a directory, and another one in memory, through which its processes communicate while it runs. The launcher
makes both; callbacks, and programs that watch a job from outside, find the files by these names.
"""

from pathlib import Path

from tfdist.cluster.cluster_values import TaskId

#: a folder whose files are in memory, not on a disk
MEMORY = Path("/dev/shm")
#: the beginning of the name of a job's folder; the id of the job and "-" follow
PREFIX = "tfdist-job-"


def job_of(folder: Path) -> str:
    """Return the id of the job that has this folder."""
    return folder.name.removeprefix(PREFIX).partition("-")[0]


def state_folder(memory: Path) -> Path:
    """Return the folder in which workers keep the newest states of their trainings."""
    return memory / "state"


def copies_folder(memory: Path) -> Path:
    """Return the folder for copies of the states of workers on another host."""
    return memory / "copies"


def progress_file(memory: Path, restarts: int) -> Path:
    """Return the status table of the workers of a start."""
    return memory / f"progress-{restarts}"


def steps_folder(memory: Path, restarts: int) -> Path:
    """Return the folder in which the workers of a start record their steps."""
    return memory / f"steps-{restarts}"


def stacks_file(memory: Path, restarts: int, task: TaskId) -> Path:
    """Return the file to which a process writes its stacks on request."""
    return memory / f"stacks-{restarts}-{task.type}-{task.index}"


def processes_file(memory: Path) -> Path:
    """Return the file that tells other programs which process runs each task of a job."""
    return memory / "processes"


def event_copy(memory: Path) -> Path:
    """Return the file of a monitored job's events, for programs that watch it."""
    return memory / "events"


def environment_file(directory: Path) -> Path:
    """Return the file of the variables that a worker has set for TensorFlow and similar libraries."""
    return directory / "environment.json"


def tasks_file(directory: Path) -> Path:
    """Return the file that lists the process of each task."""
    return directory / "tasks"
