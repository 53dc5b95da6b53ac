"""`tfdist trace`: steps of all workers as chrome traces; one file per subcommand."""

import click

from tfdist.cli.common.group import LazyGroup

COMMANDS = {
    "save": "Write the last steps of a job that runs as a trace.",
    "merge": "Put several traces into one.",
}


@click.group(
    cls=LazyGroup,
    package="tfdist.cli.trace",
    modules="trace_{}",
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def command() -> None:
    """Write steps of all workers as a chrome trace, on one clock; https://ui.perfetto.dev opens it."""
