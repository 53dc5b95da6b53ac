"""What to start: the request behind ``tfdist run``, valid once it exists."""

import os
from dataclasses import dataclass

from tfdist.errors import ConfigError
from tfdist.validation import boolean, integer, number, shown, text

MAX_WORKERS = 1024  # on one host; more is a typing error
MAX_RESTARTS = 100  # of one run; a job that ends more often has a fault that another start does not cure


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """A script and how many local workers run it.

    Attributes:
        target: path of a Python script, or the name of a module.
        is_module: whether ``target`` is a module, started as ``python -m`` does.
        arguments: what the script gets after its name, untouched.
        workers: number of workers, at least 1.
        parameter_servers: 0, and every worker runs the script; or as many are started, a chief runs the script, and
            workers and parameter servers are tasks that serve it.
        max_restarts: how often a job with parameter servers starts a worker again, over all workers, and how often it
            starts again as a whole.
        strategy: registered name for the workers' ``tfdist.strategies.from_environment()``, or None.
        replicas_per_worker: devices that each worker uses, or None for all that it has.
        grace_seconds: between the request to end and SIGKILL.

    Raises:
        ConfigError: a value that cannot be.

    Example:
        >>> LaunchConfig(target="train.py", workers=2).grace_seconds
        10.0
    """

    target: str
    is_module: bool = False
    arguments: tuple[str, ...] = ()
    workers: int = 1
    strategy: str | None = None
    replicas_per_worker: int | None = None
    grace_seconds: float = 10.0
    parameter_servers: int = 0
    max_restarts: int = 0

    def __post_init__(self) -> None:
        text("script", self.target)
        boolean("is_module", self.is_module)
        integer("workers (-n)", self.workers, minimum=1, maximum=MAX_WORKERS)
        if self.strategy is not None:
            text("strategy", self.strategy)
        if self.replicas_per_worker is not None:
            integer("replicas_per_worker (--replicas-per-worker)", self.replicas_per_worker, minimum=1)
        number("grace_seconds (--grace-seconds)", self.grace_seconds, minimum=0, maximum=86_400)
        integer("parameter_servers (--parameter-servers)", self.parameter_servers, minimum=0, maximum=MAX_WORKERS)
        integer("max_restarts (--max-restarts)", self.max_restarts, minimum=0, maximum=MAX_RESTARTS)
        if self.max_restarts and not self.parameter_servers:
            raise ConfigError(
                f"max_restarts (--max-restarts) is {self.max_restarts} without parameter servers; it must be 0: a job "
                "of workers that wait for each other ends with its first failure. Leave it out."
            )


def require_script(config: LaunchConfig) -> None:
    """Check that the script is a file that can be read; a module is looked up by the workers.

    Raises:
        ConfigError: there is none, or it is a directory, or reading is not permitted.

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
