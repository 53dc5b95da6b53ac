"""`tfdist plan`: time, price and scale of a training before it runs; one file per subcommand."""

import click

from tfdist.cli.common.command import SETTINGS, LazyGroup

COMMANDS = {
    "scale": "Predict step, time and price for numbers of workers; `tfdist plan train.py` is short for it.",
    "simulate": "Play a job through, with stragglers, failures and workers that come and go.",
    "calibrate": "Measure what this machine's predictions are made of.",
}
_OWN = ("-h", "--help")


class _PlanGroup(LazyGroup):
    """The group, in which a script or an option that begins the line means `scale`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*COMMANDS, *_OWN):
            args = ["scale", *args]
        return super().parse_args(ctx, args)


command = _PlanGroup(
    "plan",
    package=__name__,
    modules="plan_{}",
    table=COMMANDS,
    help="Predict how long a training takes on how many workers, and at which price.\n\n"
    "How one model is divided over given devices: tfdist parallel plan.",
    context_settings=SETTINGS,
)
