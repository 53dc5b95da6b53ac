"""`tfdist parallel plan`: the fastest division of a model over devices that fits."""

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from tfdist.cli.common.command import PASSES_ARGUMENTS, Command
from tfdist.cli.common.option_parts import OutputFile, json_option, write_json
from tfdist.cli.common.progress import Phases, screen, unwinding
from tfdist.cli.plan.plan_options import require_source, timeout_option, words_of
from tfdist.planner.device_kinds import DeviceKind
from tfdist.planner.division_plans import Plan, Report, plans, shown_bytes
from tfdist.planner.layer_profile import Profile, read, shown_processes
from tfdist.planner.planner_link import Link
from tfdist.planner.scaling import plan_record
from tfdist.planner.stage_cost import SCHEDULES
from tfdist.planner.stage_search import OBJECTIVES
from tfdist.planner.tensor_layouts import layouts
from tfdist.processes.shared_memory import observe_gpus
from tfdist.validation import as_bytes, counted


@click.command(
    "plan",
    cls=Command,
    context_settings=PASSES_ARGUMENTS,
    groups={
        "Devices": ("devices", "memory", "kinds", "link", "delay_ms", "threads"),
        "What is planned": ("schedule", "microbatches", "objective", "with_layouts"),
        "What is measured, and where it goes": ("at_once", "profile", "save_profile", "timeout_seconds", "json_path"),
    },
    examples={
        "tfdist parallel plan --devices 4 --memory 8GB train.py": "devices of this host",
        "tfdist parallel plan --devices 4 --link 10gbit train.py": "on a network",
        "tfdist parallel plan --kind fast=2,speed=3,price=2 --kind old=4,price=1 --link 1gbit train.py": "",
    },
    epilog="Exit code: 0 when a plan fits, 1 when none does or the script fails, 2 when the request makes no sense.",
    page="parallel-plan",
)
@click.option("--devices", type=int, metavar="N", help="Number of devices of one kind.")
@click.option("--memory", metavar="SIZE", help="Memory of each for the model, such as 8GB.")
@click.option(
    "--kind", "kinds", multiple=True, metavar="NAME=N,...", help="Devices of a kind, in place of --devices; repeatable."
)
@click.option("--link", metavar="RATE", help="Link between devices, as 1gbit; else calibrated or measured.")
@click.option("--delay", "delay_ms", type=float, default=0.05, help="Delay of the link, ms each way.")
@click.option("--threads", type=click.IntRange(1), help="Processor threads of a device; all by default.")
@click.option(
    "--schedule",
    type=click.Choice(SCHEDULES),
    default=SCHEDULES[0],
    metavar="NAME",
    help=f"Schedule of pipelines: {', '.join(SCHEDULES)}.",
)
@click.option(
    "--microbatches", type=click.IntRange(1), metavar="M", help="Micro-batches of a pipeline; by default powers of 2."
)
@click.option(
    "--objective",
    type=click.Choice(OBJECTIVES),
    default="time",
    metavar="NAME",
    help="Minimize the time or price of a step.",
)
@click.option("--layouts", "with_layouts", is_flag=True, help="Also show which layers divide weights, by HyPar's rule.")
@click.option(
    "--at-once",
    type=click.IntRange(1),
    metavar="N",
    help="Processes measured at the same time; by default as many as run side by side on this host.",
)
@click.option("--profile", metavar="FILE", help="Read the layers' costs; run nothing.")
@click.option("--save-profile", metavar="FILE", type=OutputFile(path_type=Path), help="Write the costs for --profile.")
@timeout_option
@json_option
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    devices: int | None,
    memory: str | None,
    kinds: tuple[str, ...],
    link: str | None,
    delay_ms: float,
    threads: int | None,
    schedule: str,
    microbatches: int | None,
    objective: str,
    with_layouts: bool,
    at_once: int | None,
    profile: str | None,
    save_profile: Path | None,
    timeout_seconds: float,
    json_path: str | None,
    is_module: bool,
    script: str | None,
    arguments: tuple[str, ...],
) -> None:
    """Find the fastest division of a model over devices that fits into memory: data parallelism, pipelines, or both.

    SCRIPT is your training script, unchanged. It runs in a process of its own up to its first call of fit, where the
    layers of the model are measured with its first batch; nothing trains. If the devices are processes of this host (no
    --link, no --kind), SCRIPT then runs in as many processes at once, each with a processor or a GPU and memory. They
    share caches and the clock, as the processes of a plan do. --at-once 1 skips that.
    """
    found = _kinds(devices, memory, kinds)
    count = sum(one.count for one in found)
    _require_at_once(at_once, count, profile)
    given = None if link is None else replace(Link.parse(link, delay_ms=delay_ms), is_direct=not observe_gpus())
    require_source(profile, script, is_module=is_module)
    words = words_of(script, arguments, is_module=is_module)
    quiet = json_path == "-"
    with unwinding(), Phases() as phases:
        if profile is not None:
            costs = read(profile)
        else:
            from tfdist.tune.profiling import measured

            costs = measured(
                (script or "", *arguments),
                devices=count,
                at_once=at_once if at_once or (link is None and not kinds) else 1,
                is_module=is_module,
                divisors=sorted({count, count * 4}),
                threads=threads,
                timeout_seconds=timeout_seconds,
                told=phases.update,
            )
        if save_profile is not None:
            save_profile.write_text(costs.to_json(), encoding="utf-8")
        if given is None and (given := plan_record.local_link(os.environ)) is None:
            from tfdist.tune.profiling import measured_link

            given = measured_link(timeout_seconds=timeout_seconds, told=phases.update)
        phases.update("planning")
        report = plans(costs, found, given, schedule=schedule, microbatches=microbatches, objective=objective)
    if not quiet:
        _print(report, words)
        if with_layouts:
            _print_layouts(report)
    write_json(report.to_json(), json_path)
    if report.best is None:
        sys.exit(1)


def _kinds(devices: int | None, memory: str | None, kinds: tuple[str, ...]) -> list[DeviceKind]:
    if (devices is None) == (not kinds):
        raise click.UsageError("Give --devices N, or --kind NAME=N,... for each kind of devices.")
    if kinds:
        if memory is not None:
            raise click.UsageError("--memory goes with --devices; a kind has its own: --kind fast=2,memory=16GB.")
        return [DeviceKind.parse(text) for text in kinds]
    return [DeviceKind(count=devices or 0, memory_bytes=math.inf if memory is None else as_bytes(memory))]


def _require_at_once(at_once: int | None, devices: int, profile: str | None) -> None:
    if at_once is None:
        return
    if profile is not None:
        raise click.UsageError(
            "--at-once is for measuring, and --profile reads earlier measurements. Omit one of them."
        )
    if at_once > devices:
        raise click.UsageError(
            f"--at-once is {at_once}, more than the {counted(devices, 'device')}; give at most {devices}."
        )


def _print(report: Report, script: Sequence[str]) -> None:
    console = screen(200, highlight=False)
    profile: Profile = report.profile
    weights = f"{len(profile.layers)} layers, {shown_bytes(profile.parameter_bytes)} of weights"
    console.print(escape(f"{profile.model}: {weights}, {profile.batch:,} examples in a step; line: {report.link}"))
    alone = ", one device in one alone" if profile.alone is not None else ""
    console.print(f"measured in {shown_processes(profile.processes)}{alone}", style="dim")
    covered = ", ".join(f"{part:.0%}" for part in profile.coverage)
    console.print(
        f"layers sum up to {covered} of the whole model, for {', '.join(map(str, profile.batch_sizes))} examples",
        style="dim",
    )
    priced = any(one.price for one in report.kinds)
    columns = ["plan", "step, ms", "largest term", "bubble", "micro-batches", "memory"]
    columns += ["price of a step"] if priced else []
    table = Table(*columns, "stages begin with", box=None, padding=(0, 2))
    for one in report.plans:
        style = "green" if one is report.best else "" if one.fits else "dim"
        price = [f"{one.price:.3g}"] if priced else []
        table.add_row(*_cells(one), *price, escape(", ".join(one.layers)) or "-", style=style)
    console.print(table)
    console.print(escape(report.verdict()), soft_wrap=True)
    best = report.best
    if best is not None and best.command(script):
        console.print(escape(best.command(script)), soft_wrap=True, style="bold")
        if best.code():
            text = f"Without from_environment() in the script: PipelineStrategy({best.code()}, ...)"
            console.print(escape(text), soft_wrap=True)


def _print_layouts(report: Report) -> None:
    found = layouts(report.profile, sum(one.count for one in report.kinds))
    table = Table("layer", *(f"halving {level}" for level in range(1, len(found.levels) + 1)), box=None, padding=(0, 2))
    for name, *choices in zip(found.names, *found.levels, strict=True):
        table.add_row(escape(name), *choices)
    console = screen(200, highlight=False)
    console.print()
    console.print(table)
    console.print(
        f"what each halving of the devices divides; {shown_bytes(found.bytes)} travel in a step, and "
        f"{shown_bytes(found.data_bytes)} where all divide the batch",
        soft_wrap=True,
    )


def _cells(one: Plan) -> list[str]:
    found = one.prediction
    term = found.dominant
    memory = shown_bytes(one.memory.total) + ("" if one.fits else f": too much {one.memory.largest}")
    pipeline = len(one.stages) > 1
    return [
        one.name,
        f"{1e3 * found.seconds:,.3g}",
        f"{term} {getattr(found, term) / found.seconds if found.seconds else 0:.0%}",
        f"{found.bubble_part:.0%}" if pipeline else "-",
        str(one.microbatches) if pipeline else "-",
        memory,
    ]
