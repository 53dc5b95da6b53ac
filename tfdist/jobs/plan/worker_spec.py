"""One process of a job for a placement to start, as a frozen value."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tfdist.cluster.cluster_values import TaskId
from tfdist.errors import ConfigError
from tfdist.variables import JOB_KEY, LOCAL_WORKERS

EXIT_SECONDS = 300.0
BOTH = frozenset({1, 2})  # standard output and standard error

# What gRPC reads, in this order and in lower case only: with a proxy it sends even 127.0.0.1 there, and waits for ever.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_EXCEPTIONS = ("no_grpc_proxy", "no_proxy")
VISIBLE = "CUDA_VISIBLE_DEVICES"
#: TensorFlow's variable for taking GPU memory as it is needed, and not all of it at the start
GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
_DRIVER = "/proc/driver/nvidia/gpus"  # one entry for each


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """The command, the environment and the place of one process.

    Attributes:
        index: the number of the process in the job, from 0.
        task: its task in the cluster, whose text begins the lines that the process writes.
        argv: the command.
        environment: variables that it gets on top of those of the agent.
        removed: variables of the agent that it does not get.
        error_file: the file in which it records its failure.
        host: the name at which the others reach its host; empty if no process has to reach it.
        port: the port on which it listens there; 0 with an empty host.
        peers: the hosts of all processes of the job, which it reaches without a proxy.
        key: the job's key, handed to it in its environment; empty: it gets none. The key is never shown.
        gpus: the positions of the GPUs that it sees among those of its host; None: all of them.
        exit_seconds: the time that its threads and functions of `atexit` may take after the script has ended.
        piped: its streams that go through the agent: standard output (1) and error (2), error alone, or none. If its
            output is not piped, it has the agent's input, too.
    """

    index: int
    task: TaskId
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    error_file: Path
    host: str = ""
    port: int = 0
    peers: tuple[str, ...] = ()
    key: str = field(default="", repr=False)
    gpus: tuple[int, ...] | None = None
    exit_seconds: float = EXIT_SECONDS
    piped: frozenset[int] = BOTH

    @property
    def address(self) -> str:
        """The address at which the others reach the process, as "host:port"; empty if none has to.

        Example:
            >>> task = TaskId(type="worker", index=0)
            >>> WorkerSpec(index=0, task=task, argv=(), error_file=Path("e"), host="n1", port=4001).address
            'n1:4001'
        """
        return f"{self.host}:{self.port}" if self.host else ""

    def environ(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The complete environment, given that of the agent.

        Example:
            >>> me, own = TaskId(type="worker", index=0), {"A": "1"}
            >>> spec = WorkerSpec(index=0, task=me, argv=(), environment=own, removed=("B",), error_file=Path("e"))
            >>> spec.environ({"B": "2", "C": "3"})
            {'C': '3', 'A': '1'}
        """
        # an outer job's key is none of this one's
        removed = (*self.removed, JOB_KEY.name)
        kept = {name: value for name, value in inherited.items() if name not in removed}
        own = {JOB_KEY.name: self.key} if self.key else {}
        growth = {GROWTH: "true"} if self._shares_gpus else {}
        return {**growth, **kept, **around_the_proxy(kept, self.peers), **self.environment, **own}

    @property
    def _shares_gpus(self) -> bool:
        """Whether other workers of its host see the same GPUs."""
        return self.gpus is None and (LOCAL_WORKERS.read(self.environment) or 1) > 1


def around_the_proxy(environ: Mapping[str, str], hosts: Sequence[str]) -> dict[str, str]:
    """The variable that exempts workers' hosts from a configured proxy.

    Example:
        >>> around_the_proxy({"http_proxy": "http://proxy:3128", "no_proxy": "intranet"}, ["127.0.0.1"])
        {'no_grpc_proxy': 'intranet,127.0.0.1'}
        >>> around_the_proxy({}, ["127.0.0.1"])
        {}
    """
    if not hosts or not any(environ.get(name) for name in _PROXIES):
        return {}
    known = next((environ[name] for name in _EXCEPTIONS if environ.get(name)), "")
    return {"no_grpc_proxy": ",".join(filter(None, [known, *dict.fromkeys(hosts)]))}


def gpus_of(environ: Mapping[str, str], *, driver: str = _DRIVER) -> list[str]:
    """Return the GPUs that a process with this environment may use, by the names that CUDA reads.

    Example:
        >>> gpus_of({"CUDA_VISIBLE_DEVICES": "0,3"}), gpus_of({"CUDA_VISIBLE_DEVICES": "-1"})
        (['0', '3'], [])
    """
    given = environ.get(VISIBLE)
    if given is None:
        return [str(number) for number in range(len(os.listdir(driver)) if os.path.isdir(driver) else 0)]
    words = [word.strip() for word in given.split(",")]
    named = words[: words.index("-1")] if "-1" in words else words  # CUDA reads no further
    return [word for word in named if word]


def visible_gpus(places: Sequence[int], environ: Mapping[str, str], *, driver: str = _DRIVER) -> str:
    given, devices = environ.get(VISIBLE), gpus_of(environ, driver=driver)
    source = f"the driver lists {len(devices)} ({driver})" if given is None else f"{VISIBLE} is {given!r}"
    if places and places[-1] >= len(devices):
        raise ConfigError(
            f"a worker is to have GPU {', '.join(map(str, places))} of its host (--gpus-per-worker), counted from 0, "
            f"and there {source}. Run fewer workers on a host, or ask for fewer GPUs; {VISIBLE} says which there are.",
            name=None if given is None else VISIBLE,
            received=len(devices) if given is None else given,
            path=driver if given is None else None,
        )
    return ",".join(devices[place] for place in places)
