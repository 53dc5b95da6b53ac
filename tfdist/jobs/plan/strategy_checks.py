"""Complete a request, and check it against its strategy, by the table of strategies."""

from tfdist.cluster import strategy_table
from tfdist.errors import ConfigError, MissingDependencyError
from tfdist.jobs.plan.launch_config import DEFAULT_SERVERS, LaunchConfig
from tfdist.validation import integer
from tfdist.variables import COLLECTIVES

_SERVERS = "parameter_servers (--parameter-servers)"


def has_chief(strategy: str | None, *, parameter_servers: int | None = None) -> bool:
    """Return whether a chief runs the script for the strategy; check that only such a strategy is given servers.

    Example:
        >>> has_chief("parameter-server", parameter_servers=2), has_chief("mirrored"), has_chief(None)
        (True, False, False)
    """
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
    """Return how many parameter servers the job has: as many as are asked for, or the default; 0 without a chief.

    Example:
        >>> server_count("parameter-server"), server_count("mirrored")
        (1, 0)
    """
    if not has_chief(strategy, parameter_servers=parameter_servers):
        return 0
    return DEFAULT_SERVERS if parameter_servers is None else parameter_servers


def check_strategy(config: LaunchConfig) -> None:
    """Check that the strategy is registered and runs in that many processes, of as many replicas.

    Example:
        >>> check_strategy(LaunchConfig(target="train.py", strategy="multi-worker", workers=2))
    """
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
    """Check that what the strategy and its collectives need is installed, before a worker is started that finds out.

    Example:
        >>> require_installed(LaunchConfig(target="train.py", strategy="multi-worker", workers=2))
    """
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
