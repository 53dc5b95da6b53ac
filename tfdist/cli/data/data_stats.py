"""`tfdist data stats`: parse, call `tfdist.data`, show the progress, print statistics."""

import json
from typing import Any

import click
from rich.markup import escape
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from tfdist import data
from tfdist.cli.common.command import Command
from tfdist.cli.common.progress import Watch, screen, unwinding
from tfdist.cli.data.data_options import follow_option, records_option, storage_option

_MOST_CLASSES = 20
_MOST_SHARDS = 5
_MOST_PAIRS = 5


@click.command(
    "stats",
    cls=Command,
    examples={
        "tfdist data stats data/train": "features, labels, shards, duplicates",
        "tfdist data stats data/train --against data/test": "does test occur in train?",
        "tfdist data stats data/train --out stats.png": "histograms",
        "tfdist data stats data/train --content image --json": "equal images, for programs",
    },
    page="data-looking",
)
@click.argument("directory")
@click.option("--against", metavar="OTHER", help="Count the examples of OTHER that occur in DIRECTORY.")
@click.option("--label", metavar="NAME", help="Feature whose classes are counted; by default the label.")
@click.option("--content", multiple=True, metavar="NAME", help="Feature to compare for duplicates; all but the label.")
@records_option
@click.option("--out", metavar="FILE", help="Draw histograms: .png, .svg, .pdf or .html (needs Matplotlib).")
@click.option("--json", "as_json", is_flag=True, help="Print it as one JSON document.")
@storage_option
@follow_option
def command(directory: str, out: str | None, as_json: bool, **options: Any) -> None:
    """Sum up DIRECTORY: numbers and texts of each feature, labels, shards, equal examples, overlap with OTHER.

    All examples are read once, and none is kept. Counts, means and deviations are exact. The number of
    different values is an estimate if there are very many, and is shown with its error.
    """
    with unwinding(), _Watch() as watch:
        found = data.stats(directory, progress=watch.show, **options)
    if out is not None:
        found.plot(out)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2, allow_nan=False))
    else:
        _show(found)


def _show(found: data.Stats) -> None:
    console = screen(200, highlight=False)
    corrupt = found.examples - sum(shard.examples for shard in found.shards)
    listed = f", {corrupt:,} of them corrupt: {', '.join(map(str, found.corrupt[:_MOST_PAIRS]))}" if corrupt else ""
    console.print(escape(f"{found.url}: {found.examples:,} examples{listed}{', ...' * (corrupt > _MOST_PAIRS)}"))
    table = Table("feature", "dtype", "missing", "min", "max", "mean", "deviation", "length", "different", box=None)
    for name, one in found.features.items():
        lengths = "" if one.lengths is None else f"{one.lengths[0]} to {one.lengths[1]}, mean {one.lengths[2]:.4g}"
        different = f"{one.distinct:,}"
        if one.distinct_error:
            different = f"about {_rounded(one.distinct)} (± {one.distinct_error:.1%})"
        numbers = (_number(value) for value in (one.min, one.max, one.mean, one.deviation))
        table.add_row(escape(name), one.dtype, _missing(one), *numbers, lengths, different)
    console.print(table)
    if found.labels:
        largest = sorted(found.labels.items(), key=lambda item: -item[1])[:_MOST_CLASSES]
        listed = ", ".join(f"{name} {count:,}" for name, count in largest)
        more = f", and {len(found.labels) - len(largest)} more" * (len(found.labels) > len(largest))
        console.print(escape(f"label {found.label}, {len(found.labels)} classes: {listed}{more}"))
    _show_shards(console, found)
    _show_repeats(console, found)


def _show_shards(console: Any, found: data.Stats) -> None:
    if len(found.shards) < 2:
        return
    unlike = sorted(found.shards, key=lambda shard: -max(shard.skew or 0.0, shard.shift))[:_MOST_SHARDS]
    table = Table("most unlike shards", "examples", "label skew", "largest shift of a mean", box=None)
    for shard in unlike:
        skew = "" if shard.skew is None else f"{shard.skew:.1%}"
        shift = "" if shard.shifted is None else f"{shard.shifted}: {shard.shift:.2f} deviations"
        table.add_row(escape(shard.file), f"{shard.examples:,}", skew, escape(shift))
    console.print(table)


def _show_repeats(console: Any, found: data.Stats) -> None:
    same = found.duplicates
    told = f"duplicates in {', '.join(same.features)}: {_repeats(same)}"
    console.print(escape(told + _pairs(same.pairs, "{} = {}")))
    if found.overlap is not None:
        both = found.overlap
        told = f"overlap in {', '.join(both.features)}: {_repeats(both)}"
        console.print(escape(told + _pairs(both.pairs, "{} there is {} here")))


def _repeats(same: Any) -> str:
    number = f"about {_rounded(same.examples)} (of a part of all)" if same.error else f"{same.examples:,}"
    unlike = f", of which {same.unlike_labels:,} contents have several labels" if same.unlike_labels else ""
    return f"{number} examples{unlike}"


def _pairs(pairs: Any, form: str) -> str:
    shown = ", ".join(form.format(*pair) for pair in pairs[:_MOST_PAIRS])
    return f": {shown}{', ...' * (len(pairs) > _MOST_PAIRS)}" if shown else ""


def _missing(one: data.FeatureStats) -> str:
    parts = {"null": one.null, "empty": one.empty, "NaN": one.nan, "infinite": one.infinite}
    return ", ".join(f"{count:,} {what}" for what, count in parts.items() if count)


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _rounded(number: int) -> str:
    return f"{float(f'{number:.3g}'):,.0f}"


class _Watch(Watch):
    """A bar on a terminal."""

    def __init__(self) -> None:
        super().__init__(TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        self._task = self.progress.add_task("reading examples", total=None)

    def show(self, done: int, total: int) -> None:
        self.progress.update(self._task, description=f"{done:,} of {total:,} examples", total=total, completed=done)
