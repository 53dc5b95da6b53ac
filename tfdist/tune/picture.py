"""A search for a batch as a picture."""

from pathlib import Path

from tfdist.tune.tuning import Report

__all__ = ["draw"]


def draw(report: Report, path: Path) -> None:
    """Draw examples per second over the batch, and where memory ends, as a PNG.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    from tfdist.bench.picture import plain, require_matplotlib

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
        axes.axvline(min(beyond), color="#d1602b", linestyle="--", label=f"does not go: {min(beyond):,}")
    axes.set_xscale("log", base=2)
    axes.set_xticks([one.batch for one in fitting], [f"{one.batch:,}" for one in fitting], rotation=45)
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
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
