"""Groups of workers of similar speed: staleness is bounded within a group, and groups do not wait for each other.

Loads no TensorFlow.
"""

import itertools
import statistics
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from tfdist import validation
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.training.parameter_servers.staleness import Bound

#: groups by measured speed
AUTO: Literal["auto"] = "auto"
#: a group begins where a worker takes so many times as long as the fastest one of the group before
APART = 1.5
#: groups stay while none of them is wider than this, and each is this far from the one before: noise moves no worker
WIDEST, NEAREST = 2.0, 1.25
#: the last computations of a worker that count, and how many of each worker there are between two looks
LOOK_BACK, EVERY = 5, 10

Groups = dict[str, tuple[int, ...]]


class Ticket(NamedTuple):
    """The ticket of a requested gradient: its group, its number there, and the number of all earlier updates."""

    group: str
    number: int
    version: int


class GroupClock:
    """A `Bound` for each group, which counts the updates of its own workers.

    While a gradient is under way, its group applies at most ``bound`` others: in a group the fast workers wait for the
    slow ones. Other groups may apply any number. One group is bounded staleness as it was without groups.

    Example:
        >>> clock = GroupClock({"fast": (0, 1), "slow": (2,)}, bound=1)
        >>> slow = clock.start("slow")
        >>> [clock.apply(clock.start("fast")) for _ in range(3)]
        [0, 0, 0]
        >>> clock.apply(slow)  # three updates of another group, and none of its own
        3

    Source: H. Sun et al., "GSSP: Eliminating Stragglers through Grouping Synchronous for Distributed Deep Learning in
    Heterogeneous Cluster", 2021.
    """

    def __init__(self, groups: Mapping[str, Sequence[int]], bound: int | None) -> None:
        self.groups = {name: tuple(workers) for name, workers in groups.items()}
        self.version = 0
        self._bounds = {name: Bound(bound) for name in groups}

    def may_start(self, group: str) -> bool:
        return self._bounds[group].may_start()

    def start(self, group: str) -> Ticket:
        return Ticket(group, self._bounds[group].start(), self.version)

    def may_apply(self, ticket: Ticket) -> bool:
        return self._bounds[ticket.group].may_apply(ticket.number)

    def apply(self, ticket: Ticket) -> int:
        """Note that a gradient is applied; return its staleness, in updates of all groups."""
        self._bounds[ticket.group].apply(ticket.number)
        self.version += 1
        return self.version - 1 - ticket.version

    def drop(self, ticket: Ticket) -> None:
        self._bounds[ticket.group].drop(ticket.number)


class WorkerGroups:
    """The present groups of a chief's workers, by name; "auto" measures and moves workers.

    Attributes:
        now: name -> workers, the fastest group first if speeds were measured.
    """

    def __init__(self, workers: int, given: Any = None, *, bound: int | None = None) -> None:
        if given is not None and not bound:
            raise ConfigError(
                f"groups is {validation.shown(given)}, with max_staleness={bound}, which is the bound inside a group; "
                "pass a bound of at least 1. With None no worker waits for another, with 0 all compute one batch.",
                name="groups",
                received=given,
            )
        self.now: Groups = {"all": tuple(range(workers))}
        self._is_measured = isinstance(given, str) and given == AUTO
        if given is not None and not self._is_measured:
            self.now = parsed_groups(given, workers)
        self._seconds: list[deque[float]] = [deque(maxlen=LOOK_BACK) for _ in range(workers)]
        self._fresh = 0

    @property
    def shown(self) -> str:
        return "; ".join(f"{name} ({', '.join(map(str, workers))})" for name, workers in self.now.items())

    def note(self, worker: int, seconds: float) -> bool:
        """Record the time of a worker for a batch, 0 if unknown; return True if this has changed the groups."""
        if not self._is_measured or not seconds:
            return False
        self._seconds[worker].append(seconds)
        self._fresh += 1
        if self._fresh < EVERY * len(self._seconds):
            return False
        self._fresh = 0
        known = {index: statistics.median(each) for index, each in enumerate(self._seconds) if each}
        middle = statistics.median_low(known.values())  # of a worker that has gone before it was measured
        seconds_of = [known.get(index, middle) for index in range(len(self._seconds))]
        if _still_fit(list(self.now.values()), seconds_of):
            return False
        found = grouped_by_speed(seconds_of)
        if sorted(found) == sorted(self.now.values()):
            return False
        self.now = {f"group-{number}": workers for number, workers in enumerate(found, 1)}
        return True


def grouped_by_speed(seconds: Sequence[float]) -> list[tuple[int, ...]]:
    """Return groups of workers of similar speed, the fastest first.

    Example:
        >>> grouped_by_speed([0.1, 0.4, 0.11, 0.5])
        [(0, 2), (1, 3)]
    """
    order = sorted(range(len(seconds)), key=lambda worker: seconds[worker])
    groups = [[order[0]]]
    for worker in order[1:]:
        if seconds[worker] > APART * seconds[groups[-1][0]]:
            groups.append([])
        groups[-1].append(worker)
    return [tuple(sorted(group)) for group in groups]


def _still_fit(groups: Sequence[Sequence[int]], seconds: Sequence[float]) -> bool:
    of_groups = sorted(sorted(seconds[worker] for worker in group) for group in groups)
    if any(group[-1] > WIDEST * group[0] for group in of_groups):
        return False
    return all(after[0] >= NEAREST * before[0] for before, after in itertools.pairwise(of_groups))


def may_take(among: Collection[int] | None, worker: int, present: Collection[int]) -> bool:
    """True if a worker may compute a task of some workers: it is one of them, or none of them is present."""
    return among is None or worker in among or not any(one in present for one in among)


def parsed_groups(given: Any, workers: int) -> Groups:
    """Return the workers of each group, from names such as "worker-0"; each worker is in one group."""
    known = {f"worker-{index}": index for index in range(workers)}
    required = (
        f'groups must be "auto", or name each of {", ".join(known)} once, such as '
        '{"fast": ("worker-0",), "slow": ("worker-1",)}'
    )
    if not isinstance(given, Mapping) or any(isinstance(names, str) for names in given.values()):
        raise ConfigTypeError(
            f"groups is {validation.shown(given)}; {required}.", name="groups", received=validation.shown(given)
        )
    found: Groups = {}
    for label, names in given.items():
        validation.text("a name in groups", label)
        if not isinstance(names, list | tuple) or not names or any(name not in known for name in names):
            raise ConfigError(f"groups has {names!r} for {label!r}; {required}.", name="groups", received=names)
        found[label] = tuple(known[name] for name in names)
    if sorted(worker for group in found.values() for worker in group) != list(range(workers)):
        raise ConfigError(f"groups is {given!r}; {required}.", name="groups", received=given)
    return found
