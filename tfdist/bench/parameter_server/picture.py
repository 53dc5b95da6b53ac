"""A parameter-server report as a picture."""

from pathlib import Path
from typing import Any

from tfdist.bench.parameter_server.benchmark import Report
from tfdist.bench.parameter_server.stragglers import MODES, bounds
from tfdist.measurement.pictures import plain, require_matplotlib

__all__ = ["draw"]

_COLOURS = {"synchronous": "#9a9a9a", "bounded": "#e08a1e", "asynchronous": "#1f6fb4"}
_WIDTH = 0.26


def draw(report: Report, path: Path) -> None:
    """Draw examples per second by number of workers and mode, with lines between the quartiles, as a PNG.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(8, 5), dpi=200, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
    axes = figure.add_subplot()
    _bars(axes, report)
    about = report.machine
    figure.suptitle(
        f"Parameter servers, on {about['cores']} cores of one machine, {about['processor']}\n"
        f"TensorFlow {about['tensorflow']}, {about['time'][:10]}; median and quartiles of {report.setup.rounds} "
        f"rounds; load average {about['load average']} before, {about['load average at the end']} after",
        fontsize=10,
        color="#555555",
    )
    figure.savefig(path, format="png")


def _bars(axes: Any, report: Report) -> None:
    for place, mode in enumerate(MODES):
        found = [crowd.examples_per_second(mode) for crowd in report.crowds]
        middles = [group + (place - 1) * _WIDTH for group in range(len(found))]
        medians = [one.median for one in found]
        error = [[one.median - one.lower for one in found], [one.upper - one.median for one in found]]
        colour = _COLOURS[mode]
        axes.bar(middles, medians, _WIDTH * 0.92, yerr=error, color=colour, ecolor="#222222", capsize=3, label=mode)
        for middle, one in zip(middles, found, strict=True):
            axes.annotate(
                f"{one.median:,.0f}",
                (middle, one.upper),
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                fontsize=9,
            )
    axes.set_xticks(range(len(report.crowds)), [_label(crowd.workers, crowd.slow_down) for crowd in report.crowds])
    axes.margins(y=0.12)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("examples per second, all workers")
    axes.set_title("fit with one slow worker", loc="left", fontweight="bold")
    axes.legend(frameon=False, loc="upper left")
    plain(axes)
    axes.grid(visible=False, axis="x")


def _label(workers: int, slow_down: float | None) -> str:
    bound = f"bound {bounds(workers)['bounded']}"
    if slow_down is None:
        return f"{workers} worker{'s' if workers > 1 else ''}\nnone slow, {bound}"
    return f"{workers} workers\none {slow_down:.1f} times slower, {bound}"
