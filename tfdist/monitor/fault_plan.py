"""Plans of faults, given or drawn, and the outcome of each, judged from the job's events and the log of faults."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfdist import validation
from tfdist.errors import ConfigError
from tfdist.monitor.faults import CHIEF, KINDS, RESTARTING, SIGNALS, Fault, parse
from tfdist.variables import FAULTS

_SLOW_SECONDS = 0.05
_POINTS = {"disk-full": ("save-begin", "save-middle", "save-commit"), "corrupt": ("save-commit",)}


@dataclass(frozen=True, kw_only=True)
class FaultPlan:
    """A plan: the faults that are to happen, in this order.

    Attributes:
        faults: the faults, each of which names the start of the workers in which it happens.
    """

    faults: tuple[Fault, ...]

    @classmethod
    def of(cls, text: str) -> "FaultPlan":
        """Return the plan that a JSON list describes.

        Raises:
            ConfigError: the text does not describe a plan.
        """
        return cls(faults=parse(text))

    @classmethod
    def made_up(
        cls, *, kinds: Sequence[str], count: int, every: int, workers: int, seed: int, servers: int = 0
    ) -> "FaultPlan":
        """Return a plan of random faults at random workers, the same plan for the same arguments.

        Args:
            kinds: the kinds to choose from, keys of `tfdist.monitor.faults.KINDS`.
            count: the number of faults.
            every: the mean number of steps from a start of the workers to the fault, at least 1.
            workers: the number of workers of the job; each "term" leaves one fewer.
            seed: the seed of the random choices.
            servers: the number of parameter servers of the job; if there are some, faults happen to the chief and its
                tasks.
        Raises:
            ConfigError: a number is out of range, a kind is unknown or would end the job, or no worker would be left.

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
        """The number of faults that the workers do not survive."""
        return sum(fault.kind in RESTARTING for fault in self.faults)

    def to_environment(self) -> dict[str, str]:
        """Return the environment variables that cause these faults in a job."""
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
    """Return one more fault of a job with parameter servers, after the earlier ones."""
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


@dataclass(frozen=True, kw_only=True)
class Verdict:
    fault: Fault
    step: int | None = None  # of the fault; None if it did not happen
    found_after: float | None = None  # seconds until the agent noticed, or None
    recovered_after: float | None = None  # seconds until all workers had ended a step again
    lost: int | None = None  # number of repeated steps
    text: str


def lines(text: str) -> list[dict[str, Any]]:
    """Return the objects of a text of JSON lines, without an incomplete last line."""
    found = []
    for line in text.splitlines():
        try:
            content = json.loads(line)
        except ValueError:
            continue
        if isinstance(content, dict):
            found.append(content)
    return found


def verdicts(
    plan: FaultPlan, happened: Sequence[dict[str, Any]], events: Sequence[dict[str, Any]]
) -> tuple[Verdict, ...]:
    left = list(happened)
    found = []
    for fault in plan.faults:
        mine = next((one for one in left if one.get("fault") == fault.as_json()), None)
        if mine is not None:
            left.remove(mine)
        warnings = [float(one["clock"]) for one in happened if "warning" in one]
        found.append(_verdict(fault, mine, events, warnings))
    return tuple(found)


def _verdict(
    fault: Fault, happened: dict[str, Any] | None, events: Sequence[dict[str, Any]], warnings: Sequence[float]
) -> Verdict:
    if happened is None:
        return Verdict(fault=fault, text="did not happen: the job did not get there")
    step, clock = int(happened["step"]), float(happened["clock"])
    later = [event for event in events if float(event.get("clock", 0.0)) >= clock]
    if fault.kind not in RESTARTING:
        ended = next((event for event in later if event.get("event") in ("failed", "ended")), None)
        survived = ended is None or (ended["event"] == "ended" and ended.get("exit_code") == 0)
        text = "continued" if survived else f"then: {_said(ended or {})}"
        if not fault.memory and fault.kind in ("disk-full", "corrupt"):
            never = "that backup was not read" if fault.kind == "corrupt" else "no warning"
            text += "; a warning said so" if any(when >= clock for when in warnings) else f"; {never}"
        return Verdict(fault=fault, step=step, text=text)
    replaced = next((e for e in later if e.get("event") == "replaced" and e.get("task") == fault.task), None)
    if fault.task is not None and replaced is not None:
        after = float(replaced["clock"]) - clock
        return Verdict(fault=fault, step=step, found_after=after, text=f"{fault.task} replaced; the others continued")
    noticed = next((event for event in later if event.get("event") in ("failed", "halted", "ended")), None)
    if noticed is None or noticed["event"] == "ended":
        return Verdict(fault=fault, step=step, text="not found")
    start = noticed.get("start", 0)
    again = next((e for e in later if e.get("event") == "stepping" and e.get("start", 0) > start), None)
    return Verdict(
        fault=fault,
        step=step,
        found_after=float(noticed["clock"]) - clock,
        recovered_after=None if again is None else float(again["clock"]) - clock,
        lost=None if again is None else again.get("lost"),
        text=_said(noticed) if again is not None else f"{_said(noticed)}; no recovery",
    )


def _said(event: dict[str, Any]) -> str:
    if event.get("event") == "halted":
        return f"stopped together ({event.get('purpose')})"
    text, task = event.get("text"), event.get("task")
    if not text:
        return f"ended with code {event.get('exit_code')}"
    return f"{task} failed: {text}" if task and event.get("cause") != "hang" else str(text)


def table(found: Sequence[Verdict]) -> str:
    names = [f"{one.fault.kind} {one.fault.victim} at {one.fault.at}" for one in found]
    width = max([26, *map(len, names)])
    rows = [f"{'fault':<{width}}  {'step':>4}  {'found after':>11}  {'all step again after':>20}  {'repeated':>8}"]
    rows += [
        f"{name:<{width}}  {_number(one.step):>4}  {_seconds(one.found_after):>11}  "
        f"{_seconds(one.recovered_after):>20}  {_number(one.lost):>8}  {one.text}"
        for name, one in zip(names, found, strict=True)
    ]
    return "\n".join(rows)


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"
