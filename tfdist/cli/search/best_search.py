"""`tfdist search best`: the parameters of the best trial."""

import json
import sys
from pathlib import Path

import click

from tfdist.cli.common.command import Command
from tfdist.cli.common.option_parts import json_option, write_json
from tfdist.tune.search.search_history import Trial
from tfdist.tune.search.search_run import opened
from tfdist.tune.search.search_trial import BACKUP
from tfdist.tune.search.trial_slots import trial_folder


@click.command(
    "best",
    cls=Command,
    examples={
        "tfdist search best search": "",
        "tfdist search best search --json -": "for a program",
        "tfdist search best a --json a.json": "",
    },
    epilog="Exit code: 1 when no trial has reported yet.",
    page="search",
)
@json_option
@click.argument("folder", type=click.Path(path_type=Path))
def command(folder: Path, json_path: str | None) -> None:
    """Show the best trial of a search: its best value, its parameters, and its backup, which is of its last epoch."""
    found = opened(folder)
    if (best := found.best) is None:
        click.echo("no trial has reported yet", err=True)
        sys.exit(1)
    backup = trial_folder(folder, best.number) / BACKUP
    value, last = found.history.value(best.best), found.history.value(best.scores[best.step])
    content = {
        "trial": best.number,
        "value": value,
        "epoch": best.best_step,
        "epochs": best.step,
        "last": last,
        "values": dict(best.values),
        "backup": str(backup),
    }
    if json_path != "-":
        click.echo(f"trial {best.number}: {found.settings.metric} {value:.6g} {_when(best, last)}")
        for name, one in best.values.items():
            click.echo(f"  {name} = {one!r}")
        click.echo(f"backup: {backup}, as after epoch {best.step}")
    write_json(json.dumps(content, indent=1), json_path)


def _when(best: Trial, last: float) -> str:
    """Return when the best value was reported, and the last value where that is another one."""
    if best.best_step == best.step:
        return f"after epoch {best.step}, its last"
    donor = f", before it became a copy of trial {best.lineage[-1][1]}" if best.best_step <= best.cloned_at else ""
    return f"after epoch {best.best_step}{donor}; {last:.6g} after epoch {best.step}, its last"
