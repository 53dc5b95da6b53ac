"""`tfdist plan simulate`: simulate a job with stragglers, failures and workers that come and go."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import click
import numpy as np

from tfdist.cli.common.command import PASSES_ARGUMENTS, Command
from tfdist.cli.common.option_parts import OutputFile, json_option, write_json
from tfdist.cli.common.progress import Phases, screen, unwinding
from tfdist.cli.plan.plan_options import (
    measured_network,
    measured_rate,
    plan_options,
    profile_of,
    record,
    require_source,
)
from tfdist.planner.scaling.job_simulator import Scenario, Simulated, simulate
from tfdist.planner.scaling.job_steps import METHODS, Job, predict
from tfdist.planner.scaling.planned_request import on_device, save_seconds, surroundings
from tfdist.planner.scaling.save_interval import Failures, best_interval
from tfdist.planner.scaling.scaling_report import shown_seconds
from tfdist.validation import as_seconds, counted

_METHOD = f"How workers share the training: {', '.join(METHODS[1:])}."


@click.command(
    "simulate",
    cls=Command,
    context_settings=PASSES_ARGUMENTS,
    groups={
        "The job": ("workers", "method", "steps", "link", "hosts", "device", "precision", "noise", "grows"),
        "What happens to it": ("slow", "mtbf", "restart", "shape", "save", "interval", "least", "away", "seed"),
        "What is read and written": ("profile", "timeout_seconds", "trace", "json_path"),
    },
    examples={
        "tfdist plan simulate --workers 8 --slow 3=4 train.py": "worker 3 is slow",
        "tfdist plan simulate --workers 64 --grow --mtbf 4h --min-workers 32 train.py": "elastic",
        "tfdist plan simulate --profile costs.json --workers 4 --link 1gbit --trace job.json": "",
    },
    page="plan-simulator",
)
@click.option("--workers", type=click.IntRange(1), default=8, help="Number of workers, with a device each.")
@click.option("--method", type=click.Choice(METHODS[1:]), default="data", metavar="NAME", help=_METHOD)
@click.option("--steps", type=click.IntRange(1), default=1000, help="Steps to train.")
@plan_options
@click.option("--slow", multiple=True, metavar="WORKER=TIMES", help="A worker that computes longer; repeatable.")
@click.option("--mtbf", metavar="TIME", help="Mean time between failures of a worker, as 4h.")
@click.option("--restart", default="2m", metavar="TIME", help="Time until training continues.")
@click.option("--shape", type=float, default=1.0, help="Weibull's shape; below 1: early failures.")
@click.option("--save", type=click.FloatRange(0, min_open=True), help="Seconds that a checkpoint takes.")
@click.option("--save-every", "interval", metavar="TIME", help="Time between checkpoints; by default the best.")
@click.option("--min-workers", "least", type=click.IntRange(1), help="Fewest workers with which the job continues.")
@click.option("--away", default="10m", metavar="TIME", help="Time until a failed worker is back.")
@click.option("--seed", type=int, default=0, help="Seed of all random numbers.")
@click.option("--trace", metavar="FILE", type=OutputFile(path_type=Path), help="Write ten steps as a chrome trace.")
@json_option
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    script: str | None,
    arguments: tuple[str, ...],
    is_module: bool,
    profile: str | None,
    timeout_seconds: float,
    trace: Path | None,
    json_path: str | None,
    **asked: Any,
) -> None:
    """Simulate a job step by step, and compare it with the prediction.

    Each worker's computing time is drawn at random around that of the profile. A job that fails goes back to its last
    checkpoint. SCRIPT is measured as by `tfdist plan`.
    """
    require_source(profile, script, is_module=is_module)
    slow = dict(_slow(text, asked["workers"]) for text in asked["slow"])
    failures = _failures(asked)
    kept = record()
    with unwinding(), Phases() as phases:
        network = measured_network(asked, kept.calibration, timeout_seconds=timeout_seconds, told=phases.update)
        costs = profile_of(
            profile,
            script,
            arguments,
            is_module=is_module,
            seconds=timeout_seconds,
            told=phases.update,
            workers=1 if asked["grows"] else asked["workers"],
        )
        around = surroundings(
            kept.calibration,
            network=network,
            rate=measured_rate(costs, asked["device"], kept.calibration, told=phases.update),
            **{name: asked[name] for name in ("device", "precision", "noise")},
        )
        phases.update("simulating")
        workers = asked["workers"]
        batch = costs.batch * (workers if asked["grows"] else 1)
        job = around.job(on_device(costs, around.device, kept.calibration), asked["method"], workers, batch)
        saving = save_seconds(asked["save"], costs, kept.calibration)
        scenario = Scenario(
            steps=asked["steps"],
            seed=asked["seed"],
            slow=slow,
            failures=failures,
            save_seconds=saving,
            interval_seconds=_interval(asked["interval"], saving, failures, workers),
            least=asked["least"],
            away_seconds=as_seconds(asked["away"], name="--away"),
        )
        found = simulate(job, scenario)
    if json_path != "-":
        for note in around.notes:
            screen(highlight=False).print(note, style="dim", soft_wrap=True)
        _print(job, scenario, found)
    write_json(_json(job, scenario, found), json_path)
    if trace is not None:
        from tfdist.planner.scaling.simulated_trace import trace_of

        trace.write_text(trace_of(job, scenario), encoding="utf-8")
        click.echo(f"wrote {trace}", err=True)


def _slow(text: str, workers: int) -> tuple[int, float]:
    worker, equals, times = text.partition("=")
    try:
        found = int(worker), float(times)
    except ValueError:
        equals = ""
        found = 0, 1.0
    if not equals or not 0 <= found[0] < workers:
        raise click.UsageError(f"--slow is {text!r}; write a worker from 0 to {workers - 1} and a factor, as 0=4.")
    return found


def _failures(asked: dict[str, Any]) -> Failures | None:
    if asked["mtbf"] is None:
        return None
    return Failures(
        mtbf_seconds=as_seconds(asked["mtbf"], name="--mtbf"),
        restart_seconds=as_seconds(asked["restart"], name="--restart"),
        shape=asked["shape"],
    )


def _interval(given: str | None, save: float, failures: Failures | None, workers: int) -> float:
    if given is not None:
        return as_seconds(given, name="--save-every")
    return math.inf if failures is None else best_interval(save, failures.of_workers(workers))


def _print(job: Job, scenario: Scenario, found: Simulated) -> None:
    console = screen(highlight=False)
    usual, late = (float(one) for one in np.quantile(found.step_seconds, [0.5, 0.99]))
    predicted = predict(job).seconds
    console.print(
        f"{counted(job.workers, 'worker')}, {job.method}: {counted(scenario.steps, 'step')} take "
        f"{shown_seconds(found.seconds)}{'' if found.is_finished else ' and are not finished'}"
    )
    console.print(
        f"step: {shown_seconds(usual)}, one of a hundred over {shown_seconds(late)}; "
        f"predicted {shown_seconds(predicted)}"
    )
    console.print(f"{found.waited:.1%} of the workers' computing time is waiting for others")
    if scenario.failures is not None:
        console.print(
            f"{counted(found.failures, 'failure')}, {counted(found.repeated, 'step')} repeated, "
            f"{counted(found.saves, 'checkpoint')} of {shown_seconds(scenario.save_seconds)}, one every "
            f"{shown_seconds(scenario.interval_seconds)}"
        )


def _json(job: Job, scenario: Scenario, found: Simulated) -> str:
    content = {key: value for key, value in dataclasses.asdict(found).items() if key != "step_seconds"}
    quantiles = {f"{part:g}": float(np.quantile(found.step_seconds, part)) for part in (0.01, 0.5, 0.9, 0.99)}
    every = scenario.interval_seconds
    told = {
        "version": 1,
        "workers": job.workers,
        "method": job.method,
        "steps": scenario.steps,
        "predicted_step_seconds": predict(job).seconds,
        "step_seconds": quantiles,
        "save_interval_seconds": every if every < math.inf else None,
    }
    return json.dumps({**told, **content}, indent=2)
