"""Histograms of features and the counts of labels, drawn by Matplotlib into a picture or a page."""

import html
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfdist.planner.plot_style import require_matplotlib, save

if TYPE_CHECKING:
    from tfdist.data.looking.data_statistics import Stats

_COLUMNS = 3
_BARS = 30
_MOST_FEATURES = 30
_MOST_CLASSES = 40
_MOST_LETTERS = 30  # of names of classes, side by side
_COLOURS = "#4c72b0", "#55a868"


def draw(stats: "Stats", path: str | os.PathLike[str]) -> None:
    require_matplotlib()
    from matplotlib.figure import Figure

    names = [name for name in stats.samples if name != stats.label][:_MOST_FEATURES]
    cells = len(names) + bool(stats.labels)
    columns = max(1, min(_COLUMNS, cells))
    rows = -(-max(1, cells) // columns)
    figure: Any = Figure(figsize=(4 * columns, 3 * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for one in axes[cells:]:
        one.set_axis_off()
    if stats.labels:
        counts = dict(sorted(stats.labels.items(), key=lambda item: -item[1])[:_MOST_CLASSES])
        shown = {name: count for name, count in stats.labels.items() if name in counts}
        axes[0].bar([_plain(name) for name in shown], list(shown.values()), color=_COLOURS[1])
        axes[0].tick_params(axis="x", rotation=90 if sum(map(len, shown)) > _MOST_LETTERS else 0)
        more = f" (the {_MOST_CLASSES} largest of {len(stats.labels)})" if len(stats.labels) > _MOST_CLASSES else ""
        axes[0].set(title=_plain(f"label {stats.label}{more}"), ylabel="examples")
    for one, name in zip(axes[bool(stats.labels) :], names, strict=False):
        feature = stats.features[name]
        values = stats.samples[name]
        values = values[np.isfinite(values)]
        is_text = feature.dtype == "string"
        if len(values):
            one.hist(values, bins=_BARS, color=_COLOURS[0])
        said = f"bytes, {feature.distinct:,} different" if is_text else _range(feature)
        one.set(title=_plain(name), xlabel=said, ylabel="sampled values")
    figure.suptitle(_plain(f"{stats.url}: {stats.examples:,} examples"))
    _save(figure, Path(path), stats)


def _range(feature: Any) -> str:
    if feature.mean is None:
        return "no number"
    return f"mean {feature.mean:.4g}, deviation {feature.deviation:.4g}, {feature.min:.4g} to {feature.max:.4g}"


def _plain(text: str) -> str:
    """Return text in which Matplotlib finds no formula."""
    return text.replace("$", r"\$")


def _save(figure: Any, path: Path, stats: "Stats") -> None:
    if path.suffix.lower() == ".html":
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg")
        svg = drawn.getvalue()
        title = html.escape(stats.url)
        path.write_text(
            f'<!doctype html><meta charset="utf-8"><title>{title}</title>{svg[svg.index("<svg") :]}', encoding="utf-8"
        )
        return
    save(figure.savefig, path)
