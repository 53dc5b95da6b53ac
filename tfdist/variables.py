"""Every environment variable of tfdist, with its name, parser, default and purpose.

No other module reads these variables. A launcher that passes one on refers to it by its constant here. The lists in
docs/variables.md are made from these tables.

Example:
    >>> RESTARTS.read({"TFDIST_RESTARTS": "2"}), RESTARTS.read({})
    (2, 0)
    >>> RESTARTS.read({"TFDIST_RESTARTS": "two"})
    Traceback (most recent call last):
    ...
    tfdist.errors.ConfigError: TFDIST_RESTARTS is 'two'; it must be an integer of at least 0.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from tfdist.errors import ConfigError
from tfdist.validation import one_of, parse_integer

T = TypeVar("T")
D = TypeVar("D", int, None)

#: The prefix of every variable of tfdist.
PREFIX = "TFDIST_"
#: The prefix of the variables that a pod template sets.
POD_PREFIX = "TFDIST_K8S_"


@dataclass(frozen=True)
class Variable(Generic[T]):
    """One variable of tfdist.

    Attributes:
        name: the name in the environment.
        help: a short description.
        parse: a function that takes the name and the text, and returns the value.
        default: the value if the variable is unset or blank.
        set_by: who sets the variable: the user, `tfdist run` for its workers, either, or another part of tfdist.
    """

    name: str
    help: str
    parse: Callable[[str, str], T]
    default: T
    set_by: Literal["user", "run", "user or run", "tfdist"] = "user"

    def text(self, environ: Mapping[str, str]) -> str:
        """Return the text unchanged; empty if the variable is unset or blank."""
        text = environ.get(self.name, "")
        return text if text.strip() else ""

    def read(self, environ: Mapping[str, str]) -> T:
        """Return the parsed value; raise `ConfigError` if the text is malformed."""
        text = self.text(environ)
        return self.parse(self.name, text) if text else self.default


def _text(name: str, help: str, **more: Any) -> Variable[str]:  # noqa: A002 - as in tfdist.options
    return Variable(name, help, lambda _, text: text, "", **more)


def _flag(name: str, help: str, **more: Any) -> Variable[bool]:  # noqa: A002
    return Variable(name, help, lambda _, text: text.strip() != "0", default=False, **more)


def _choice(name: str, help: str, *choices: str) -> Variable[str]:  # noqa: A002
    return Variable(name, help, lambda name, text: str(one_of(name, text.strip(), choices)), choices[0])


def _integer(
    name: str,
    help: str,  # noqa: A002
    default: D,
    *,
    minimum: int = 0,
    maximum: int | None = None,
    hint: str = "",
    **more: Any,
) -> Variable[int | D]:
    return Variable(
        name,
        help,
        lambda name, text: parse_integer(name, text, minimum=minimum, maximum=maximum, hint=hint),
        default,
        **more,
    )


def parsed_shares(name: str, text: str) -> tuple[int, ...] | Literal["measured"]:
    """Parse the weights of the replicas' shares, or the word "measured".

    Example:
        >>> parsed_shares("--shares", "3,1")
        (3, 1)
    """
    if text.strip() == "measured":
        return "measured"
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise ConfigError(
            f"{name} is {text!r}; it must be a positive whole number for each replica, such as 3,1, or measured.",
            name=name,
            received=text,
        )
    return tuple(map(int, parts))


def _seconds(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ConfigError(f"{name} is {text!r}; set it to a number of seconds.", name=name, received=text) from error


# Variables that users set

STRATEGY = _text(
    "TFDIST_STRATEGY",
    "name of the strategy that `tfdist.strategies.from_environment()` returns",
    set_by="user or run",
)
REPLICAS_PER_WORKER = _integer(
    "TFDIST_REPLICAS_PER_WORKER",
    "devices that each worker uses; all by default",
    None,
    minimum=1,
    hint="Unset it to take every device, or write a number: 2.",
    set_by="user or run",
)
SHARES = Variable(
    "TFDIST_SHARES",
    "parts of a batch that replicas take, such as `3,1`, or `measured`, where the code gives the strategy none",
    parsed_shares,
    None,
    set_by="user or run",
)
COLLECTIVES = _text("TFDIST_COLLECTIVES", "backend that carries tensors between replicas, where the code names none")
DEVICE_PREFETCH = _integer(
    "TFDIST_DEVICE_PREFETCH", "batches that are copied into the memory of GPUs ahead of their steps; 2 by default", 2
)
MESH = _text("TFDIST_MESH", "mesh of `model-parallel` or `pipeline`, such as `batch=2,model=2`")
LAYOUTS = _text(
    "TFDIST_LAYOUTS",
    "layouts of weights where the code has none: `auto`, or `auto:` and names of layers, separated by commas",
)
SYNCHRONIZATION = _text(
    "TFDIST_SYNCHRONIZATION",
    "how seldom the workers of `multi-worker` or `ring` meet, such as `local-sgd:every=8`",
    set_by="user or run",
)
STAGES = _text("TFDIST_STAGES", "layers that begin the stages of a pipeline, separated by commas")
SCHEDULE = _text("TFDIST_SCHEDULE", "schedule of a pipeline")
MICROBATCHES = _integer("TFDIST_MICROBATCHES", "micro-batches of a pipeline's step", None, minimum=1)
CHUNKS = _integer("TFDIST_CHUNKS", "chunks of layers that each stage of a pipeline has", None, minimum=1)
SHARDING_STAGE = _integer(
    "TFDIST_SHARDING_STAGE",
    "1: optimizer state is sharded, 2: gradients too, 3: weights too; `sharded-data-parallel` takes 1 by default",
    None,
    minimum=1,
    maximum=3,
)
MAX_STALENESS = Variable(
    "TFDIST_MAX_STALENESS",
    "largest staleness of gradients under `parameter-server`: a number, or `none` (default)",
    lambda name, text: None if text.strip().lower() == "none" else parse_integer(name, text, minimum=0),
    None,
)
LOCAL_SERVERS = _integer(
    "TFDIST_LOCAL_SERVERS", "parameter servers that the chief starts where the cluster has none", None, minimum=1
)
ALL_REDUCE_ALGORITHM = _text(
    "TFDIST_ALL_REDUCE_ALGORITHM",
    "algorithm of native collectives between hosts: `one-shot`, `two-shot`, `ring`, `halving-doubling` or "
    "`double-tree`; chosen by size by default",
)
HOST_ID = _text(
    "TFDIST_HOST_ID",
    "name of this host for native collectives: workers with different names use TCP, even where they could share "
    "memory; by default the kernel, the PID namespace and the user identify the host",
)
NATIVE = Variable(
    "TFDIST_NATIVE",
    "`0` turns the compiled operations off",
    lambda name, text: one_of(name, text.strip(), ("0", "1"), hint="0 is off; 1 is on, the default.") == "1",
    default=True,
)
CACHE_DIR = Variable[Path | None](
    "TFDIST_CACHE_DIR",
    "folder of the cache; `tfdist` in `$XDG_CACHE_HOME` or `~/.cache` by default",
    lambda _, text: Path(text).expanduser().absolute(),
    None,
)
ALL_LOGS = _flag("TFDIST_ALL_LOGS", "`1` shows everything that TensorFlow logs, known noise included")
NO_WARM = _flag("TFDIST_NO_WARM", "`1` starts workers without the process of `tfdist warm`")
TRIALS = _choice(
    "TFDIST_TRIALS", "`again` repeats, at every start, the trials whose verdicts are kept (`keep`)", "keep", "again"
)
UNTESTED_VERSIONS = _choice(
    "TFDIST_UNTESTED_VERSIONS",
    "`allow` skips the check of TensorFlow and Keras versions that were never tested together (`check`)",
    "check",
    "allow",
)
BATCH_SIZE = _integer("TFDIST_BATCH_SIZE", "what `tfdist.tune.batch_size()` returns", None, minimum=1)
JOB_KEY = _text(
    "TFDIST_JOB_KEY",
    "key of the job, 64 hexadecimal digits, the same on all workers; they authenticate with it",
    set_by="user or run",
)
PORT = _integer("TFDIST_PORT", "first port at which the workers of a host listen", None, minimum=1, maximum=65535)
COORDINATOR = _text("TFDIST_COORDINATOR", "host:port of rank 0 for the ranks of one host; rank i listens at port + i")
NUM_WORKERS = _integer("TFDIST_NUM_WORKERS", "number of ranks, where PMIx tells only ranks", None, minimum=1)
K8S_WORKERS = _integer("TFDIST_K8S_WORKERS", "pods that train together", None, minimum=1)
K8S_SERVICE = _text("TFDIST_K8S_SERVICE", "headless service that names the pods")
SSH_COMMAND = _text("TFDIST_SSH_COMMAND", "`ssh` with its options, for `tfdist run --hosts`")
MPI_COMMAND = _text("TFDIST_MPI_COMMAND", "`mpirun` with its options, for `tfdist run --engine mpi`")
REMOTE_PYTHON = _text("TFDIST_REMOTE_PYTHON", "interpreter on the hosts of `tfdist run --hosts`")
RENDEZVOUS = _text("TFDIST_RENDEZVOUS", "host:port at which `tfdist agent` finds the launcher")
HOST_NAME = _text("TFDIST_HOST_NAME", "name of this host in the job that `tfdist agent` joins")
JOIN_SECONDS = Variable("TFDIST_JOIN_SECONDS", "how long a host tries to join a job", _seconds, 60.0)
FAULTS = _text("TFDIST_FAULTS", "faults to inject, as JSON; `tfdist chaos` sets it")
FAULTS_LOG = _text("TFDIST_FAULTS_LOG", "file that gets a line of JSON for each injected fault")

# Variables that `tfdist run` sets for its workers

WORKERS = _text(
    "TFDIST_WORKERS", "addresses of all workers, such as `127.0.0.1:40001,127.0.0.1:40002`", set_by="user or run"
)
WORKER_INDEX = _integer(
    "TFDIST_WORKER_INDEX", "index of this worker, from 0; worker 0 is the chief", 0, set_by="user or run"
)
LOCAL_WORKERS = _integer("TFDIST_LOCAL_WORKERS", "number of workers on this host", None, minimum=1, set_by="run")
LOCAL_INDEX = _integer("TFDIST_LOCAL_INDEX", "index of this worker among those of its host", None, set_by="run")
JOB_ID = _text("TFDIST_JOB_ID", "text that is the same on every worker of this run", set_by="run")
JOB_PART = _text("TFDIST_JOB_PART", "with `--hosts`: identifies the job's processes on this host", set_by="run")
ERROR_FILE = _text("TFDIST_ERROR_FILE", "file that records the worker's failure, as JSON", set_by="run")
PROGRESS_FILE = _text(
    "TFDIST_PROGRESS_FILE",
    "status table in which the worker reports its progress (tfdist's callbacks and strategies do)",
    set_by="run",
)
STACKS_FILE = _text(
    "TFDIST_STACKS_FILE", "file that gets the stacks of the worker's threads when `tfdist stacks` asks", set_by="run"
)
MONITOR_DIR = _text(
    "TFDIST_MONITOR_DIR", "with `--monitor`: folder in which the worker records its steps", set_by="run"
)
RESTARTS = _integer(
    "TFDIST_RESTARTS", "with `--max-restarts`: how often the workers have restarted: 0, 1, ...", 0, set_by="run"
)
MEMORY_DIR = _text(
    "TFDIST_MEMORY_DIR",
    "with `--max-restarts`: folder in memory that outlives the workers but not the job",
    set_by="run",
)
COPIES_DIR = _text(
    "TFDIST_COPIES_DIR",
    "with `--max-restarts` and `--hosts`: folder in memory with the newest state that workers on another host hold",
    set_by="run",
)
ENVIRONMENT_FILE = _text(
    "TFDIST_ENVIRONMENT_FILE",
    "with `--max-restarts`: file that records the variables that the worker has set, for a faster restart",
    set_by="run",
)
TASKS_FILE = _text(
    "TFDIST_TASKS_FILE",
    "with parameter servers: file that maps processes to tasks, for fault injection by `tfdist chaos`",
    set_by="run",
)

# Variables that parts of tfdist set for each other

REPORTS = _text("TFDIST_REPORTS", "folder of a job's reports, and what is kept, as JSON", set_by="tfdist")
CALL_FOLDER = _text("TFDIST_CALL_FOLDER", "folder with the function that a worker calls", set_by="tfdist")
ENDS_WITH_INPUT = _flag("TFDIST_ENDS_WITH_INPUT", "the host agent also ends with its standard input", set_by="tfdist")
SLURM_REQUEUE = _flag("TFDIST_SLURM_REQUEUE", "a batch job that had to stop starts again", set_by="tfdist")
SEARCH_TRIAL = _text("TFDIST_SEARCH_TRIAL", "which trial of `tfdist search` this process is, as JSON", set_by="tfdist")
STOPWATCH = _text("TFDIST_STOPWATCH", "what `tfdist tune` measures in its script, as JSON", set_by="tfdist")
BENCH_MEMORY = _text("TFDIST_BENCH_MEMORY", "shared memory of `tfdist bench all-reduce`", set_by="tfdist")
BENCH_RANKS = _integer("TFDIST_BENCH_RANKS", "ranks of Open MPI in `tfdist bench all-reduce`", 1, set_by="tfdist")

ALL: tuple[Variable[Any], ...] = tuple(one for one in list(globals().values()) if isinstance(one, Variable))
