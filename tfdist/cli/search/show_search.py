"""`tfdist search show`: the trials of a search as a table, files, a picture, and runs of other tools."""

import json
from pathlib import Path

import click

from tfdist.cli.common.command import Command
from tfdist.cli.common.option_parts import OutputFile, json_option, plot_option, write_json
from tfdist.cli.search.search_telling import print_table
from tfdist.planner.plot_style import require_matplotlib
from tfdist.tune.search.search_run import opened


@click.command(
    "show",
    cls=Command,
    examples={
        "tfdist search show search": "the best trials",
        "tfdist search show search --all --plot search.png": "all of them, and the picture",
        "tfdist search show search --parquet trials.parquet": "",
    },
    page="search",
)
@click.option("--all", "everything", is_flag=True, help="Show every trial, not only the best.")
@json_option
@click.option("--parquet", metavar="FILE", type=OutputFile(path_type=Path), help="Write the table as Parquet.")
@plot_option
@click.option("--tensorboard", metavar="DIR", type=click.Path(path_type=Path), help="Write a run for each trial.")
@click.option("--mlflow", metavar="WHERE", help="Write a run for each trial to a tracking server or a folder.")
@click.argument("folder", type=click.Path(path_type=Path))
def command(
    folder: Path,
    everything: bool,
    json_path: str | None,
    parquet: Path | None,
    plot: Path | None,
    tensorboard: Path | None,
    mlflow: str | None,
) -> None:
    """Show the trials of a search, also while it runs."""
    if plot is not None:
        require_matplotlib()
    found = opened(folder)
    if json_path != "-":
        print_table(found, everything=everything)
    write_json(json.dumps(found.table(), indent=1), json_path)
    from tfdist.tune.search import search_results

    if parquet is not None:
        search_results.write_parquet(found, parquet)
    if plot is not None:
        search_results.draw(found, plot)
    if tensorboard is not None:
        search_results.to_tensorboard(found, tensorboard)
    if mlflow is not None:
        search_results.to_mlflow(found, mlflow)
