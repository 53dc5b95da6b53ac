"""The output of a search: a line for each event that users care about, and the table of trials."""

import math
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from tfdist.cli.common.progress import screen
from tfdist.tune.search.search_history import Clone, End, Event, History, Resume, Start
from tfdist.tune.search.search_run import Search
from tfdist.validation import counted

_STYLES = {"finished": "green", "failed": "red", "stopped": "dim"}
_MOST_ROWS = 20


def told(event: Event, history: History) -> str:
    """Return a line of progress for an event; empty if it needs none."""
    trial = history.trials[event.trial]
    match event:
        case Start() if event.values:
            return f"trial {event.trial} starts: {shown_values(event.values)}"
        case Start():
            return f"trial {event.trial} starts"
        case Resume():
            return f"trial {event.trial} continues to epoch {event.until}"
        case Clone():
            return f"trial {event.trial} continues trial {event.donor}: {shown_values(event.values)}"
        case End(how="died"):
            again = "it is started again" if trial.status == "dead" else "it is given up"
            return f"trial {event.trial} died, {again}:\n{event.cause}"
        case End():
            value = history.value(trial.scores[trial.step]) if trial.scores else math.nan
            best = ", the best so far" if history.best is trial else ""
            return f"trial {event.trial} {event.how} at epoch {trial.step}: {value:.6g}{best}"
    return ""


def tell(event: Event, history: History) -> None:
    if line := told(event, history):
        click.echo(line, err=True)


def shown_values(values: Any) -> str:
    return ", ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in values.items()
    )


def print_table(found: Search, *, everything: bool = False) -> None:
    """Print a table of the best trials, or of all trials, and the number of trials in each state."""
    console, history = screen(), found.history
    trials = sorted(history.trials.values(), key=lambda one: (one.best, one.number))
    table = Table("trial", found.settings.metric, "epochs", "status", "parameters", box=None, padding=(0, 2))
    for one in trials if everything else trials[:_MOST_ROWS]:
        parent = f" (from {one.lineage[-1][1]})" if one.lineage else ""
        status = f"[{_STYLES.get(one.status, 'default')}]{one.status.value}[/]{parent}"
        table.add_row(
            str(one.number), f"{history.value(one.best):.6g}", str(one.step), status, escape(shown_values(one.values))
        )
    console.print(table)
    counts = {
        status: sum(one.status == status for one in trials) for status in dict.fromkeys(one.status for one in trials)
    }
    parts = ", ".join(f"{count} {status.value}" for status, count in counts.items())
    console.print(f"{counted(len(trials), 'trial')}: {parts or 'none yet'}", highlight=False)
    for one in [one for one in trials if one.status == "failed"][:3]:
        console.print(f"trial {one.number} failed: {escape(one.cause)}", highlight=False)


def conclude(found: Search) -> None:
    """Print the table, and the command that shows the best trial."""
    print_table(found)
    if found.best is not None:
        click.echo(f"best: trial {found.best.number}; tfdist search show {found.folder} --plot search.png")
