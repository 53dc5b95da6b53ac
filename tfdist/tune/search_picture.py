"""A search for a batch as a picture."""

from collections.abc import Sequence
from pathlib import Path

from tfdist.planner.plot_style import plain, require_matplotlib
from tfdist.tune.tuning import Report

__all__ = ["apart", "draw"]

_APART = 1.25  # of two batches that both have a number at the axis


def draw(report: Report, path: Path) -> None:
    """Draw examples per second over the batch, and where memory ends, as a PNG."""
    require_matplotlib()
    from matplotlib.figure import Figure

    fitting = list(report.fitting.values())
    figure = Figure(figsize=(8, 5), dpi=200, layout="constrained")
    axes = figure.add_subplot()
    axes.plot([one.batch for one in fitting], [one.speed for one in fitting], "-o", color="#1f6fb4", ms=5)
    chosen = report.chosen
    for name, text, colour in (("fastest", "fastest", "#1f6fb4"), ("nearly", "smallest within 5 %", "#2f8f4e")):
        if name in chosen:
            one = chosen[name]
            axes.plot([one.batch], [one.speed], "o", color=colour, ms=11, label=f"{text}: {one.batch:,}")
    beyond = [one.batch for one in report.trials if fitting and one.batch > fitting[-1].batch]
    if beyond:
        why = next(one.outcome.value for one in report.trials if one.batch == min(beyond))
        axes.axvline(min(beyond), color="#d1602b", linestyle="--", label=f"{why}: {min(beyond):,}")
    axes.set_xscale("log", base=2)
    batches = [one.batch for one in fitting]
    ticks = apart(batches, keep=[one.batch for one in chosen.values()])
    axes.set_xticks(ticks, [f"{batch:,}" for batch in ticks], rotation=45)
    axes.set_xticks(batches, minor=True)
    axes.tick_params(which="minor", labelbottom=False)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("batch")
    axes.set_ylabel("examples per second")
    axes.set_title("Which batch pays", loc="left", fontweight="bold")
    about = report.machine
    figure.suptitle(
        f"{about['processor']}, {about['cores']} cores; TensorFlow {about['tensorflow']}; {about['time'][:10]}",
        fontsize=9,
        color="#555555",
    )
    axes.legend(frameon=False)
    plain(axes)
    figure.savefig(path, format="png")


def apart(batches: Sequence[int], *, keep: Sequence[int]) -> list[int]:
    """Return the batches that have a number at the axis: those to keep, and others that are far enough from them.

    Example:
        >>> apart([8, 16, 30, 32, 33], keep=[33])
        [8, 16, 33]
    """
    shown = sorted(dict.fromkeys(batch for batch in batches if batch in keep))
    shown = [one for place, one in enumerate(shown) if place == 0 or one >= _APART * shown[place - 1]]
    for batch in batches:
        if all(max(batch, one) >= _APART * min(batch, one) for one in shown):
            shown.append(batch)
    return sorted(shown)
