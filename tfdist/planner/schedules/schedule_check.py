"""Check that a schedule can run, before anything does."""

from collections import Counter

from tfdist.errors import ConfigError
from tfdist.planner.schedules.schedule_table import Kind, Schedule, Work
from tfdist.planner.schedules.schedule_timeline import most_live, timeline


def require_sound(schedule: Schedule) -> Schedule:
    """Return a schedule that keeps what it promises.

    Each stage does each forward and backward pass of its parts once, a forward pass before its backward pass. What one
    stage sends to another, activations or gradients, it sends in the order in which the other takes it. A stage has no
    more live activations than promised. No stages wait for each other for ever.

    Raises:
        ConfigError: it does not; the message says where.

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
    expected = [
        Work(kind, microbatch, chunk)
        for kind in _KINDS
        for chunk in range(schedule.chunks)
        for microbatch in range(schedule.microbatches)
    ]
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
    """Raise unless each pair of stages sends and takes activations, and gradients, in one order."""
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


_KINDS: tuple[Kind, ...] = ("forward", "backward")


def _wrong(schedule: Schedule, what: str) -> ConfigError:
    return ConfigError(
        f"the schedule {schedule.name!r} of {schedule.stages} stages and {schedule.microbatches} micro-batches cannot "
        f"be run: {what}. tfdist.planner.schedules.require_sound says what a schedule has to keep.",
        name=schedule.name,
    )
