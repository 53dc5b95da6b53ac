"""Accuracy over the time of training, a line for each codec."""

from pathlib import Path

from tfdist.bench.codecs.choice import HOROVOD, NONE
from tfdist.bench.codecs.race import RaceReport
from tfdist.measurement.pictures import plain, require_matplotlib

__all__ = ["draw", "lines"]

# the peer and no compression in greys, codecs in colours
_GREYS = {HOROVOD: "#4d4d4d", NONE: "#9a9a9a"}


def lines(report: RaceReport) -> dict[str, list[tuple[list[float], list[float]]]]:
    """Return what is drawn: for each name the seconds and the accuracies of each training."""
    return {name: [(list(one.seconds), list(one.accuracy)) for one in curves] for name, curves in report.curves.items()}


def draw(report: RaceReport, path: Path) -> None:
    """Draw the accuracy on the test images over the seconds of training, as a PNG.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), dpi=200, layout="constrained")
    axes = figure.add_subplot()
    found = lines(report)
    codecs = [name for name in found if name not in _GREYS]
    colours = {**_GREYS, **{name: colormaps["tab20"](index % 20) for index, name in enumerate(codecs)}}
    for name, trainings in found.items():
        for number, (seconds, accuracy) in enumerate(trainings):
            style = "--" if name in _GREYS else "-"
            axes.plot(seconds, accuracy, style, color=colours[name], lw=1.6, label=name if number == 0 else None)
    target, setup, about = report.setup.target, report.setup, report.machine
    axes.axhline(target, color="#222222", lw=0.8, ls=":")
    axes.set_xscale("log")
    axes.set_ylim(top=1.0)
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("accuracy on the test images")
    where = f"behind links of {setup.link}" if setup.link else "on this machine"
    axes.set_title(f"Digits, {setup.workers} workers {where}; dotted: {target:.1%}", loc="left", fontweight="bold")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    plain(axes)
    figure.supxlabel(
        f"TensorFlow {about['tensorflow']}, Horovod {about['horovod']}, {about['cores']} cores of one machine, "
        f"{about['processor']}; {about['time'][:10]}; load average {about['load average']} before, "
        f"{about['load average at the end']} after",
        fontsize=8,
        color="#555555",
    )
    figure.savefig(path, format="png")
