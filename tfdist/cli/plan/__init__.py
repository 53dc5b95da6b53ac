"""`tfdist plan`: time, price and scale of a training before it runs, with one file for each subcommand."""

from tfdist.cli.common.command import lazy_group

COMMANDS = {
    "scale": "Predict step, time and price for numbers of workers; `tfdist plan train.py` is short for it.",
    "simulate": "Simulate a job with stragglers, failures and workers that come and go.",
    "calibrate": "Measure the speeds of this machine for predictions.",
}

command = lazy_group(
    __name__,
    COMMANDS,
    "Predict the time and price of a training by its number of workers.\n\n"
    "How one model is divided over given devices: tfdist parallel plan.",
    default="scale",
    examples={
        "tfdist plan train.py": "one to eight workers on this machine",
        "tfdist plan --workers 1..64 --link 10gbit train.py": "machines in a network",
        "tfdist plan scale --help": "all options",
    },
    page="plan",
)
