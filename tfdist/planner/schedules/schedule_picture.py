"""Drawings of a schedule's timeline, as text and as a PNG."""

from pathlib import Path
from typing import Any

from tfdist.planner.plot_style import require_matplotlib
from tfdist.planner.schedules.schedule_timeline import Timeline

_COLOURS = {"forward": ("#9cc4e6", "#1f6fb4"), "backward": ("#a9d8b2", "#2f8f4e")}  # by chunk: paler to darker
_MOST_COLUMNS = 400


def as_text(timeline: Timeline) -> str:
    """Return a timeline as text: a line for each stage, a column for each unit of time, a dot for waiting.

    Example:
        >>> from tfdist.planner.schedules import named
        >>> from tfdist.planner.schedules.schedule_timeline import timeline
        >>> print(as_text(timeline(named("1f1b", stages=2, microbatches=2), backward=1)))
        stage 0  F0  F1  .   B0  .   B1
        stage 1  .   F0  B0  F1  B1  .
    """
    unit = min(slot.end - slot.begin for slot in timeline.slots)

    def column(time: float) -> int:
        return int(time / unit + 0.5 + 1e-9)  # round() has halves go both ways, and a slot between two may have none

    rows = [["."] * column(timeline.length) for _ in range(timeline.schedule.stages)]
    for slot in timeline.slots:
        begin, end = column(slot.begin), column(slot.end)
        rows[slot.stage][begin:end] = [str(slot.work)] * (end - begin)
    width = max(len(cell) for row in rows for cell in row) + 2
    label = len(f"stage {timeline.schedule.stages - 1}")
    lines = [f"{f'stage {stage}':<{label}}  " + "".join(c.ljust(width) for c in row) for stage, row in enumerate(rows)]
    return "\n".join(line.rstrip() for line in lines)


def draw(timeline: Timeline, path: Path, *, measured: Timeline | None = None) -> None:
    """Draw a timeline as a PNG: a row for each stage, forward passes blue, backward passes green."""
    require_matplotlib()
    from matplotlib.figure import Figure

    shown = [(timeline, "")] if measured is None else [(timeline, "as planned, "), (measured, "as run, ")]
    height = (1.2 + 0.55 * timeline.schedule.stages) * len(shown)
    figure = Figure(figsize=(12, height), dpi=150, layout="constrained")
    panels = figure.subplots(len(shown), 1, squeeze=False, sharex=True)[:, 0]
    for axes, (one, what) in zip(panels, shown, strict=True):
        _draw_rows(axes, one, what)
    panels[-1].set_xlabel("time, in forward passes")
    panels[-1].set_xlim(0, max(one.length for one, _ in shown))
    figure.savefig(path, format="png")


def _draw_rows(axes: Any, timeline: Timeline, what: str) -> None:
    from matplotlib.colors import to_rgb

    schedule = timeline.schedule
    numbers = len(timeline.slots) <= _MOST_COLUMNS
    for slot in timeline.slots:
        pale, dark = (to_rgb(one) for one in _COLOURS[slot.work.kind])
        part = slot.work.chunk / max(1, schedule.chunks - 1)
        colour = tuple(a + (b - a) * part for a, b in zip(pale, dark, strict=True))
        axes.broken_barh(
            [(slot.begin, slot.end - slot.begin)], (slot.stage - 0.4, 0.8), facecolor=colour, edgecolor="white"
        )
        if numbers:
            middle = (slot.begin + slot.end) / 2
            axes.text(middle, slot.stage, str(slot.work.microbatch), ha="center", va="center", fontsize=8)
    axes.set_yticks(range(schedule.stages), [f"stage {stage}" for stage in range(schedule.stages)])
    axes.invert_yaxis()
    chunks = f", {schedule.chunks} chunks" if schedule.chunks > 1 else ""
    axes.set_title(
        f"{schedule.name}: {schedule.stages} stages, {schedule.microbatches} micro-batches{chunks}; {what}bubble "
        f"{100 * timeline.bubble:.1f} %",
        loc="left",
        fontweight="bold",
    )
    axes.spines[["top", "right"]].set_visible(False)
