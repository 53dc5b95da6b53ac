"""`tfdist parallel`: plans and pictures of models that are divided over processes, with one file per subcommand."""

from tfdist.cli.common.command import lazy_group

COMMANDS = {
    "plan": "Find the fastest division of a model over devices that fits into memory.",
    "schedule": "Show the timeline of a pipeline, as text or as a picture.",
}

command = lazy_group(
    __name__,
    COMMANDS,
    "Plan how a model is divided over processes.",
    examples={
        "tfdist parallel plan --devices 4 --memory 8GB train.py": "the fastest division that fits",
        "tfdist parallel schedule 1f1b --stages 4": "what each stage does when",
    },
    page="parallel-plan",
)
