"""Plans of faults, given or drawn: which fault which worker of a job suffers."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from tfdist import validation
from tfdist.errors import ConfigError
from tfdist.monitor.faults import CHIEF, KINDS, RESTARTING, SIGNALS, Fault, parse
from tfdist.variables import FAULTS

_SLOW_SECONDS = 0.05
_POINTS = {"disk-full": ("save-begin", "save-middle", "save-commit"), "corrupt": ("save-commit",)}


@dataclass(frozen=True, kw_only=True)
class FaultPlan:
    """What shall happen, in this order.

    Attributes:
        faults: each names the start of the workers in which it happens.
    """

    faults: tuple[Fault, ...]

    @classmethod
    def of(cls, text: str) -> "FaultPlan":
        """Return the plan that a JSON list describes.

        Raises:
            ConfigError: it describes none.
        """
        return cls(faults=parse(text))

    @classmethod
    def made_up(
        cls, *, kinds: Sequence[str], count: int, every: int, workers: int, seed: int, servers: int = 0
    ) -> "FaultPlan":
        """Return a plan of random faults at random workers; the same one for the same arguments.

        Args:
            kinds: to choose from, keys of `tfdist.monitor.faults.KINDS`.
            count: how many faults.
            every: the mean number of steps from a start of the workers to the fault, at least 1.
            workers: of the job; each "term" leaves one fewer.
            seed: any number.
            servers: parameter servers of the job; with some, faults happen to the chief and its tasks.
        Raises:
            ConfigError: a number is out of its range, no kind has that name or it would end the job, or no worker would
                be left.

        Example:
            >>> [(f.step, f.restart) for f in FaultPlan.made_up(
            ...     kinds=["kill"], count=2, every=20, workers=2, seed=3).faults]
            [(24, 0), (39, 1)]
        """
        validation.integer("count", count, minimum=1)
        validation.integer("every", every, minimum=1)
        validation.integer("workers", workers, minimum=1)
        if not kinds:
            raise ConfigError(
                f"there is no kind of fault to choose from; give some of {', '.join(KINDS)}.",
                name="kinds",
                received=kinds,
            )
        for kind in kinds:
            validation.one_of("a kind of fault", kind, KINDS)
        chance, faults, starts = random.Random(seed), list[Fault](), 0
        if servers:
            _require_no_end(kinds)
            for _ in range(count):
                faults.append(_of_a_chief(chance, chance.choice(list(kinds)), workers, servers, every, faults))
            return cls(faults=tuple(faults))
        for _ in range(count):
            possible = [kind for kind in kinds if kind != "term" or workers > 1]
            if not possible:
                raise ConfigError(
                    f"count is {count}, and every fault takes a worker away ('term'); the last one has to stay. "
                    "Ask for fewer faults than there are workers, or for other kinds too.",
                    name="count",
                    received=count,
                )
            fault = _made_up(chance, chance.choice(possible), workers, every, starts)
            faults.append(fault)
            starts += fault.kind in RESTARTING
            workers -= fault.kind == "term"
        return cls(faults=tuple(faults))

    @property
    def restarts(self) -> int:
        """How many of the faults the workers do not survive."""
        return sum(fault.kind in RESTARTING for fault in self.faults)

    def to_environment(self) -> dict[str, str]:
        """Return the variables with which a job meets these faults."""
        return {FAULTS.name: json.dumps([fault.as_json() for fault in self.faults])}


def _made_up(chance: random.Random, kind: str, workers: int, every: int, restart: int) -> Fault:
    worker, step = chance.randrange(workers), chance.randint(1, 2 * every - 1)
    if kind in _POINTS:  # only the chief saves where others can read
        return Fault(kind=kind, worker=0, at=chance.choice(_POINTS[kind]), restart=restart)
    return Fault(
        kind=kind, worker=worker, step=step, restart=restart, seconds=_SLOW_SECONDS if kind == "slow" else None
    )


def _require_no_end(kinds: Sequence[str]) -> None:
    for kind in kinds:
        if kind in ("exit", "exception"):
            raise ConfigError(
                f"{kind!r} is a failure of the script, which the chief of parameter servers runs alone: the job fails "
                "with it and is not started again. Leave it out.",
                name="kinds",
                received=kind,
            )


def _of_a_chief(
    chance: random.Random, kind: str, workers: int, servers: int, every: int, before: Sequence[Fault]
) -> Fault:
    """Return one more fault of a job with parameter servers, behind those before it."""
    tasks = [f"worker {index}" for index in range(workers)] + [f"ps {index}" for index in range(servers)]
    begun = [one for one in before if one.kind in RESTARTING and not (one.task or "").startswith("worker")]
    restart, task = len(begun), CHIEF
    if kind in SIGNALS:
        task = chance.choice(tasks if kind == "term" else [CHIEF, *tasks])
    if kind in _POINTS:
        return Fault(kind=kind, task=task, at=chance.choice(_POINTS[kind]), restart=restart)
    last = max((one.step for one in before if one.restart == restart and one.step is not None), default=0)
    step, seconds = last + chance.randint(1, 2 * every - 1), _SLOW_SECONDS if kind == "slow" else None
    return Fault(kind=kind, task=task, step=step, restart=restart, seconds=seconds)
