"""`tfdist tune`: the largest batch that fits, and the fastest one."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tfdist.cli.common.command import PASSES_ARGUMENTS, SETTINGS, Command, Group
from tfdist.cli.common.option_parts import complete_strategies, json_option, plot_option, write_json
from tfdist.cli.common.progress import screen, unwinding
from tfdist.errors import ConfigError
from tfdist.jobs.plan.launch_config import LaunchConfig, check_strategy, require_valid_script
from tfdist.planner import machine
from tfdist.planner.plot_style import require_matplotlib
from tfdist.tune.batch_search import Outcome
from tfdist.tune.batch_trial import Job, Trial
from tfdist.tune.tuning import Report, tune
from tfdist.validation import as_bytes
from tfdist.variables import STRATEGY

_STYLES = {Outcome.FITS: "green", Outcome.TOO_LARGE: "yellow", Outcome.SHORT: "dim", Outcome.FAILED: "red"}


@click.group(
    cls=Group,
    examples={"tfdist tune batch train.py": "train.py uses tfdist.tune.batch_size()"},
    page="large-batch-tune",
    context_settings=SETTINGS,
)
def command() -> None:
    """Find the settings with which a script should run on this machine."""


@command.command(
    "batch",
    cls=Command,
    context_settings=PASSES_ARGUMENTS,
    groups={
        "What runs": ("strategy", "workers", "replicas_per_worker", "is_module", "argument"),
        "Which batches are tried": ("start", "most", "precision", "memory_limit", "timeout_seconds"),
        "What is measured, and where it goes": ("warm_up", "steps", "plot", "json_path"),
    },
    examples={
        "tfdist tune batch train.py": "asks tfdist.tune.batch_size()",
        "tfdist tune batch --argument=--batch-size train.py --epochs 5": "has an argument for it",
        "tfdist tune batch --strategy mirrored --plot batches.png train.py": "",
    },
    epilog="Exit code: 0 when a batch fits, 1 when none does or the script fails, 2 when the request makes no sense.",
    page="large-batch-tune",
)
@click.option(
    "--strategy", metavar="NAME", envvar=STRATEGY.name, shell_complete=complete_strategies, help="As for `tfdist run`."
)
@click.option("-n", "--workers", type=click.IntRange(1), default=1, help="As for `tfdist run`.")
@click.option("--replicas-per-worker", type=click.IntRange(1), help="As for `tfdist run`.")
@click.option("--argument", metavar="NAME", help="Argument of SCRIPT for the batch: --batch-size.")
@click.option("--start", type=click.IntRange(1), default=8, help="The first batch.")
@click.option("--max", "most", type=click.IntRange(1), default=65536, help="The largest batch to try.")
@click.option("--warm-up", type=click.IntRange(1), default=3, help="Steps before the clock starts.")
@click.option("--steps", type=click.IntRange(1), default=20, help="Steps that are measured.")
@click.option(
    "--precision",
    type=click.FloatRange(0),
    default=0.1,
    help="Precision of the largest batch, as a part of it; 0: exact.",
)
@click.option("--memory-limit", metavar="SIZE", help="Main memory that each process may allocate, such as 4G.")
@click.option("--timeout-seconds", type=click.FloatRange(1), default=600.0, help="Longest time for a batch.")
@plot_option
@json_option
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def batch(
    memory_limit: str | None,
    plot: Path | None,
    json_path: str | None,
    is_module: bool,
    script: str,
    arguments: tuple[str, ...],
    **options: Any,
) -> None:
    """Find the largest batch that fits, and the fastest.

    SCRIPT is your training script, unchanged. It gets the batch of one replica from tfdist.tune.batch_size(32), which
    returns 32 except under this command, or from an argument of its own (--argument), which is added after the others.

    Each batch is tried by `tfdist run` in processes of its own, which end after the warm-up and the measured steps. The
    batch is doubled until memory runs out. Then the limit is bisected, and so are the gaps around the fastest batch.

    "Examples/s" is over all replicas, the median over five blocks of steps. "Memory" is that of the largest process,
    and on GPUs what TensorFlow allocated.
    """
    what = {name: options.pop(name) for name in ("workers", "strategy", "replicas_per_worker")}
    tries = {name: options.pop(name) for name in ("start", "most", "precision")}
    _require_sense(LaunchConfig(target=script, is_module=is_module, **what), tries["start"], tries["most"])
    if plot is not None:
        require_matplotlib()
    of_run = {**{f"--{name.replace('_', '-')}": value for name, value in what.items()}, "--grace-seconds": 5}
    job = Job(
        run=tuple(text for name, value in of_run.items() if value is not None for text in (name, str(value))),
        script=(*(["-m"] if is_module else []), script, *arguments),
        memory_limit=None if memory_limit is None else as_bytes(memory_limit),
        **options,
    )
    quiet = json_path == "-"
    with unwinding(), Console(stderr=True).status("starting") as status:

        def show(trials: Sequence[Trial], following: int | None) -> None:
            if trials and not status.console.is_terminal:
                click.echo(_line(trials[-1]), err=True)
            elif trials:
                status.console.print(f"[{_STYLES[trials[-1].outcome]}]{escape(_line(trials[-1]))}", highlight=False)
            if following is not None:
                status.update(f"batch {following:,}")

        report = tune(job, **tries, machine=machine.describe(), on_trial=show)
    if not quiet:
        _print(report)
    write_json(report.to_json(), json_path)
    if plot is not None and report.fitting:
        from tfdist.tune.tuning import draw

        draw(report, plot)
        click.echo(f"wrote {plot}", err=True)
    if not report.fitting:
        sys.exit(1)


def _require_sense(target: LaunchConfig, start: int, most: int) -> None:
    if target.strategy == "parameter-server":
        raise ConfigError(
            "--strategy is 'parameter-server'; its workers compute parts of what a chief trains, and are not measured. "
            "Use one of the others."
        )
    check_strategy(target)
    require_valid_script(target)
    if start > most:
        raise ConfigError(f"--start is {start} and --max is {most}; the first batch must not be above the largest.")


def _line(trial: Trial) -> str:
    if trial.outcome is Outcome.FITS:
        return f"batch {trial.batch:,}: {trial.speed:,.0f} examples/s"
    return f"batch {trial.batch:,}: {trial.outcome.value} ({trial.text.splitlines()[0]})"


def _print(report: Report) -> None:
    console = screen()
    devices = any(one.device_memory for one in report.trials)
    columns = ["batch", "per replica", "examples/s", "memory, MB", *(["GPU, MB"] if devices else []), ""]
    table = Table(*columns, box=None, padding=(0, 2))
    marks = {name: trial.batch for name, trial in report.chosen.items()}
    for one in sorted(report.trials, key=lambda one: one.batch):
        if one.outcome is not Outcome.FITS:
            empty = ["-"] * (4 if devices else 3)
            table.add_row(f"{one.batch:,}", *empty, f"[{_STYLES[one.outcome]}]{one.outcome.value}")
            continue
        gpu = [f"{one.device_memory / 1e6:,.0f}"] if devices else []
        names = ", ".join(name for name, chosen in marks.items() if chosen == one.batch)
        row = [f"{one.batch:,}", f"{one.per_replica:,}", f"{one.speed:,.0f}", f"{one.memory / 1e6:,.0f}", *gpu]
        table.add_row(*row, f"[green]{names}")
    console.print(table)
    for sentence in report.verdict():
        console.print(escape(sentence), highlight=False)
    about = report.machine
    console.print(
        f"{about['processor']}, {about['cores']} cores; TensorFlow {about['tensorflow']}; {about['time']}; "
        f"load {about['load average']} before",
        highlight=False,
        style="dim",
    )
