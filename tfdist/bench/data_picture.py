"""A data report as a picture."""

from pathlib import Path
from typing import Any

from tfdist.bench.data import Report
from tfdist.bench.picture import plain, require_matplotlib

__all__ = ["draw"]

_TITLES = {"rows": "Rows of 40 numbers", "images": "Pictures of 60 KB"}


def draw(report: Report, path: Path) -> None:
    """Draw how fast each side reads beside tf.data in order, by the wall clock and by CPU time, as a PNG.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(12, 5), dpi=200, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
    panels = [figure.add_subplot(1, len(_TITLES), place + 1) for place in range(len(_TITLES))]
    for axes, kind in zip(panels, _TITLES, strict=True):
        _bars(axes, report, kind)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside lower center", ncols=2, frameon=False)
    about = report.machine
    figure.suptitle(
        f"Reading shuffled, beside TFRecordDataset in order, on {about['cores']} cores, {about['processor']}\n"
        f"TensorFlow {about['tensorflow']}, {about['time'][:10]}; median and quartiles of {report.setup.rounds} "
        f"rounds; load average {about['load average']} before, {about['load average at the end']} after",
        fontsize=10,
        color="#555555",
    )
    figure.savefig(path, format="png")


def _bars(axes: Any, report: Report, kind: str) -> None:
    rows = [row for row in report.rows if (row.subject, row.kind) == ("read", kind) and row.way != row.peer][::-1]
    for offset, (name, colour, label) in enumerate(
        (("cpu", "#9a9a9a", "CPU time, peer / side"), ("speed", "#1f6fb4", "examples per second, side / peer"))
    ):
        peers = [report.peer(row) for row in rows]
        found = [
            peer.against(row)["cpu"] if name == "cpu" else row.against(peer)["speed"]
            for row, peer in zip(rows, peers, strict=True)
        ]
        places = [place + 0.38 * (offset - 0.5) for place in range(len(rows))]
        error = [[one.median - one.lower for one in found], [one.upper - one.median for one in found]]
        medians = [one.median for one in found]
        axes.barh(places, medians, 0.36, xerr=error, color=colour, ecolor="#222222", capsize=3, label=label)
    for place, row in enumerate(rows):
        if row.target is not None and row.target.of == "speed":
            axes.plot([row.target.bound] * 2, [place - 0.4, place + 0.4], color="#e08a1e", linewidth=2)
    axes.axvline(1.0, color="#222222", linewidth=1)
    axes.set_yticks(range(len(rows)), [row.way for row in rows])
    axes.set_xlim(left=0)
    axes.set_xlabel("times as good; orange: asked for")
    axes.set_title(_TITLES[kind], loc="left", fontweight="bold")
    plain(axes)
