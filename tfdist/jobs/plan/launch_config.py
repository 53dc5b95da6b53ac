"""The request behind ``tfdist run``. A request that exists is valid."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from tfdist.cluster import strategy_table
from tfdist.errors import ConfigError, ConfigTypeError, MissingDependencyError
from tfdist.jobs.plan.host_plan import Remote
from tfdist.jobs.plan.worker_spec import EXIT_SECONDS
from tfdist.options import check, option
from tfdist.validation import counted, integer, mismatch, parsed_script, shown, text
from tfdist.variables import ALL_LOGS, COLLECTIVES, MESH, NO_WARM, REPLICAS_PER_WORKER, SHARES, STRATEGY, parsed_shares

MAX_WORKERS = 1024  # the most on one host; a larger number is probably a typing error
COPY_BANDWIDTH = 64 << 20  # half of a 1 Gbit/s link
DAY_SECONDS = 86_400
DEFAULT_SERVERS = 1  # parameter servers if no number is given
DEFAULT_RESTARTS = 3  # of a job with parameter servers
MAX_RESTARTS = 10_000  # of one run; a failure that repeats at the same step ends a job much earlier
_SERVERS = "parameter_servers (--parameter-servers)"
_MESHES = ("model-parallel", "pipeline")
_UNGROUPED = ("mirrored", "multi-worker", "sharded-data-parallel")  # every replica has a part of each batch


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """A script, and the workers that run it.

    Attributes:
        target: path of a Python script, or the name of a module.
        is_module: whether ``target`` is a module, which is started as ``python -m`` does.
        arguments: the arguments of the script, passed on unchanged.
        workers: number of workers, at least 1.
        shares: the parts of a batch that replicas take, such as "3,1"; None: equal parts.
        parameter_servers: number of parameter servers. With 0 every worker runs the script. Otherwise a chief runs it,
            and workers and parameter servers are tasks that serve the chief.
        max_restarts: how often the workers may be restarted after a failure. With parameter servers: how many restarts
            of single workers are allowed in all, and how many of the whole job.
        min_workers: the smallest number of workers with which the job continues; ``workers`` by default.
        max_workers: the largest number of workers that can be requested; ``workers`` by default.
        hang_seconds: the least time that a step may take before the workers count as hanging.
        stall_seconds: the time that any other phase that a worker reports may take.
        exit_seconds: the time that threads and functions of `atexit` may take after the script has ended. Then the
            process is killed, and the script's exit code counts.
        standby: whether a second set of workers runs the script up to its first step, and takes over after a failure.
        evict_stragglers: whether a worker that stays slow is replaced by a standby, or left out; needs ``monitor``.
        evict_seconds: how long a worker must have been slow; the time doubles with each eviction.
        event_file: file to which events are appended as JSON lines, or None.
        monitor: whether workers record the parts of their steps, and the agent reports what limits the job.
        trace: file to which the last steps of all workers are written as a chrome trace, or None; needs ``monitor``.
        exporters: receivers of the job's figures while it runs, such as "tensorboard:logs"; needs ``monitor``.
        no_warm: whether to start new worker processes even if a process of `tfdist warm` could fork them.
        all_logs: whether to show known log noise of TensorFlow, too.
        strategy: registered name for the workers' ``tfdist.strategies.from_environment()``, or None.
        replicas_per_worker: devices that each worker uses; None: all of its devices.
        gpus_per_worker: number of GPUs of its host that each worker has for itself; None: each worker sees all.
        grace_seconds: time between the request to end and SIGKILL.
        remote: the hosts on which the processes run, and the way to reach them; None: this host.
        copy_bandwidth: the most bytes per second of its state that a host sends to the memory of another; 0: none.
        environment: variables for all processes, added to those of this process; variables that tfdist sets take
            precedence.

    Raises:
        ConfigError: a value is invalid.

    Example:
        >>> LaunchConfig(target="train.py", workers=2).grace_seconds
        10.0
    """

    target: str
    is_module: bool = option(False, "SCRIPT is the name of a module.", flags=("-m",))
    arguments: tuple[str, ...] = ()
    workers: int = option(
        1,
        "Number of workers.  [default: 1, or as HOSTS have]",
        flags=("-n", "--workers"),
        metavar="N",
        minimum=1,
        maximum=MAX_WORKERS,
        may_be_unset=True,
    )
    strategy: str | None = option(
        None, "Strategy of tfdist.strategies.from_environment().", kind=str, metavar="NAME", variable=STRATEGY.name
    )
    replicas_per_worker: int | None = option(
        None,
        "Devices of each worker; all by default.",
        kind=int,
        metavar="R",
        minimum=1,
        variable=REPLICAS_PER_WORKER.name,
    )
    shares: str | None = option(
        None, "Parts of a batch, as 3,1; or measured.", kind=str, metavar="W,W", variable=SHARES.name
    )
    gpus_per_worker: int | None = option(
        None, "GPUs of its host that each worker sees.", kind=int, metavar="G", minimum=0, is_hidden=True
    )
    grace_seconds: float = option(
        10.0,
        "Seconds from the request to end to SIGKILL: 10.",
        metavar="S",
        minimum=0,
        maximum=DAY_SECONDS,
        is_hidden=True,
    )
    parameter_servers: int = option(
        0,
        f"Number of parameter servers.  [default: {DEFAULT_SERVERS}]",
        metavar="M",
        minimum=0,
        maximum=MAX_WORKERS,
        may_be_unset=True,
    )
    max_restarts: int = option(
        0,
        f"Restarts after failures.  [default: 0; with servers {DEFAULT_RESTARTS}]",
        metavar="K",
        minimum=0,
        maximum=MAX_RESTARTS,
        may_be_unset=True,
    )
    min_workers: int | None = option(
        None, "Fewest workers with which the job continues.  [default: N]", kind=int, metavar="A"
    )
    max_workers: int | None = option(None, "Most workers that can be requested.  [default: N]", kind=int, metavar="B")
    hang_seconds: float = option(2.0, "Least time before a step hangs.", metavar="S", above=0, maximum=DAY_SECONDS)
    stall_seconds: float = option(
        1800.0,
        "Seconds until anything but a step is a hang: 1800.",
        metavar="S",
        above=0,
        maximum=30 * DAY_SECONDS,
        is_hidden=True,
    )
    exit_seconds: float = option(
        EXIT_SECONDS,
        "Seconds for threads after the script has ended: 300.",
        metavar="S",
        above=0,
        maximum=30 * DAY_SECONDS,
        is_hidden=True,
    )
    standby: bool = option(False, "Keep a second set of workers ready to take over.")
    evict_stragglers: bool = option(False, "Replace a worker that stays slow, or continue without it.")
    evict_seconds: float = option(
        30.0, "Seconds until a slow worker is evicted: 30.", metavar="S", above=0, maximum=DAY_SECONDS, is_hidden=True
    )
    event_file: str | None = option(None, "Append failures and recoveries as JSON lines.", kind=Path, metavar="PATH")
    monitor: bool = option(False, "Report what limits the job, at the end and at SIGUSR1.")
    trace: str | None = option(None, "Write the last steps as a chrome trace.", kind=Path, metavar="FILE")
    exporters: tuple[str, ...] = option(
        (), "tensorboard:DIR, prometheus:PORT, mlflow:URI; several.", flags=("--export",), metavar="WHERE"
    )
    no_warm: bool = option(False, "Do without the process of `tfdist warm`.", is_hidden=True, variable=NO_WARM.name)
    all_logs: bool = option(False, "Show all logs of TensorFlow, noise included.", variable=ALL_LOGS.name)
    remote: Remote | None = None
    copy_bandwidth: int = option(
        COPY_BANDWIDTH,
        "Bytes a second for copies of the state on other hosts: 64M.",
        metavar="SIZE",
        minimum=0,
        may_be_unset=True,
        is_hidden=True,
    )
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        text("script", self.target)
        check(self)
        if self.min_workers is not None:
            integer("min_workers (--min-workers)", self.min_workers, minimum=1, maximum=self.workers)
        if self.max_workers is not None:
            integer("max_workers (--max-workers)", self.max_workers, minimum=self.workers, maximum=MAX_WORKERS)
        self._require_shares()
        if self.standby and (self.max_restarts == 0 or self.parameter_servers):
            self._refuse(
                "standby",
                f"standby (--standby) is given with max_restarts (--max-restarts) {self.max_restarts} and "
                f"{self.parameter_servers} parameter servers; a second set of workers takes the place of workers that "
                "failed and may be started again, and tasks of parameter-server jobs are ready at once. Give "
                "--max-restarts, and no --parameter-servers.",
            )
        self._require_eviction()
        require_variables("environment", self.environment)
        if self.parameter_servers and (self.min_workers is not None or self.max_workers is not None):
            self._refuse(
                "parameter_servers",
                f"min_workers (--min-workers) is {self.min_workers} and max_workers (--max-workers) "
                f"{self.max_workers} with parameter servers; the number of their workers cannot be changed. Leave "
                "both out.",
            )

    def _require_shares(self) -> None:
        if self.shares is None:
            return
        parsed = parsed_shares("shares (--shares)", self.shares)
        if self.parameter_servers:
            self._refuse(
                "shares",
                f"shares (--shares) is {self.shares} with {self.parameter_servers} parameter servers; a chief hands "
                "equal parts of a batch to workers. Leave one of the two out.",
            )
        if parsed != "measured" and self.range != (self.workers, self.workers):
            self._refuse(
                "shares",
                f"shares (--shares) is {self.shares}, and the number of workers may change (--min-workers, "
                "--max-workers); a weight belongs to each. Leave one of the two out.",
            )
        if parsed != "measured" and not self._may_have_replicas(len(parsed)):
            each = "" if self.replicas_per_worker is None else f" with {counted(self.replicas_per_worker, 'replica')}"
            self._refuse(
                "shares",
                f"shares (--shares) is {self.shares}, {counted(len(parsed), 'weight')}, and the job has "
                f"{counted(self.workers, 'worker')} (-n){each}. Give a positive whole number for each replica, in the "
                "order of workers.",
            )

    def _may_have_replicas(self, count: int) -> bool:
        """Whether a batch may have so many parts, as far as the launcher knows.

        A mesh divides a batch along one of its axes, and groups of the ring divide it within a group.
        """
        if self.strategy in _MESHES or MESH.text(self.environment):
            return True
        if self.strategy in _UNGROUPED:
            replicas = self.replicas_per_worker
            return count % self.workers == 0 if replicas is None else count == self.workers * replicas
        return self.workers == 1 or math.gcd(count, self.workers) > 1

    def _refuse(self, field: str, text: str) -> NoReturn:
        name = f"{field} (--{field.replace('_', '-')})"
        raise ConfigError(text, name=name, received=getattr(self, field))

    def _require_eviction(self) -> None:
        if not self.evict_stragglers:
            return
        if self.parameter_servers:
            self._refuse(
                "parameter_servers",
                f"evict_stragglers (--evict-stragglers) is given with {self.parameter_servers} parameter servers; "
                "their workers do not wait for each other, and a slow one holds up no other. Leave it out.",
            )
        if self.remote is not None and not self.standby:
            self._refuse(
                "standby",
                "evict_stragglers (--evict-stragglers) is given on several hosts (--hosts or --engine) without standby "
                "(--standby); workers fill the hosts in their order, so one worker fewer would not be the slow one. "
                "Give --standby and --max-restarts, so that another process takes the slow one's place, or leave it "
                "out: --monitor names slow workers.",
            )
        if not self.monitor:
            self._refuse(
                "monitor",
                "evict_stragglers (--evict-stragglers) is given without monitor (--monitor); slow workers are found "
                "in what --monitor records. Give both.",
            )
        if not self.standby and self.range[0] >= self.workers:
            self._refuse(
                "standby",
                f"evict_stragglers (--evict-stragglers) is given with {counted(self.workers, 'worker')} (-n), "
                f"min_workers (--min-workers) {self.range[0]} and no standby (--standby); a slow worker can be "
                "replaced by a standby, or the job continues with fewer workers. Give --standby and --max-restarts, "
                "or --min-workers below -n.",
            )

    @property
    def range(self) -> tuple[int, int]:
        """The smallest and the largest number of workers.

        Example:
            >>> LaunchConfig(target="train.py", workers=2, max_workers=3).range
            (2, 3)
        """
        return self.min_workers or self.workers, self.max_workers or self.workers

    @property
    def is_elastic(self) -> bool:
        """True if workers may be started again."""
        return self.max_restarts > 0 or self.range[0] < self.range[1]


def require_variables(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise mismatch(name, value, "a dict such as {'OMP_NUM_THREADS': '1'}.", kind=ConfigTypeError)
    for variable, text_of_it in value.items():
        if not isinstance(variable, str) or not isinstance(text_of_it, str):
            raise ConfigTypeError(
                f"{name} has {shown(variable)}: {shown(text_of_it)}; names and values of variables are text. Write "
                f"{{{str(variable)!r}: {str(text_of_it)!r}}}.",
                name=name,
                received=shown(variable),
            )
        if not variable or "=" in variable or "\0" in variable + text_of_it:
            raise ConfigError(
                f"{name} has {shown(variable)}: {shown(text_of_it)}; a name is not empty and has no '=', and neither "
                "has a NUL character. Leave it out.",
                name=name,
                received=shown(variable),
            )


def require_valid_script(config: LaunchConfig) -> None:
    """Check what `require_script` checks, and that the script is valid Python: for commands that run it several times.

    Example:
        >>> require_valid_script(LaunchConfig(target="json.tool", is_module=True))
    """
    require_script(config)
    if not config.is_module:
        parsed_script("script", config.target)


def require_script(config: LaunchConfig) -> None:
    """Check that the script is a readable file. A module is not checked here, because the workers look it up.

    Args:
        config: the request.

    Raises:
        ConfigError: the file does not exist, is a directory, or may not be read.

    Example:
        >>> require_script(LaunchConfig(target="json.tool", is_module=True))
    """
    path = config.target
    if config.is_module:
        return
    if os.path.isdir(path):
        raise ConfigError(
            f"script is {shown(path)}, a directory; it must be a Python file. To run a package: -m package."
        )
    if not os.path.exists(path):
        raise ConfigError(
            f"script is {shown(path)}, and there is no such file in {os.getcwd()}. Give the path of a Python file, or"
            " -m package.module."
        )
    if not os.access(path, os.R_OK):
        raise ConfigError(f"script is {shown(path)}, which may not be read. Permit it: chmod u+r {path}")


def has_chief(strategy: str | None, *, parameter_servers: int | None = None) -> bool:
    """True if a chief runs the script for this strategy; check that no other strategy has parameter servers."""
    if strategy is not None and strategy_table.get(strategy).processes == "chief":
        if parameter_servers is not None:
            integer(_SERVERS, parameter_servers, minimum=1, hint="They hold the variables.")
        return True
    if parameter_servers is not None:
        able = ", ".join(name for name in strategy_table.names() if strategy_table.get(name).processes == "chief")
        received = "no strategy is chosen" if strategy is None else f"the strategy is {strategy!r}"
        raise ConfigError(
            f"{_SERVERS} is {parameter_servers}, but {received}; only {able} has it. Leave it out, or choose "
            f"--strategy {able}."
        )
    return False


def server_count(strategy: str | None, *, parameter_servers: int | None = None) -> int:
    if not has_chief(strategy, parameter_servers=parameter_servers):
        return 0
    return DEFAULT_SERVERS if parameter_servers is None else parameter_servers


def check_strategy(config: LaunchConfig) -> None:
    if config.strategy is None:
        return
    entry = strategy_table.get(config.strategy)
    most = config.range[1]
    if entry.processes == "one" and most > 1:
        option = "workers (-n)" if config.workers == most else "max_workers (--max-workers)"
        raise ConfigError(
            f"{option} is {most}, but the strategy {entry.name!r} runs in one process: its replicas are the "
            f"devices of that process. For {most} replicas: `tfdist run --strategy {entry.name} "
            f"--replicas-per-worker {most} SCRIPT`, in Python workers=1 and replicas_per_worker={most}."
        )
    replicas = config.replicas_per_worker or 1
    if replicas > 1 and not entry.may_have_several:
        raise ConfigError(
            f"replicas_per_worker (--replicas-per-worker) is {replicas}, but under the strategy {entry.name!r} each "
            f"process has one replica. For {config.workers * replicas} replicas: `tfdist run --strategy {entry.name} "
            f"-n {config.workers * replicas} SCRIPT`, in Python workers={config.workers * replicas}."
        )


def require_installed(config: LaunchConfig) -> None:
    """Check that the strategy's packages are installed, before workers are started."""
    wanted = (
        [] if config.strategy is None else [(strategy_table.get(config.strategy), f"the strategy {config.strategy!r}")]
    )
    if COLLECTIVES.read(config.environment) == "horovod":
        wanted.append((strategy_table.get("ring"), "collectives 'horovod'"))  # the ring is Horovod's
    for entry, what in wanted:
        if entry.needs is not None and not entry.is_installed:
            package, cure = entry.needs
            verb = "needs" if entry.name == config.strategy else "need"
            raise MissingDependencyError(f"{what} {verb} {package}, which is not installed here. Install it: {cure}")
