"""`tfdist build`: native parts for the installed TensorFlow, with one file for each subcommand."""

from tfdist.cli.common.command import lazy_group

COMMANDS = {
    "horovod": "Install Horovod, built for the TensorFlow of this Python environment.",
    "ops": "Compile tfdist's own TensorFlow ops, and say where they are kept.",
}

command = lazy_group(
    __name__,
    COMMANDS,
    "Build native parts for the TensorFlow that is installed, and keep them.",
    examples={"tfdist build horovod": "minutes, once", "tfdist build ops": "seconds, once"},
    page="horovod",
)
