"""`tfdist plan scale`: step, time and price for numbers of workers, and the number to choose."""

import os
import sys
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from tfdist.cli.common.command import PASSES_ARGUMENTS, Command
from tfdist.cli.common.option_parts import OutputFile, json_option, plot_option, write_json
from tfdist.cli.common.progress import Phases, screen, unwinding
from tfdist.cli.plan.plan_options import (
    measured_network,
    measured_rate,
    on_processors,
    plan_options,
    profile_of,
    record,
    require_source,
    words_of,
)
from tfdist.errors import ConfigError
from tfdist.planner.plot_style import require_matplotlib
from tfdist.planner.scaling import plan_record
from tfdist.planner.scaling.job_steps import EXACT, METHODS
from tfdist.planner.scaling.planned_request import prices_of, request_of, surroundings
from tfdist.planner.scaling.scaling_report import (
    Request,
    Row,
    ScalingReport,
    numbers_of,
    plan_scaling,
    shown_price,
    shown_seconds,
    strategy_of,
)
from tfdist.validation import as_seconds

_OF_REQUEST = ("grows", "epochs", "noise_scale", "price", "spot", "save", "deadline", "budget")


@click.command(
    "scale",
    cls=Command,
    context_settings=PASSES_ARGUMENTS,
    groups={
        "Workers and devices": ("workers", "link", "hosts", "device", "precision", "noise"),
        "What is trained, and what it may cost": (
            *("examples", "epochs", "grows", "noise_scale", "methods"),
            *("price", "spot", "save", "deadline", "budget"),
        ),
        "What is measured, and where it goes": ("profile", "save_profile", "timeout_seconds", "plot", "json_path"),
    },
    examples={
        "tfdist plan train.py": "processes of this host",
        "tfdist plan --workers 1..1024 --link 10gbit --device h100 train.py": "a network",
        "tfdist plan scale --price 2 --spot 0.6:mtbf=4h --examples 1e6 --deadline 24h train.py": "",
    },
    epilog="Exit code: 0 when a row meets the limits, 1 when none does or the script fails, 2 otherwise.",
    page="plan",
)
@click.option("--workers", default="1..8", metavar="N,...", help="Numbers: 1..64 doubles; or 1,2,6.")
@plan_options
@click.option("--examples", type=float, metavar="N", help="Examples of an epoch; else times are for a million.")
@click.option("--epochs", type=click.FloatRange(0, min_open=True), default=1.0, help="Epochs to train.")
@click.option("--noise-scale", type=float, metavar="N", help="Noise scale of gradients, for larger batches.")
@click.option(
    "--method",
    "methods",
    multiple=True,
    type=click.Choice([*METHODS, "all"]),
    metavar="NAME",
    help=f"Method to compare: {', '.join(METHODS)}, all; several.",
)
@click.option("--price", type=click.FloatRange(0), default=0.0, show_default=False, help="Price of a device per hour.")
@click.option("--spot", metavar="PART:mtbf=T", help="Spot: part of the price, time between failures; restart=T.")
@click.option("--save", type=click.FloatRange(0, min_open=True), help="Seconds that a checkpoint takes.")
@click.option("--deadline", metavar="TIME", help="Find the fewest workers that meet it, as 24h.")
@click.option("--budget", type=click.FloatRange(0, min_open=True), help="Budget in the currency of --price.")
@click.option(
    "--save-profile", metavar="FILE", type=OutputFile(path_type=Path), help="Write the profile for --profile."
)
@plot_option
@json_option
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    script: str | None,
    arguments: tuple[str, ...],
    is_module: bool,
    profile: str | None,
    save_profile: Path | None,
    timeout_seconds: float,
    plot: Path | None,
    json_path: str | None,
    **asked: Any,
) -> None:
    """Predict step, time and price for numbers of workers, and recommend one.

    SCRIPT runs as it is up to its first call of fit, where the layers of the model are measured; nothing trains.
    """
    require_source(profile, script, is_module=is_module)
    words = words_of(script, arguments, is_module=is_module)
    counts, examples = numbers_of(asked["workers"]), _examples(asked["examples"], asked)
    _require_limits(asked)
    if plot is not None:
        require_matplotlib()
    kept = record()
    with unwinding(), Phases() as phases:
        network = measured_network(asked, kept.calibration, timeout_seconds=timeout_seconds, told=phases.update)
        counts, left_out = on_processors(counts, network, asked["device"])
        costs = profile_of(
            profile,
            script,
            arguments,
            is_module=is_module,
            seconds=timeout_seconds,
            told=phases.update,
            workers=1 if asked["grows"] else max(counts),
            beside=max(counts) if network.link.is_local else 1,
        )
        if save_profile is not None:
            save_profile.write_text(costs.to_json(), encoding="utf-8")
        phases.update("planning")
        around = surroundings(
            kept.calibration,
            network=network,
            rate=measured_rate(costs, asked["device"], kept.calibration, told=phases.update),
            **{name: asked[name] for name in ("device", "precision", "noise")},
        )
        report = plan_scaling(
            request_of(
                costs,
                around,
                kept,
                workers=counts,
                examples=examples,
                methods=asked["methods"] or EXACT,
                script=words,
                **{name: asked[name] for name in _OF_REQUEST},
            )
        )
    if script is not None and around.device.name == "here":
        _expect(report, words)
    if json_path != "-":
        _print(report, (*left_out, *around.notes), len(kept.pairs))
    write_json(report.to_json(), json_path)
    if plot is not None:
        from tfdist.planner.scaling.scaling_picture import draw

        draw(report, plot)
        click.echo(f"wrote {plot}", err=True)
    if report.best is None:
        sys.exit(1)


def _require_limits(asked: dict[str, Any]) -> None:
    """Refuse invalid limits before anything is measured."""
    prices_of(asked["price"], asked["spot"], asked["budget"])
    if asked["deadline"] is not None:
        as_seconds(asked["deadline"], name="--deadline")


def _examples(given: float | None, asked: dict[str, Any]) -> int | None:
    if given is None:
        if asked["deadline"] or asked["budget"]:
            raise click.UsageError("--deadline and --budget need --examples, of an epoch.")
        return None
    if not (given >= 1 and given.is_integer()):
        raise click.UsageError(f"--examples is {given:g}; it must be a whole number above 0.")
    return int(given)


def _expect(report: ScalingReport, words: tuple[str, ...]) -> None:
    """Record the predicted step of each command, for comparison with a monitored run of it."""
    steps = {
        plan_record.key_of(strategy_of(one.job.method), one.job.workers, words): one.step.seconds
        for one in (*report.others, *report.rows)
        if one.job.workers > 1 and one.job.method in ("data", "sharded", "pipeline")
    }
    try:
        plan_record.change(plan_record.path_of(os.environ), lambda found: found.expecting(steps))
    except (ConfigError, OSError) as error:
        click.echo(f"warning: predictions are not kept ({error})", err=True)


def _print(report: ScalingReport, notes: tuple[str, ...], pairs: int) -> None:
    request, console = report.request, screen(200, highlight=False)
    batch = f"{request.profile.batch:,} examples {'of a worker' if request.grows else 'in a step'}"
    console.print(escape(f"{request.profile.model}: {batch}; link: {request.around.network.link}"), soft_wrap=True)
    notes = (*notes, _interval(request, pairs))
    for note in notes:
        console.print(escape(note), style="dim", soft_wrap=True)
    priced, spot = any(one.hourly for one in request.prices), len(request.prices) > 1
    per = "epoch" if request.examples is not None else "10^6 examples"
    total = ["training"] if request.examples is not None and request.epochs != 1 else []
    columns = ["plan", "step", "interval", "largest term", "efficiency", per, *total]
    columns += ["price"] if priced else []
    columns += ["save every"] if spot else []
    table = Table(*columns, box=None, padding=(0, 2))
    for one in report.rows:
        style = "green" if one is report.best else "" if one.fits and one.meets else "dim"
        table.add_row(*_cells(one), *_costs(one, bool(total), priced, spot), style=style)
    console.print(table)
    if report.left_out:
        text = ", ".join(f"{one:,}" for one in report.left_out)
        console.print(f"left out: {text} workers, for a batch of {request.batch(1):,}; --grow gives each its own.")
    console.print(escape(report.verdict()), soft_wrap=True)
    if report.best is not None:
        console.print(escape(report.best.command), soft_wrap=True, style="bold")


def _interval(request: Request, pairs: int) -> str:
    low, high = request.factors
    if pairs < plan_record.FEWEST:
        return (
            f"interval: {plan_record.UNKNOWN:.0%} both ways is assumed; monitored runs of planned commands measure it"
        )
    return f"interval: steps were {low:.2f} to {high:.2f} of their prediction in {pairs} monitored runs"


def _cells(one: Row) -> list[str]:
    step = one.step
    part = getattr(step, step.dominant) / step.seconds if step.seconds else 0.0
    return [
        one.name + ("" if one.fits else " (too little memory)"),
        shown_seconds(step.seconds),
        f"{shown_seconds(one.low)} - {shown_seconds(one.high)}",
        f"{step.dominant} {part:.0%}",
        f"{one.efficiency:.0%}",
    ]


def _costs(one: Row, total: bool, priced: bool, spot: bool) -> list[str]:
    found = [shown_seconds(one.epoch_seconds)]
    found += [shown_seconds(one.cost.seconds)] if total else []
    found += [shown_price(one.cost.price)] if priced else []
    interval = one.cost.interval_seconds
    return found + ([shown_seconds(interval) if interval is not None else "-"] if spot else [])
