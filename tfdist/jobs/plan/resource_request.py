"""Resource requests to a launcher that chooses the hosts itself: pure values.

Every process of the job, whatever its role, is one bundle of these resources.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfdist.errors import ConfigError
from tfdist.validation import integer, number, shown

PACKINGS = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")  # as Ray's placement groups have them


class NoRoomError(ConfigError):
    """The nodes have not what is asked for.

    Attributes:
        room: for how many processes they have.
    """

    def __init__(self, message: str, room: int) -> None:
        super().__init__(message)
        self.room = room


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What each process needs, and where it is asked for.

    Attributes:
        cpus: of each process.
        gpus: of each process; each sees its own alone.
        memory: of each process, in bytes; 0 for what there is.
        packing: on few nodes, or on many: one of PACKINGS.
        address: of the cluster; empty: the one that Ray finds.
        wait_seconds: how long the cluster may take to have room; None: as long as what runs there has it, and not at
            all for what the nodes do not have.

    Example:
        >>> Demand(cpus=2, memory=1 << 30).resources
        {'CPU': 2, 'memory': 1073741824}
    """

    cpus: float = 1
    gpus: float = 0
    memory: int = 0
    packing: str = "PACK"
    address: str = ""
    wait_seconds: float | None = None

    def __post_init__(self) -> None:
        number("cpus (--cpus-per-worker)", self.cpus, minimum=0)
        number("gpus (--gpus-per-worker)", self.gpus, minimum=0)
        integer("memory (--memory-per-worker)", self.memory, minimum=0)
        if self.wait_seconds is not None:
            number("wait_seconds (--wait-seconds)", self.wait_seconds, minimum=0, maximum=30 * 86_400)
        if self.packing not in PACKINGS:
            raise ConfigError(f"packing is {shown(self.packing)}; it must be one of {', '.join(PACKINGS)}.")
        if not self.resources:
            raise ConfigError("cpus, gpus and memory are all 0; a process needs one of them. Give --cpus-per-worker 1.")
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise ConfigError(f"gpus (--gpus-per-worker) is {self.gpus:g}; above 1 it must be whole.")

    @property
    def resources(self) -> dict[str, float]:
        """What one bundle has, without what it has nothing of."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory}
        return {name: amount for name, amount in wanted.items() if amount}


def room(bundle: Mapping[str, float], nodes: Sequence[Mapping[str, float]]) -> int:
    """Return how many bundles go onto the nodes.

    Example:
        >>> room({"CPU": 2, "GPU": 1}, [{"CPU": 5, "GPU": 1}, {"CPU": 4, "GPU": 4}, {"CPU": 64}])
        3
    """
    return sum(min(int(node.get(name, 0) / amount + 1e-6) for name, amount in bundle.items()) for node in nodes)


def in_words(resources: Mapping[str, float]) -> str:
    """Return resources as text.

    Example:
        >>> in_words({"GPU": 1.0, "CPU": 4.0, "memory": 1.5 * 2**30, "node:10.0.0.1": 1.0})
        'CPU 4, GPU 1, memory 1.5 GiB'
    """
    said = [f"{name} {resources[name]:g}" for name in ("CPU", "GPU") if name in resources]
    if "memory" in resources:
        said.append(f"memory {resources['memory'] / 2**30:.3g} GiB")
    return ", ".join(said) or "nothing"


def too_few(count: int, bundle: Mapping[str, float], nodes: Mapping[str, Mapping[str, float]]) -> str:
    """Return what was asked for, and what there is, as an error of ours says it.

    Example:
        >>> print(too_few(3, {"CPU": 2}, {"10.0.0.1": {"CPU": 4}}).partition(". Ask")[0])
        3 processes of CPU 2 each are asked for, and the nodes of the cluster have room for 2 (10.0.0.1: CPU 4)
    """
    have = "; ".join(f"{address}: {in_words(node)}" for address, node in nodes.items()) or "it has none"
    return (
        f"{count} processes of {in_words(bundle)} each are asked for, and the nodes of the cluster have room for "
        f"{room(bundle, list(nodes.values()))} ({have}). Ask for less (-n, --cpus-per-worker, --gpus-per-worker, "
        "--memory-per-worker), or, where nodes are still to come, say how long to wait for them: --wait-seconds 600"
    )
