"""`tfdist federated`: federated training, simulated or over real processes; one file per subcommand."""

from tfdist.cli.common.command import lazy_group

COMMANDS = {
    "simulate": "Train in one process, with as many clients as you like.",
}

command = lazy_group(__name__, COMMANDS, "Train a model over clients that keep their data.")
