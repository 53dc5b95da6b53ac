"""The table of strategies by name, with the number of processes that each needs. Loads no TensorFlow.

Each strategy has one entry. The launcher plans processes by the table, the command line lists it, the equivalence
matrix proves what it says, and `tfdist.strategies.create` finds classes in it.

Example:
    >>> get("multi-worker").processes
    'workers'
"""

import importlib.util
from dataclasses import dataclass
from typing import Literal

from tfdist.errors import ConfigError
from tfdist.validation import nearest

__all__ = ["Entry", "get", "names"]

#: the backends that may carry tensors between processes; the first is the default
COLLECTIVES = ("auto", "tensorflow", "native", "horovod")
#: the backends that may carry tensors between the replicas of one process; the first is the default
REPLICA_COLLECTIVES = ("tensorflow", "native", "auto")
#: begins a text of layouts: "auto" for the weights of the layers named behind it, separated by commas
AUTO_OF = "auto:"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The entry of one registered strategy.

    `processes`: "one" process whose devices are the replicas, "workers" that each run the script, or a "chief" that
    runs it and is served by workers and parameter servers. `needs`: a package, and the command that installs it.
    `collectives`: the backends, the default first. `is_replicated`: whether each replica has all weights and slots, so
    that a custom loop needs only sums. `may_meet_seldom`: whether workers may have weights of their own between
    synchronizations (`synchronization`).
    """

    name: str
    class_name: str
    processes: Literal["one", "workers", "chief"]
    summary: str
    needs: tuple[str, str] | None = None
    collectives: tuple[str, ...] = ()
    is_replicated: bool = True
    may_have_several: bool = True
    may_meet_seldom: bool = False

    @property
    def is_installed(self) -> bool:
        """Whether the required package is found."""
        return self.needs is None or importlib.util.find_spec(self.needs[0]) is not None


_ENTRIES = {
    entry.name: entry
    for entry in (
        Entry(
            name="mirrored",
            class_name="MirroredStrategy",
            processes="one",
            summary="synchronous data parallelism over the devices of one process",
            collectives=REPLICA_COLLECTIVES,
        ),
        Entry(
            name="multi-worker",
            class_name="MultiWorkerMirroredStrategy",
            processes="workers",
            summary="synchronous data parallelism over several processes and hosts",
            collectives=COLLECTIVES,
            may_meet_seldom=True,
        ),
        Entry(
            name="sharded-data-parallel",
            class_name="ShardedDataParallelStrategy",
            processes="workers",
            summary="data parallelism in which workers share the optimizer's slots among them (ZeRO)",
            collectives=COLLECTIVES,
            is_replicated=False,
            may_have_several=False,
        ),
        Entry(
            name="ring",
            class_name="RingStrategy",
            processes="workers",
            summary="synchronous data parallelism on Horovod's ring (gloo, MPI or NCCL)",
            needs=("horovod", "tfdist build horovod"),
            may_meet_seldom=True,
        ),
        Entry(
            name="model-parallel",
            class_name="ModelParallelStrategy",
            processes="workers",
            summary="weights in parts over a mesh of processes (keras.distribution.ModelParallel)",
            collectives=tuple(name for name in COLLECTIVES if name != "horovod"),
            is_replicated=False,
        ),
        Entry(
            name="pipeline",
            class_name="PipelineStrategy",
            processes="workers",
            summary="a model cut into stages over processes, batches into micro-batches (GPipe, 1F1B)",
            collectives=("auto", "native"),
            is_replicated=False,
        ),
        Entry(
            name="parameter-server",
            class_name="ParameterServerStrategy",
            processes="chief",
            summary="asynchronous or bounded-staleness data parallelism; variables on parameter servers",
            is_replicated=False,
        ),
    )
}


def names() -> tuple[str, ...]:
    """Return the registered names, in documented order."""
    return tuple(_ENTRIES)


def get(name: str) -> Entry:
    """Return the entry of a registered strategy."""
    try:
        return _ENTRIES[name]
    except (KeyError, TypeError):
        raise ConfigError(
            f"strategy is {name!r}; it must be one of {', '.join(map(repr, names()))}.{nearest(name, names())} Choose "
            "one of these names, or construct your own strategy class directly.",
            name="strategy",
            received=name,
        ) from None
