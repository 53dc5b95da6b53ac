"""The cluster and the place of this process in it, as frozen values that are valid once they exist."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.validation import integer, one_of, parse_integer, shown, text
from tfdist.variables import WORKERS

TASK_TYPES = ("chief", "worker", "ps", "evaluator")


@dataclass(frozen=True, kw_only=True)
class TaskId:
    """A task as TensorFlow names it: its type and its index among the tasks of that type.

    Attributes:
        type: "chief", "worker", "ps" or "evaluator".
        index: the index of the task, at least 0; a chief's is always 0.

    Raises:
        ConfigError: the type is unknown, or the index is impossible.

    Example:
        >>> str(TaskId(type="worker", index=1))
        'worker 1'
    """

    type: str
    index: int

    def __post_init__(self) -> None:
        one_of("task type", self.type, TASK_TYPES)
        integer("task index", self.index, minimum=0, maximum=0 if self.type == "chief" else None)

    def __str__(self) -> str:
        return self.type if self.type == "chief" else f"{self.type} {self.index}"


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The cluster as one of its processes sees it.

    In a cluster with parameter servers the chief coordinates: it runs the script, hands out the work, and is not a
    worker.
    In any other cluster the chief is worker 0.

    Attributes:
        num_workers: the number of workers that train together, at least 1; a coordinating chief is not counted.
        worker_index: the index of this process among the workers, from 0; -1 if it is not a worker (see ``task``).
        local_index: the index of this process among the workers on this host, from 0.
        local_workers: the number of workers on this host.
        addresses: "host:port" of every worker, by worker index; empty if the environment does not give them.
        source: the source of the description, for messages: "tfdist run", "TF_CONFIG", "Slurm", ..., "alone".
        job_id: a text that is the same on every worker of a job, or None if the environment has none.
        task: the task of this process, as TensorFlow names it; by default the worker ``worker_index``.
        parameter_servers: "host:port" of every parameter server.
        chief: "host:port" of the coordinating chief; None if the chief is worker 0.

    Raises:
        ConfigError: the values contradict each other.

    Example:
        >>> Cluster(num_workers=2, worker_index=0, addresses=("a:2222", "b:2222")).is_chief
        True
    """

    num_workers: int = 1
    worker_index: int = 0
    local_index: int = 0
    local_workers: int = 1
    addresses: tuple[str, ...] = ()
    source: str = "alone"
    job_id: str | None = None
    task: TaskId = field(default=None)  # type: ignore[assignment]  # never None once constructed
    parameter_servers: tuple[str, ...] = ()
    chief: str | None = None

    def __post_init__(self) -> None:
        integer("num_workers", self.num_workers, minimum=1)
        if cast("TaskId | None", self.task) is None:
            object.__setattr__(self, "task", TaskId(type="worker", index=integer("worker_index", self.worker_index)))
        if self.chief is not None and not self.parameter_servers:
            raise ConfigError(
                f"chief is {shown(self.chief)} without parameter_servers; it must be None where the chief is worker 0. "
                "Give its address as the first of addresses.",
                name="chief",
                received=self.chief,
            )
        if self.task.type == "worker" or (self.task.type == "chief" and self.chief is None):
            integer("worker_index", self.worker_index, minimum=0, maximum=self.num_workers - 1)
        elif self.worker_index != -1:
            raise ConfigError(
                f"worker_index is {self.worker_index!r}; it must be -1 for {self.task}, which is no worker.",
                name="worker_index",
                received=self.worker_index,
            )
        integer("local_workers", self.local_workers, minimum=1, maximum=self.num_workers)
        integer("local_index", self.local_index, minimum=0, maximum=self.local_workers - 1)
        if self.addresses and len(self.addresses) != self.num_workers:
            raise ConfigError(
                f"addresses has {len(self.addresses)} entries, {shown(self.addresses)}; it must have one for each of "
                f"the {self.num_workers} workers, or none.",
                name="addresses",
                received=self.addresses,
            )
        chief = () if self.chief is None else (self.chief,)
        distinct_addresses("addresses", (*self.addresses, *self.parameter_servers, *chief))
        text("source", self.source)

    @property
    def is_worker(self) -> bool:
        """Whether this process trains: neither a parameter server, nor an evaluator, nor a chief that coordinates.

        Example:
            >>> Cluster(num_workers=2, worker_index=1).is_worker
            True
        """
        return self.worker_index >= 0

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files and shows progress: the coordinator, or else worker 0.

        Example:
            >>> Cluster(num_workers=2, worker_index=1).is_chief
            False
        """
        return self.task.type == "chief" or (self.chief is None and self.worker_index == 0)

    def require_addresses(self) -> tuple[str, ...]:
        """Return ``addresses``, or raise if they are missing; for strategies whose workers connect to each other.

        Raises:
            ConfigError: there are several workers, and the environment does not give their addresses; the message says
                how to supply them.

        Example:
            >>> Cluster(num_workers=1).require_addresses()
            ()
        """
        if self.num_workers > 1 and not self.addresses:
            raise ConfigError(
                f"{self.source} says that this is worker {self.worker_index} of {self.num_workers}, but not where the "
                "workers listen. Set TFDIST_WORKERS to the same list on every worker, one host:port for each in the "
                "order of their ranks (mpirun -x TFDIST_WORKERS=node1:40001,node2:40001 ...); when all workers are on "
                "one host, TFDIST_COORDINATOR=127.0.0.1:PORT is enough: worker i listens at PORT + i.",
                name=WORKERS.name,
            )
        return self.addresses


def split_address(name: str, address: object) -> tuple[str, int]:
    """Return host and port of "host:port"; the brackets of an IPv6 host, "[::1]:2222", are removed."""
    if not isinstance(address, str):
        raise ConfigTypeError(
            f"{name} is {shown(address)} ({type(address).__name__}); it must be a text host:port.",
            name=name,
            received=shown(address),
        )
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    if not colon or not bare or "/" in address or any(c.isspace() for c in address) or (":" in bare and not bracketed):
        raise ConfigError(
            f"{name} is {shown(address)}; it must be host:port, such as node1:2222 or [::1]:2222, with no scheme and"
            " no space.",
            name=name,
            received=address,
        )
    return bare, parse_integer(f"the port of {name} ({shown(address)})", port, minimum=1, maximum=65535)


def distinct_addresses(name: str, addresses: Iterable[object]) -> tuple[str, ...]:
    """Return the addresses as a tuple; each must have the form host:port, and none may occur twice."""
    seen: dict[tuple[str, int], int] = {}
    result = []
    for position, address in enumerate(addresses):
        key = split_address(f"{name}[{position}]", address)
        if key in seen:
            raise ConfigError(
                f"{name}[{position}] is {shown(address)}, the same as {name}[{seen[key]}]; each task must have an "
                "address of its own. Give tasks on one host different ports.",
                name=f"{name}[{position}]",
                received=address,
            )
        seen[key] = position
        result.append(str(address))
    return tuple(result)


def position_on_host(addresses: tuple[str, ...], index: int) -> tuple[int, int]:
    """Return (local_index, local_workers) of worker ``index``: workers with the same host share a machine."""
    hosts = [address.rpartition(":")[0] for address in addresses]
    same = [i for i, host in enumerate(hosts) if host == hosts[index]]
    return same.index(index), len(same)
