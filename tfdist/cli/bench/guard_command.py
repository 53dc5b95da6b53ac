"""`tfdist bench guard`: a check whether a release has become slower."""

from typing import Any

import click

from tfdist.bench.guard_bench import GuardBench
from tfdist.cli.bench.suite_command import leave, measured
from tfdist.cli.common.command import Command
from tfdist.cli.common.option_parts import field_options, json_option


@click.command(
    "guard",
    cls=Command,
    examples={
        "tfdist bench guard --wheel dist/tfdist-0.1.0-py3-none-any.whl": "before a release: minutes",
        "tfdist bench guard --ref v0.1.0 --least 0.95": "in a clone",
        "tfdist bench guard --ref HEAD --rounds 1 --scale 1": "whether it runs",
    },
    epilog="Exit code: 0 when no row is slower, 1 when one is, 2 for a wrong request.",
    page="benchmarks",
    help=GuardBench.__doc__,
)
@field_options(GuardBench)
@json_option
@click.pass_context
def command(context: click.Context, /, *, json_path: str | None, **options: Any) -> None:
    """Measure both releases, print the report, and exit with the verdict."""
    report = measured(GuardBench(**options))
    leave(report, json_path)
    context.exit(1 if report.slower else 0)
