"""What is measured beside one another, and the worker processes that run it."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfdist.bench.codecs.choice import HOROVOD, NONE, NOOP
from tfdist.bench.workers import lanes
from tfdist.bench.workers.links import Link, network
from tfdist.cluster import strategy_table
from tfdist.errors import ConfigError

__all__ = ["Arms", "compared", "require_equal_parts", "running"]

Call = Callable[..., list[Any]]


@dataclass(frozen=True, kw_only=True)
class Arms:
    """Ways to reduce gradients.

    Attributes:
        lanes: name of each -> whose processes run it.
        left_out: name -> why it cannot run.
    """

    lanes: Mapping[str, str]
    left_out: Mapping[str, str]

    def orders(self, rounds: int) -> Iterator[list[str]]:
        """Yield the names for each round, each time beginning with another one."""
        names = list(self.lanes)
        for number in range(rounds):
            first = number % len(names)
            yield names[first:] + names[:first]


def compared(codecs: Sequence[str], *, bound: bool, horovod: bool | None = None) -> Arms:
    """Return what is measured.

    Args:
        codecs: names with options; "none" is added where it is missing, since others are compared with it.
        bound: whether `NOOP` is measured too.
        horovod: whether it is installed; None: look.

    Example:
        >>> compared(["powersgd"], bound=True, horovod=True).lanes
        {'noop': 'multi-worker', 'horovod': 'horovod', 'none': 'multi-worker', 'powersgd': 'multi-worker'}
    """
    if horovod is None:
        horovod = strategy_table.get("ring").is_installed
    names = [*([NOOP] if bound else []), *([HOROVOD] if horovod else []), *dict.fromkeys([NONE, *codecs])]
    return Arms(
        lanes={name: "horovod" if name == HOROVOD else "multi-worker" for name in names},
        left_out={} if horovod else {HOROVOD: "it is not installed. Install it: tfdist build horovod"},
    )


@contextlib.contextmanager
def running(found: Arms, workers: int, link: Link | None) -> Iterator[Call]:
    """Run arms in the ``with`` block, whose value calls a function of this package on all workers of one of them.

    Args:
        found: the arms.
        workers: number of processes of each.
        link: what connects the workers; None: they share this host.
    """
    with contextlib.ExitStack() as stack:
        joined = stack.enter_context(network(link, workers)) if link else None
        opened = {
            name: stack.enter_context(lanes.Lane(name, workers=workers, network=joined))
            for name in dict.fromkeys(found.lanes.values())
        }

        def call(name: str, target: str, **arguments: Any) -> list[Any]:
            with lanes.turn(opened[found.lanes[name]], opened.values()) as lane:
                return lane.call(f"tfdist.bench.codecs.{target}", **arguments)

        yield call


def require_equal_parts(global_batch_size: int, workers: int) -> None:
    """Raise unless every worker has as many examples.

    Raises:
        ConfigError: they do not.
    """
    if global_batch_size % workers:
        raise ConfigError(
            f"the global batch has {global_batch_size} examples for {workers} workers; Horovod's loop takes as many on "
            f"each. Choose a multiple of {workers}."
        )
