"""`tfdist search`: search of a script's hyper-parameters, with one file per subcommand; `run` is the default."""

from tfdist.cli.common.command import SETTINGS, LazyGroup

COMMANDS = {
    "run": "Search with a script; `run` may be left out.",
    "resume": "Resume a search that was ended.",
    "show": "Show the trials of a search: table, files, picture.",
    "best": "Show the best trial: its parameters, and where its backup is.",
}


command = LazyGroup(
    "search",
    package=__name__,
    modules="{}_search",
    table=COMMANDS,
    default="run",
    help="Find the best hyper-parameters of a script.",
    examples={
        "tfdist search --metric val_accuracy --trials 100 train.py": "train.py uses tfdist.search.parameters()",
        "tfdist search show search": "the trials, also while they run",
        "tfdist search best search": "the best one",
        "tfdist search run --help": "all options",
    },
    page="search",
    context_settings=SETTINGS,
)
