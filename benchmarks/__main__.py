"""`python -m benchmarks`: benchmarks of tfdist and its peers; run it in a clone of the repository."""

import importlib

import click

from tfdist.cli.common.command import SETTINGS
from tfdist.cli.main import Main

#: name -> module that has the `command`, and the line of the overview
COMMANDS = {
    "data": ("files.data_race", "TFRecord data: writing, reading and resuming."),
    "formats": ("files.formats_race", "Tar, MDS, mixtures and packing, beside WebDataset and MosaicML's streaming."),
    "checkpoint": ("jobs.checkpoint_race", "How long training stops for a backup, beside Keras'."),
    "recovery": ("jobs.recovery_race", "How long a job takes to recover from a killed worker."),
    "monitor": ("jobs.recording_cost", "What recording steps adds to them, part by part."),
    "lone-replica": ("steps.lone_replica_race", "One replica in a strategy's scope, beside plain Keras."),
    "parameter-server": ("servers.parameter_server_race", "Parameter servers: a slow worker, and a large table."),
    "sharded": ("parallel.sharding_race", "Sharded data parallelism: memory, bytes and step time."),
    "model-parallel": ("parallel.model_parallel_race", "A transformer over two processes, beside one and DTensor."),
    "pipeline": ("parallel.pipeline_race", "A transformer in two stages, beside one process."),
    "liars": ("federated.liars_race", "Rules against federated clients that lie."),
    "seldom": ("links.seldom_race", "Workers that meet seldom over a slow link, beside codecs."),
    "shares": ("shares.shares_race", "Workers of unlike speed: shares that follow it, beside equal ones."),
    "scaling": ("links.scaling_accuracy", "What `tfdist plan` predicts over slow links, beside steps of fit."),
    "rounds": ("federated.rounds_race", "Rounds of simulated clients, beside Flower's simulation."),
    "factors": ("factors.factors_race", "Alternating least squares, beside `implicit` and NumPy."),
    "secure": ("federated.secure_race", "Secure sums, beside SecAgg+ of Flower and the plain mean."),
    "search": ("searches.trials_race", "Trials in an hour, beside Keras Tuner and Ray Tune."),
    "plan": ("parallel.plan_accuracy", "What plans predict of steps, beside steps of fit."),
}


class _Benchmarks(Main):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = importlib.import_module(f"benchmarks.{COMMANDS[cmd_name][0]}").command
        return found


@click.group(
    cls=_Benchmarks,
    package="benchmarks",
    modules="{}",
    table={name: text for name, (_, text) in COMMANDS.items()},
    examples={
        "python -m benchmarks data --help": "its sides, columns and options",
        "python -m benchmarks data --quick": "whether it runs: seconds",
        "python -m benchmarks checkpoint --json report.json": "the tables, and a file for programs",
    },
    context_settings=SETTINGS,
)
def main() -> None:
    """Compare tfdist with its peers, in turns within one run. Users do not need it: it is not installed with tfdist.

    A benchmark prints tables. A figure is a ratio of the two sides' times in the same round, given as median
    [quartiles]; above 1 tfdist is faster, unless the benchmark says otherwise. Absolute times depend on the machine and
    its other work; ratios depend on them much less. docs/benchmarks.md has the results, with hardware and dates.
    `tfdist bench` measures your own cluster: all-reduces, steps and gradient compression.
    """


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
