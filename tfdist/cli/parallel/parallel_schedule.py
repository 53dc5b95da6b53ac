"""`tfdist parallel schedule`: the timeline of a pipeline's schedule."""

from pathlib import Path

import click

from tfdist.cli.common.command import Command
from tfdist.cli.common.option_parts import plot_option
from tfdist.planner import schedules
from tfdist.planner.plot_style import require_matplotlib
from tfdist.planner.schedules import schedule_picture
from tfdist.tune.schedule_run import measured


@click.command(
    cls=Command,
    examples={
        "tfdist parallel schedule 1f1b --stages 4 --microbatches 8": "a line for each stage",
        "tfdist parallel schedule interleaved --chunks 2 --plot timeline.png": "as a picture",
        "tfdist parallel schedule gpipe --backward 1": "as long as a forward pass",
        "tfdist parallel schedule 1f1b --stages 3 --measure --plot run.png": "beside a step that is run",
    },
    page="pipeline-schedules",
)
@click.option("--stages", type=click.IntRange(1, 64), default=4, help="Stages of the pipeline.")
@click.option("--microbatches", type=click.IntRange(1, 1024), default=8, help="Micro-batches of a batch.")
@click.option("--chunks", type=click.IntRange(1, 64), default=1, help="Parts of the model on each stage.")
@click.option(
    "--backward",
    type=click.FloatRange(0, min_open=True),
    default=2.0,
    help="Time of a backward pass, in forward passes.",
)
@click.option(
    "--measure", is_flag=True, help="Also run a step, in a process for each stage whose layers sleep; takes a minute."
)
@click.option(
    "--forward-seconds",
    type=click.FloatRange(0, 60, min_open=True),
    default=0.1,
    help="How long a forward pass sleeps with --measure.",
)
@plot_option
@click.argument("name", metavar="SCHEDULE", type=click.Choice(schedules.NAMES))
def command(
    name: str,
    stages: int,
    microbatches: int,
    chunks: int,
    backward: float,
    measure: bool,
    forward_seconds: float,
    plot: Path | None,
) -> None:
    """Show the timeline of a pipeline.

    SCHEDULE is 1f1b, eager-1f1b, gpipe, interleaved, pipedream or spectrain. F3 is the forward pass of micro-batch 3,
    B3 its backward pass, B3.1 the backward pass through the stage's second part of the model. A dot is a unit of time
    in which a stage waits. Below the timeline are the bubble (the part of the time in which stages wait), and the most
    micro-batches whose activations each stage holds. With --measure, a line shows the same for the measured step, and
    the picture has that step below the schedule.
    """
    if plot is not None:
        require_matplotlib()
    made = schedules.require_sound(schedules.named(name, stages=stages, microbatches=microbatches, chunks=chunks))
    found = schedules.timeline(made, backward=backward)
    run = measured(made, forward_seconds=forward_seconds, backward=backward) if measure else None
    if plot is not None:
        schedule_picture.draw(found, plot, measured=run)
        click.echo(f"wrote {plot}", err=True)
    else:
        click.echo(schedule_picture.as_text(found))
    click.echo(f"bubble {100 * found.bubble:.1f} %; live activations {', '.join(map(str, made.live))}")
    if run is not None:
        live = ", ".join(str(run.live(stage)) for stage in range(stages))
        click.echo(f"as run: bubble {100 * run.bubble:.1f} %; live activations {live}")
    if made.updates_each:
        ages = [
            max(work.microbatch - made.versions(stage)[work] for work in made.orders[stage]) for stage in range(stages)
        ]
        click.echo(f"weights are updated by gradients of weights that are {', '.join(map(str, ages))} updates older")
