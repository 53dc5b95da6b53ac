"""`tfdist parallel`: plans and pictures of models that are divided over processes; one file per subcommand."""

import click

from tfdist.cli.common.group import LazyGroup

COMMANDS = {
    "plan": "Find the fastest way to divide a model over devices, and say which fit.",
    "schedule": "Show what the stages of a pipeline do when, as text or as a picture.",
}


@click.group(
    cls=LazyGroup,
    package="tfdist.cli.parallel",
    modules="parallel_{}",
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def command() -> None:
    """Plan how a model is divided over processes."""
