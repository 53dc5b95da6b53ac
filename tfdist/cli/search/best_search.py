"""`tfdist search best`: the parameters of the best trial."""

import json
import sys
from pathlib import Path

import click

from tfdist.cli.common.command import Command
from tfdist.cli.common.option_parts import json_option, write_json
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
    """Show the best trial of a search: its parameters, and where its backup is."""
    found = opened(folder)
    if (best := found.best) is None:
        click.echo("no trial has reported yet", err=True)
        sys.exit(1)
    backup = trial_folder(folder, best.number) / BACKUP
    value = found.history.value(best.best)
    content = {
        "trial": best.number,
        "value": value,
        "epochs": best.step,
        "values": dict(best.values),
        "backup": str(backup),
    }
    if json_path != "-":
        click.echo(f"trial {best.number}: {found.settings.metric} {value:.6g}, trained for {best.step} epochs")
        for name, one in best.values.items():
            click.echo(f"  {name} = {one!r}")
        click.echo(f"backup: {backup}")
    write_json(json.dumps(content, indent=1), json_path)
