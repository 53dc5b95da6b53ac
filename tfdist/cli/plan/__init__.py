"""`tfdist plan`: time, price and scale of a training before it runs, with one file for each subcommand."""

from tfdist.cli.common.command import SETTINGS, LazyGroup

COMMANDS = {
    "scale": "Predict step, time and price for numbers of workers; `tfdist plan train.py` is short for it.",
    "simulate": "Play a job through, with stragglers, failures and workers that come and go.",
    "calibrate": "Measure what this machine's predictions are made of.",
}

command = LazyGroup(
    "plan",
    package=__name__,
    modules="plan_{}",
    table=COMMANDS,
    default="scale",
    help="Predict how long a training takes on how many workers, and at which price.\n\n"
    "How one model is divided over given devices: tfdist parallel plan.",
    context_settings=SETTINGS,
)
