"""A data report as a picture."""

from pathlib import Path
from typing import Any

from tfdist.bench.data.benchmark import Report
from tfdist.measurement.pictures import plain, require_matplotlib

__all__ = ["draw"]

_TITLES = {"rows": "Small examples: 40 numbers and a label", "images": "Pictures of 60 KB"}
_LAYOUTS = {
    "generic": "TFRecords of other programs",
    "fixed": "TFRecords written by tfdist",
    "extent": "TFRecords written by tfdist",
}
_READERS = {"native": "compiled reader", "numpy": "reader in NumPy"}
_SERIES = (
    ("cpu", "#9a9a9a", "examples per second of CPU time"),
    ("speed", "#1f6fb4", "examples per second"),
)


def draw(report: Report, path: Path) -> None:
    """Draw how fast each side reads beside tf.data in order, by the wall clock and by CPU time, as a PNG.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(10, 8), dpi=130, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
    counts = [len(_rows(report, kind)) for kind in _TITLES]
    panels = figure.subplots(len(_TITLES), 1, sharex=True, height_ratios=[max(1, count) for count in counts])
    for axes, kind in zip(panels, _TITLES, strict=True):
        _bars(axes, report, kind)
    panels[-1].set_xlabel("times TensorFlow's TFRecordDataset (1: as fast; longer bars are better)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside lower center", ncols=2, frameon=False)
    about = report.machine
    figure.suptitle(
        "tfdist.data reads in shuffled order; TFRecordDataset reads file after file\n"
        f"{about['cores']} cores, {about['processor']}, TensorFlow {about['tensorflow']}, {about['time'][:10]}; "
        f"median and quartiles of {report.setup.rounds} rounds",
        fontsize=11,
    )
    figure.savefig(path, format="png")


def label(way: str) -> str:
    """Return what a way of reading is called in the picture.

    Example:
        >>> label("fixed, numpy, later epochs")
        'TFRecords written by tfdist\\nreader in NumPy, checksums checked before'
    """
    layout, reader, *later = way.split(", ")
    return f"{_LAYOUTS[layout]}\n{_READERS[reader]}{', checksums checked before' if later else ''}"


def _rows(report: Report, kind: str) -> list[Any]:
    return [row for row in report.rows if (row.subject, row.kind) == ("read", kind) and row.way != row.peer][::-1]


def _bars(axes: Any, report: Report, kind: str) -> None:
    rows = _rows(report, kind)
    for offset, (name, colour, text) in enumerate(_SERIES):
        peers = [report.peer(row) for row in rows]
        found = [
            peer.against(row)["cpu"] if name == "cpu" else row.against(peer)["speed"]
            for row, peer in zip(rows, peers, strict=True)
        ]
        places = [place + 0.38 * (offset - 0.5) for place in range(len(rows))]
        error = [[one.median - one.lower for one in found], [one.upper - one.median for one in found]]
        medians = [one.median for one in found]
        axes.barh(places, medians, 0.36, xerr=error, color=colour, ecolor="#222222", capsize=3, label=text)
        for place, one in zip(places, found, strict=True):
            axes.text(one.upper + 0.05, place, f"{one.median:.2f}", va="center", fontsize=9)
    axes.axvline(1.0, color="#222222", linewidth=1)
    axes.set_yticks(range(len(rows)), [label(row.way) for row in rows])
    axes.margins(x=0.08)  # for the numbers beside the bars
    axes.set_xlim(left=0)
    axes.set_title(_TITLES[kind], loc="left", fontweight="bold")
    plain(axes)
