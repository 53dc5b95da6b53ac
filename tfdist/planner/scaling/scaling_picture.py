"""The picture of a scaling curve: speed-up over the number of workers, its limits, and the terms of a step."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfdist.planner.plot_style import figure_of, plain
from tfdist.planner.scaling.job_steps import TERMS
from tfdist.planner.scaling.scaling_report import Row, ScalingReport, shown_seconds

_COLOURS = ("#1f6fb4", "#d1602b", "#9467bd", "#8c564b", "#e0a030", "#7f7f7f", "#2f8f4e", "#bbbbbb")


def draw(report: ScalingReport, path: Path) -> None:
    rows = [one for one in report.rows if one.price is report.request.prices[0]]
    figure = figure_of(10, 4.5)
    left, right = figure.subplots(1, 2)
    _draw_curve(left, report, rows)
    _draw_terms(right, rows)
    for axes in (left, right):
        plain(axes)
    figure.suptitle(report.verdict(), fontsize=8, color="#555555")
    figure.savefig(path, format="png")


def _draw_curve(axes: Any, report: ScalingReport, rows: Sequence[Row]) -> None:
    workers = [one.job.workers for one in rows]
    speed = [one.efficiency * one.job.workers for one in rows]
    low, high = report.request.factors
    axes.plot(workers, workers, "--", color="#bbbbbb", label="as many devices alone")
    axes.fill_between(workers, [one / high for one in speed], [one / low for one in speed], color="#1f6fb4", alpha=0.15)
    axes.plot(workers, speed, "-o", color="#1f6fb4", ms=4, label="predicted")
    if report.best is not None:
        best = report.best
        axes.plot([best.job.workers], [best.efficiency * best.job.workers], "o", color="#2f8f4e", ms=10, label="chosen")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(workers, [f"{one:,}" for one in workers], rotation=45)
    axes.yaxis.set_major_formatter("{x:,.3g}")
    axes.set_xlabel("workers")
    axes.set_ylabel("times the examples in a second of one device")
    axes.set_title("Scaling", loc="left", fontweight="bold")
    axes.legend(frameon=False)


def _draw_terms(axes: Any, rows: Sequence[Row]) -> None:
    places, below = list(range(len(rows))), [0.0] * len(rows)
    for name, colour in zip(TERMS, _COLOURS, strict=True):
        values = [getattr(one.step, name) / one.step.seconds if one.step.seconds else 0.0 for one in rows]
        if any(value > 0.005 for value in values):
            axes.bar(places, values, bottom=below, color=colour, label=name)
        below = [one + value for one, value in zip(below, values, strict=True)]
    labels = [f"{one.job.workers:,}\n{shown_seconds(one.step.seconds)}" for one in rows]
    axes.set_xticks(places, labels, fontsize=7)
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.set_xlabel("workers, and the length of a step")
    axes.set_title("What a step is made of", loc="left", fontweight="bold")
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
