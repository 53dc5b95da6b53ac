"""`tfdist build`: native parts for the TensorFlow that is installed; one file per subcommand."""

import click

from tfdist.cli.common.group import LazyGroup

COMMANDS = {
    "horovod": "Install Horovod, built for the TensorFlow of this Python environment.",
    "ops": "Compile tfdist's own TensorFlow ops, and say where they are kept.",
}


@click.group(
    cls=LazyGroup,
    package="tfdist.cli.build",
    modules="build_{}",
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
def command() -> None:
    """Build native parts for the TensorFlow that is installed, and keep them."""
