"""The simulation of a schedule, in which each stage begins as soon as its inputs are ready."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfdist import validation
from tfdist.errors import ConfigError
from tfdist.planner.schedules.schedule_table import Kind, Schedule, Work


@dataclass(frozen=True)
class Slot:
    """A slot: one piece of work of a stage, with its begin and end."""

    stage: int
    work: Work
    begin: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """The slots of a schedule.

    Attributes:
        schedule: the schedule.
        slots: the slots, in the order of their beginning.
    """

    schedule: Schedule
    slots: tuple[Slot, ...]

    @property
    def length(self) -> float:
        """The time at which the last work ends."""
        return max(slot.end for slot in self.slots)

    @property
    def bubble(self) -> float:
        """The part of all stages' time in which they are idle."""
        busy = sum(slot.end - slot.begin for slot in self.slots)
        return 1.0 - busy / (self.schedule.stages * self.length)

    def order(self, stage: int) -> list[Work]:
        """Return the work of a stage in the order in which it begins."""
        return [slot.work for slot in self.slots if slot.stage == stage]

    def live(self, stage: int) -> int:
        """Count the forward passes whose activations a stage holds at the worst moment."""
        return most_live(self.order(stage))


def most_live(order: Sequence[Work]) -> int:
    """Count the forward passes that wait for their backward passes at the worst moment."""
    held = most = 0
    for work in order:
        held += 1 if work.kind == "forward" else -1
        most = max(most, held)
    return most


def timeline(
    schedule: Schedule, *, forward: float | Sequence[float] = 1.0, backward: float | Sequence[float] = 2.0
) -> Timeline:
    """Return the time of each piece of work of a schedule.

    Args:
        schedule: the schedule.
        forward: the time of a forward pass through a part of the model, in any unit: one for all, or one for each part.
        backward: the time of a backward pass, in the same unit.
    Raises:
        ConfigError: stages wait for each other for ever.

    Example:
        >>> from tfdist.planner.schedules.schedule_orders import named
        >>> timeline(named("gpipe", stages=2, microbatches=3)).length
        12.0
    """
    times: dict[Kind, list[float]] = {
        "forward": _of_each("forward", forward, schedule.parts),
        "backward": _of_each("backward", backward, schedule.parts),
    }
    ends: dict[tuple[int, Work], float] = {}
    free, place = [0.0] * schedule.stages, [0] * schedule.stages
    slots: list[Slot] = []
    total = sum(map(len, schedule.orders))
    while len(slots) < total:
        moved = False
        for stage, order in enumerate(schedule.orders):
            while place[stage] < len(order):
                work = order[place[stage]]
                needed = list(schedule.needs(stage, work))
                if not all(one in ends for one in needed):
                    break
                begin = max([free[stage], *(ends[one] for one in needed)])
                end = begin + times[work.kind][schedule.part(stage, work)]
                ends[stage, work], free[stage] = end, end
                slots.append(Slot(stage, work, begin, end))
                place[stage] += 1
                moved = True
        if not moved:
            raise ConfigError(
                f"the schedule {schedule.name!r} never ends: {stuck(schedule, place, ends)}", name=schedule.name
            )
    return Timeline(schedule, tuple(sorted(slots, key=lambda slot: (slot.begin, slot.stage))))


def in_one_order(schedule: Schedule) -> list[Work]:
    """Merge the work of all stages into one order that respects all needs; the chunk of each work is its part."""
    slots = timeline(schedule).slots
    return [slot.work._replace(chunk=schedule.part(slot.stage, slot.work)) for slot in slots]


def bubble(schedule: Schedule) -> float:
    """Return the part of the time in which stages are idle, if all parts take equally long.

    GPipe and 1F1B: (K - 1) / (M + K - 1). Interleaved with v chunks: (K - 1) / (v M + K - 1).

    Example:
        >>> from tfdist.planner.schedules.schedule_orders import named
        >>> bubble(named("interleaved", stages=3, microbatches=3, chunks=2))
        0.25
    """
    return round(timeline(schedule).bubble, 12) if schedule.stages > 1 else 0.0


def stuck(schedule: Schedule, place: Sequence[int], ends: Mapping[tuple[int, Work], float]) -> str:
    """Describe which stages wait for what."""
    words = []
    for stage, order in enumerate(schedule.orders):
        if place[stage] < len(order):
            work = order[place[stage]]
            missing = [(s, w) for s, w in schedule.needs(stage, work) if (s, w) not in ends]
            waits = ", ".join(f"{one} of stage {s}" for s, one in missing)
            words.append(f"stage {stage} waits before {work} for {waits}")
    return "; ".join(words)


def _of_each(name: str, given: float | Sequence[float], parts: int) -> list[float]:
    times = [given] * parts if isinstance(given, (int, float)) else list(given)
    if len(times) != parts:
        raise ConfigError(
            f"{name} has {len(times)} times, and the model has {parts} parts; give one for each.",
            name=name,
            received=len(times),
        )
    return [float(validation.number(name, time, above=0)) for time in times]


def require_sound(schedule: Schedule) -> Schedule:
    """Return a schedule after checking that it is sound.

    Each stage does each forward and backward pass of its parts once, a forward pass before its backward pass. What one
    stage sends to another, activations or gradients, it sends in the order in which the other takes it. A stage has no
    more live activations than promised. No stages wait for each other for ever.

    Raises:
        ConfigError: the schedule is not sound; the message has the place.

    Example:
        >>> from tfdist.planner.schedules.schedule_orders import named
        >>> require_sound(named("1f1b", stages=4, microbatches=8)).live
        (4, 3, 2, 1)
    """
    if len(schedule.orders) != schedule.stages or len(schedule.live) != schedule.stages:
        raise _wrong(
            schedule,
            f"it has {len(schedule.orders)} orders and {len(schedule.live)} promises of live activations for "
            f"{schedule.stages} stages",
        )
    for stage in range(schedule.stages):
        _require_complete(schedule, stage)
        found = most_live(schedule.orders[stage])
        if found > schedule.live[stage]:
            raise _wrong(schedule, f"stage {stage} holds {found} activations, and {schedule.live[stage]} are promised")
    timeline(schedule)
    _require_matched(schedule)
    return schedule


def _require_complete(schedule: Schedule, stage: int) -> None:
    counted = Counter(schedule.orders[stage])
    kinds: tuple[Kind, ...] = ("forward", "backward")
    numbers = itertools.product(kinds, range(schedule.chunks), range(schedule.microbatches))
    expected = [Work(kind, microbatch, chunk) for kind, chunk, microbatch in numbers]
    for work in expected:
        if counted[work] != 1:
            raise _wrong(schedule, f"stage {stage} does {work} {counted[work]} times")
    if unknown := sorted(map(str, counted.keys() - set(expected))):
        raise _wrong(schedule, f"stage {stage} does {unknown[0]}, which the schedule has no place for")
    seen = set()
    for work in schedule.orders[stage]:
        if work.kind == "backward" and Work("forward", work.microbatch, work.chunk) not in seen:
            raise _wrong(schedule, f"stage {stage} does {work} before its forward pass")
        seen.add(work)


def _require_matched(schedule: Schedule) -> None:
    """Refuse a schedule in which two stages send and receive activations or gradients in different orders."""
    taken: dict[tuple[int, int, Kind], list[Work]] = {}
    for stage, order in enumerate(schedule.orders):
        for work in order:
            for source, needed in schedule.needs(stage, work):
                if source != stage:
                    taken.setdefault((source, stage, needed.kind), []).append(needed)
    for (source, stage, kind), works in taken.items():
        wanted = set(works)
        sent = [work for work in schedule.orders[source] if work in wanted]
        if sent != works:
            first, second = next((a, b) for a, b in zip(sent, works, strict=True) if a != b)
            what = "activations" if kind == "forward" else "gradients"
            raise _wrong(
                schedule, f"stage {source} sends the {what} of {first} where stage {stage} takes those of {second}"
            )


def _wrong(schedule: Schedule, what: str) -> ConfigError:
    return ConfigError(
        f"the schedule {schedule.name!r} of {schedule.stages} stages and {schedule.microbatches} micro-batches cannot "
        f"be run: {what}. tfdist.planner.schedules.require_sound documents what a schedule must keep.",
        name=schedule.name,
    )
