"""`tfdist federated`: federated training, simulated or over real processes, with one file for each subcommand."""

from tfdist.cli.common.command import lazy_group

COMMANDS = {
    "simulate": "Train in one process, with as many clients as you like.",
    "keys": "Make the keys of a server and its clients.",
    "server": "Drive the rounds of a run; clients connect to it.",
    "client": "Train on this machine's data for a server.",
}

command = lazy_group(
    __name__,
    COMMANDS,
    "Train a model over clients that keep their data.",
    examples={
        "tfdist recipes copy hospitals": "an application to begin with",
        "tfdist federated simulate hospitals/train.py": "trains it in one process",
        "tfdist federated keys keys --client berlin --client paris": "the first step to real clients",
    },
    page="federated",
)
