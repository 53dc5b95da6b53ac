"""`tfdist parallel`: plans and pictures of models that are divided over processes, with one file per subcommand."""

from tfdist.cli.common.command import lazy_group

COMMANDS = {
    "plan": "Find the fastest way to divide a model over devices, and say which fit.",
    "schedule": "Show what the stages of a pipeline do when, as text or as a picture.",
}

command = lazy_group(__name__, COMMANDS, "Plan how a model is divided over processes.")
