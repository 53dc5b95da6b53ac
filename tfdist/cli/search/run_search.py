"""`tfdist search run`: search the hyper-parameters of a script."""

import sys
from pathlib import Path
from typing import Any

import click

from tfdist.cli.common.command import PASSES_ARGUMENTS, Command
from tfdist.cli.common.option_parts import complete_strategies, field_options
from tfdist.cli.common.progress import unwinding
from tfdist.cli.search.search_telling import conclude, tell
from tfdist.jobs.plan.launch_config import LaunchConfig, require_valid_script
from tfdist.tune.search.search_run import begin
from tfdist.tune.search.search_settings import SearchSettings
from tfdist.tune.search.search_space import parse_space


@click.command(
    "run",
    cls=Command,
    context_settings=PASSES_ARGUMENTS,
    groups={
        "What is searched": ("ranges", "metric", "mode", "seed"),
        "How": ("scheduler", "sampler", "trials", "epochs", "min_epochs", "eta", "perturb"),
        "Where it runs": (
            *("slots", "workers_per_trial", "strategy", "hosts", "launcher_name", "run_options"),
            *("restarts", "is_module", "output"),
        ),
    },
    examples={
        "tfdist search --metric val_accuracy --trials 1000 train.py": "",
        "tfdist search --scheduler population --trials 8 --hosts a:4,b:4 train.py": "",
        "tfdist search run --space lr=log:1e-4:1e-1 --space units=32,64 train.py": "",
    },
    epilog="Exit code: 0 when a trial has reported, else 1; 2 for a wrong request.",
    page="search",
)
@click.option(
    "--space",
    "ranges",
    multiple=True,
    metavar="NAME=RANGE",
    help="Values of a parameter: lr=log:1e-4:1e-1 or units=32,64.",
)
@click.option("--output", type=click.Path(path_type=Path), default=Path("search"), help="Folder of the search.")
@field_options(
    SearchSettings, {"strategy": {"shell_complete": complete_strategies}, "slots": {"type": str, "metavar": "N"}}
)
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(ranges: tuple[str, ...], output: Path, script: str, arguments: tuple[str, ...], **options: Any) -> None:
    """Search the hyper-parameters of a script.

    SCRIPT requests them by hp = tfdist.search.parameters(), as in hp.Float("lr", 1e-4, 0.1), and passes
    tfdist.search.callbacks() to fit. Ranges of --space: KIND:LOW:HIGH or KIND:LOW:HIGH:STEP with linear, log, int or
    int-log; a list of values; or bool.
    """
    slots = options.pop("slots")
    settings = SearchSettings(
        target=script,
        arguments=arguments,
        space=parse_space(ranges),
        slots=None if slots in (None, "auto") else click.INT.convert(slots, None, None),
        **options,
    )
    require_valid_script(LaunchConfig(target=script, is_module=settings.is_module))
    try:
        with unwinding():
            found = begin(settings, output, tell=tell)
    except (KeyboardInterrupt, SystemExit):
        click.echo(f"The trials have ended. To continue: tfdist search resume {output}", err=True)
        raise
    conclude(found)
    sys.exit(0 if found.best is not None else 1)
