"""An all-reduce report as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfdist.native.engine import ALGORITHMS
from tfdist.planner.plot_style import caption, figure_of, plain
from tfdist.validation import shown_bytes

if TYPE_CHECKING:
    from tfdist.bench.all_reduce.all_reduce_bench import AllReduceReport, Row

__all__ = ["draw"]

# peers in greys, tfdist in colours, limits dotted
_STYLES = {
    "tensorflow": ("#9a9a9a", "--"),
    "horovod": ("#4d4d4d", "--"),
    "open-mpi": ("#4d4d4d", "-."),
    "multi-worker": ("#e08a1e", "-"),
    "ring": ("#1f6fb4", "-"),
    "native": ("#2a9d62", "-"),
    "tcp": ("#7a9a3a", ":"),
    "bare": ("#b0764a", ":"),
    "memcpy": ("#b04a4a", ":"),
}

_SHADES = ("#8fd0ab", "#5fb98a", "#1f7d4d", "#155f39", "#0b3d24")  # of native, by algorithm


def draw(report: "AllReduceReport", path: Path) -> None:
    """Bus bandwidth over size, with bands between quartiles; where gradients were reduced, bars with their times."""
    sizes = [row for row in report.rows if len(row.elements) == 1]
    models = [row for row in report.rows if len(row.elements) > 1]
    panels = [panel for panel, rows in ((_bandwidth, sizes), (_times, models)) if rows]
    figure = figure_of(6 * len(panels), 5)
    for index, panel in enumerate(panels):
        panel(figure.add_subplot(1, len(panels), index + 1), report, sizes if panel is _bandwidth else models)
    behind = f", links of {report.setup.link}" if report.setup.link else ""
    figure.suptitle(
        f"All-reduce, {report.setup.workers} workers{behind}; median and quartiles of {report.setup.rounds} rounds\n"
        f"{caption(report.machine)}",
        fontsize=10.5,
        color="#555555",
    )
    figure.savefig(path, format="png")


def _style(engine: str) -> tuple[str, str]:
    name, _, algorithm = engine.partition(":")
    colour, line = _STYLES[name]
    return (_SHADES[ALGORITHMS.index(algorithm)], "-.") if algorithm else (colour, line)


def _bandwidth(axes: Any, report: "AllReduceReport", rows: "list[Row]") -> None:
    sizes = [row.bytes for row in rows]
    for engine in rows[0].seconds:
        colour, line = _style(engine)
        bandwidths = [row.bus_bandwidth(engine, report.setup.workers) for row in rows]
        axes.plot(sizes, [b.median / 1e9 for b in bandwidths], line, color=colour, marker="o", ms=4, label=engine)
        lower, upper = [b.lower / 1e9 for b in bandwidths], [b.upper / 1e9 for b in bandwidths]
        axes.fill_between(sizes, lower, upper, color=colour, alpha=0.2, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [shown_bytes(size) for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("bytes of the tensor, float32")
    axes.set_ylabel("bus bandwidth (GB/s)")
    axes.set_title("One tensor", loc="left", fontweight="bold")
    axes.legend(frameon=False)
    plain(axes)


def _times(axes: Any, report: "AllReduceReport", rows: "list[Row]") -> None:
    bars = [(row, engine) for row in reversed(rows) for engine in reversed(list(row.seconds))]
    for position, (row, engine) in enumerate(bars):
        time = row.time(engine)
        error = [[1e3 * (time.median - time.lower)], [1e3 * (time.upper - time.median)]]
        colour, _ = _style(engine)
        axes.barh(position, 1e3 * time.median, xerr=error, color=colour, height=0.6, ecolor="#222222", capsize=4)
        axes.annotate(
            f"{1e3 * time.median:.0f} ms",
            (1e3 * time.upper, position),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=10,
        )
    axes.set_yticks(range(len(bars)), [engine for _, engine in bars])
    axes.margins(x=0.2)
    axes.set_xlim(left=0)
    axes.set_xlabel("ms for all tensors of a step")
    (row,) = rows
    axes.set_title(
        f"Gradients of {row.name}: {len(row.elements)} tensors, {row.bytes / 1e6:.0f} MB", loc="left", fontweight="bold"
    )
    plain(axes)
