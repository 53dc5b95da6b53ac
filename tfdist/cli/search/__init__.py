"""`tfdist search`: a script's hyper-parameters; one file per subcommand, and `run` where none is named."""

import click

from tfdist.cli.common.command import SETTINGS, LazyGroup

COMMANDS = {
    "run": "Search with a script; `run` may be left out.",
    "resume": "Go on with a search that was ended.",
    "show": "Show the trials of a search: table, files, picture.",
    "best": "Show the best trial: its parameters, and where its backup is.",
}


class SearchGroup(LazyGroup):
    """A group whose command `run` may be left out, as in `tfdist search --trials 9 train.py`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in {*COMMANDS, "-h", "--help"}:
            args = ["run", *args]
        return super().parse_args(ctx, args)


command = SearchGroup(
    "search",
    package=__name__,
    modules="{}_search",
    table=COMMANDS,
    help="Find the best hyper-parameters of a script: tfdist search --metric val_accuracy train.py",
    context_settings=SETTINGS,
)
