"""An exporter of a job as one HTML file without scripts, rewritten at each look, for notebooks and served folders."""

from collections import deque
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from tfdist.monitor.exporters.exporter import KINDS, Update
from tfdist.monitor.watch.snapshot import Snapshot, WorkerView, newest, sentence
from tfdist.storage.files import write_whole

DEFAULT = KINDS["html"].default
COLORS = {
    "input": "#e6c200",
    "forward": "#009e73",
    "backward": "#56b4e9",
    "compute": "#009e73",
    "wait": "#d55e00",
    "communication": "#cc79a7",
    "update": "#0072b2",
    "checkpoint": "#777",
    "python": "#bbb",
}
LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
#: points of a curve that are drawn
KEPT = 200
_HEADS = ("worker", "does", "step", "steps/s", "loss", "memory", "step ms")
_STYLE = (
    ".tfdist{font:13px/1.5 system-ui,sans-serif;max-width:60rem}"
    ".tfdist table{font:inherit;border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}"
    ".tfdist th{font-weight:normal;opacity:.6}"
    ".tfdist th,.tfdist td{padding:.15rem .5rem;text-align:right;white-space:nowrap}"
    ".tfdist .bar{width:45%;text-align:left}.tfdist .bar div{display:flex;height:1rem}"
    ".tfdist pre{border-left:3px solid #e69f00;margin:.5rem 0;padding:.3rem .8rem;white-space:pre-wrap}"
    ".tfdist .curves{display:flex;gap:1rem}.tfdist figure{flex:1;margin:.4rem 0}"
    ".tfdist svg{width:100%;height:5rem;border:1px solid #8884}"
    ".tfdist figcaption,.tfdist .legend,.tfdist .events{opacity:.7}"
    ".tfdist .legend i{display:inline-block;height:.7rem;width:.7rem;margin:0 .3rem 0 .8rem}"
)


class HTML:
    """An exporter that writes the page into a file, whole or not at all."""

    def __init__(self, where: str) -> None:
        self._path = Path(where or DEFAULT)
        self._rates: deque[list[float]] = deque(maxlen=KEPT)
        self._losses: deque[list[float]] = deque(maxlen=KEPT)

    def write(self, update: Update) -> None:
        for point in update.points:
            means = point.steps.step.mean(axis=0)
            self._rates.append([1.0 / float(one) if one > 0 else 0.0 for one in means])
            self._losses.append([float(one) for one in point.steps.loss[-1]])
        write_whole(self._path, page(update.snapshot, tuple(self._rates), tuple(self._losses)))

    def close(self) -> None:
        """Do nothing: the page stays as it is."""


def page(shown: Snapshot, rates: Sequence[Sequence[float]] = (), losses: Sequence[Sequence[float]] = ()) -> str:
    longest = max((sum(one.parts.values()) for one in shown.workers), default=0.0)
    state = "" if shown.is_running else ", ended"
    pieces = [
        f'<meta charset="utf-8"><style>{_STYLE}</style><div class="tfdist">',
        f"<div>job <b>{escape(shown.job[:8])}</b>, start {shown.start}{state}</div>",
        f"<table><tr>{''.join(f'<th>{head}</th>' for head in _HEADS)}<th class='bar'>parts of a step</th></tr>",
        *(_row(one, longest) for one in shown.workers),
        f"</table>{_legend(shown.workers)}",
    ]
    curves = [_curve("steps per second", rates), _curve("loss of each worker's examples", losses)]
    pieces.append(f'<div class="curves">{"".join(curves)}</div>')
    if shown.verdict:
        pieces.append(f"<pre>{escape(chr(10).join(shown.verdict))}</pre>")
    told = [escape(sentence(event)) for event in newest(shown.events) if event.get("event") not in _UNTOLD]
    if told:
        pieces.append(f'<div class="events">{"<br>".join(told)}</div>')
    return "\n".join([*pieces, "</div>\n"])


_UNTOLD = ("parameters", "started")


def _row(one: WorkerView, longest: float) -> str:
    cells = [one.cells[head] for head in _HEADS]
    bars = "".join(
        f'<i style="width:{100 * seconds / longest:.2f}%;background:{COLORS.get(label, "#888")}" '
        f'title="{escape(label)} {1e3 * seconds:.2f} ms"></i>'
        for label, seconds in one.parts.items()
        if seconds > 0 and longest > 0
    )
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}<td class='bar'><div>{bars}</div></td></tr>"


def _legend(workers: Iterable[WorkerView]) -> str:
    there = {label for one in workers for label, seconds in one.parts.items() if seconds > 0}
    marks = [f'<i style="background:{color}"></i>{label}' for label, color in COLORS.items() if label in there]
    return f'<div class="legend">{"".join(marks)}</div>'


def _curve(label: str, rows: Sequence[Sequence[float]]) -> str:
    values = [value for row in rows for value in row if value == value and abs(value) != float("inf")]
    if not values:
        return ""
    low, high = min(values), max(values)
    span, last = (high - low) or 1.0, max(len(rows) - 1, 1)
    lines = []
    for worker in range(max(map(len, rows))):
        points = [
            f"{300 * at / last:.1f},{95 - 90 * (row[worker] - low) / span:.1f}"
            for at, row in enumerate(rows)
            if worker < len(row) and low <= row[worker] <= high
        ]
        color = LINES[worker % len(LINES)]
        lines.append(
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{color}" stroke-width="2" '
            'vector-effect="non-scaling-stroke"/>'
        )
    return (
        f'<figure><svg preserveAspectRatio="none" viewBox="0 0 300 100">{"".join(lines)}</svg>'
        f"<figcaption>{escape(label)}, {low:.3g} to {high:.3g}</figcaption></figure>"
    )
