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
    """The id of the job whose folder this is."""
    return folder.name.removeprefix(PREFIX).partition("-")[0]


def state_folder(memory: Path) -> Path:
    """Return the folder in which workers keep the newest states of their trainings."""
    return memory / "state"


def copies_folder(memory: Path) -> Path:
    """Copies of the states that workers on another host hold."""
    return memory / "copies"


def progress_file(memory: Path, restarts: int) -> Path:
    """The status table of the workers of a start."""
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
    """The events of a monitored job, for programs that watch it."""
    return memory / "events"


def environment_file(directory: Path) -> Path:
    """The variables that a worker has set for TensorFlow and the like."""
    return directory / "environment.json"


def tasks_file(directory: Path) -> Path:
    """Return the file that lists the process of each task."""
    return directory / "tasks"
