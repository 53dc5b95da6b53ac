"""`tfdist verify`: the equivalence matrix on this machine, or a script of the user's under a strategy."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from tfdist import verify
from tfdist.cli.common.command import Command
from tfdist.cli.common.option_parts import complete_columns, complete_features, json_option, write_json
from tfdist.cli.common.progress import unwinding
from tfdist.cli.verify import proof_table
from tfdist.cli.verify.matrix_table import MatrixWatch, print_list, print_report
from tfdist.cluster import strategy_table
from tfdist.cluster.strategy_table import COLLECTIVES
from tfdist.errors import MissingDependencyError
from tfdist.verify.column import Column
from tfdist.verify.feature import Feature
from tfdist.verify.matrix_report import Report, of_cells

_OF_THE_MATRIX = ("features", "in_pairs", "baseline", "only_list", "markdown", "jobs")
_OPTIONS_OF_RUN = {
    "-n": "workers",
    **{
        f"--{name.replace('_', '-')}": name
        for name in ("replicas_per_worker", "mesh", "collectives", "parameter_servers")
    },
}
_OF_A_SCRIPT = ("steps", "tolerance", "is_module", *_OPTIONS_OF_RUN.values())


@click.command(
    cls=Command,
    groups={
        "A script": ("strategies", "workers", "replicas_per_worker", "steps", "tolerance"),
        "The matrix": ("features", "in_pairs", "baseline", "only_list", "markdown", "jobs"),
        "Both": ("timeout_seconds", "json_path"),
    },
    examples={
        "tfdist verify train.py --strategy mirrored": "your script, on two replicas",
        "tfdist verify train.py --strategy ring -n 3 -- --epochs 2": "its own arguments: behind --",
        "tfdist verify --strategy mirrored-2": "a column of the matrix",
        "tfdist verify --pairs --feature 'adam-*'": "every two choices together",
    },
    page="verify",
    epilog="Exit code: 0 the same numbers, 1 others, 2 a wrong request; of a script 3 not compared, 4 it failed.",
)
@click.option(
    "--strategy",
    "strategies",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_columns,
    help="Strategy, column of the matrix, or glob; several.",
)
@click.option("-n", "--workers", type=click.IntRange(min=1), help="Workers, as for `tfdist run`.  [default: 2]")
@click.option(
    "--replicas-per-worker", type=click.IntRange(min=1), help="Replicas of each.  [default: 1; in one process 2]"
)
@click.option("--steps", type=click.IntRange(min=1), default=5, help="Batches to compare.")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    default=1e-4,
    help="Tolerance, relative to the largest number of a value.",
)
@click.option(
    "--feature",
    "features",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_features,
    help="Only this feature, group or glob.",
)
@click.option("--pairs", "in_pairs", is_flag=True, help="Run rows that combine every two choices.")
@click.option("--baseline", is_flag=True, help="Also run plain Keras and TensorFlow.")
@click.option("--list", "only_list", is_flag=True, help="Show features and columns; run nothing.")
@json_option
@click.option("--markdown", is_flag=True, help="Print the table for a README.")
@click.option("--jobs", type=click.IntRange(min=1), default=2, metavar="N", help="Columns that run at once.")
@click.option(
    "--timeout-seconds",
    type=click.FloatRange(min=0, min_open=True),
    metavar="S",
    help="Longest time for a cell, or for a run of a script.  [default: as its feature says; 600]",
)
# rarely used options are described in the page only
@click.option("--mesh", metavar="AXES", hidden=True)
@click.option("--collectives", type=click.Choice(COLLECTIVES), hidden=True)
@click.option("--parameter-servers", type=click.IntRange(min=1), hidden=True)
@click.option("-m", "is_module", is_flag=True, hidden=True)
@click.argument("script", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    strategies: Sequence[str],
    features: Sequence[str],
    in_pairs: bool,
    baseline: bool,
    only_list: bool,
    json_path: str | None,
    markdown: bool,
    jobs: int,
    timeout_seconds: float | None,
    script: str | None,
    arguments: tuple[str, ...],
    **of_script: Any,
) -> None:
    """Compare a strategy with one device: your SCRIPT, or every Keras feature.

    SCRIPT is your training script, as it is. Its first steps run under the strategy, and again on one device from the
    same weights and with the same batches. Weights, optimizer slots, states, logs and predictions are compared.

    Without SCRIPT: the matrix. A cell trains a small model of a feature under a strategy and on one device, on this
    machine's CPU. It shows the largest difference, relative to max(1, |value|), and is green up to 1e-5; or it shows
    WRONG, ERROR, HANG, CRASH or refused.
    """
    _require_sense(context, has_script=script is not None)
    if script is not None:
        options = {flag: of_script.pop(name) for flag, name in _OPTIONS_OF_RUN.items()}
        seconds = timeout_seconds or proof_table.TIMEOUT_SECONDS
        wanted = proof_table.jobs(strategies, options, (script, *arguments), timeout_seconds=seconds, **of_script)
        context.exit(proof_table.run(wanted, json_path))
    every: Mapping[str, Feature] | None = None
    if in_pairs:
        from tfdist.verify import pairs  # imported late, because the import computes the rows

        every = pairs.features()
    rows = verify.feature.select(features, every)
    columns = verify.column.select(strategies)
    if only_list:
        print_list(rows, columns)
        return
    columns = _runnable(columns, named=bool(strategies))
    watch = MatrixWatch(rows, columns, baseline=baseline)
    report: Report | None = None
    try:
        with unwinding(), watch:
            report = verify.run(
                rows, columns, baseline=baseline, jobs=jobs, deadline_seconds=timeout_seconds, on_cell=watch.show
            )
    finally:  # a run takes hours, and one that is ended early has results too
        if report is not None or watch.cells:
            _tell(report or of_cells(rows, columns, watch.cells), rows, json_path, markdown=markdown)
    if not report.is_green:
        sys.exit(1)


def _tell(report: Report, rows: Sequence[Feature], json_path: str | None, *, markdown: bool) -> None:
    write_json(report.to_json(), json_path)
    if json_path != "-" and markdown:
        click.echo(report.to_markdown(), nl=False)
    elif json_path != "-":
        print_report(report, rows)


def _require_sense(context: click.Context, *, has_script: bool) -> None:
    """Refuse options that have no meaning for the requested kind of verification."""
    for option in context.command.params:
        given = context.get_parameter_source(str(option.name)) is click.core.ParameterSource.COMMANDLINE
        if given and option.name in (_OF_THE_MATRIX if has_script else _OF_A_SCRIPT):
            what, cure = ("the matrix", "no SCRIPT") if has_script else ("a script", "a SCRIPT")
            raise click.UsageError(f"{option.opts[0]} is for {what}. Leave it out, or give {cure}.")


def _runnable(columns: Sequence[Column], *, named: bool) -> tuple[Column, ...]:
    """Return the columns whose packages are installed. Print the others, or refuse them if they were requested."""
    missing = [column for column in columns if not strategy_table.get(column.strategy).is_installed]
    for needs in dict.fromkeys(strategy_table.get(column.strategy).needs for column in missing):
        assert needs is not None
        names = ", ".join(c.name for c in missing if strategy_table.get(c.strategy).needs == needs)
        if named:
            raise MissingDependencyError(f"{names}: {needs[0]} is not installed. Install it: {needs[1]}")
        click.echo(f"left out: {names}, because {needs[0]} is not installed. Install it: {needs[1]}", err=True)
    return tuple(column for column in columns if column not in missing)
