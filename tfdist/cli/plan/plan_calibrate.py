"""`tfdist plan calibrate`: measure the speeds of this machine on which predictions are based."""

import click
from rich.markup import escape

from tfdist.cli.common.command import Command
from tfdist.cli.common.progress import Phases, screen, unwinding
from tfdist.cli.plan.plan_options import record, timeout_option


@click.command(
    "calibrate",
    cls=Command,
    examples={
        "tfdist plan calibrate": "run nothing else meanwhile",
        "tfdist plan calibrate --show": "prints the record",
        "tfdist run -n 4 --hosts hosts.txt -m tfdist.tune.calibrating": "between hosts",
    },
    page="plan",
)
@click.option("--show", is_flag=True, help="Measure nothing; print the record.")
@timeout_option
def command(show: bool, timeout_seconds: float) -> None:
    """Measure the link between two processes of this host, matrix products, memory, disk, messages and steps.

    The record is in the cache. `tfdist plan` takes from it everything that its options do not give, and the intervals
    of its predictions. `tfdist run --monitor` adds the measured step of each command that was planned here.
    """
    if not show:
        from tfdist.tune.calibrating import calibration, keep

        with unwinding(), Phases() as phases:
            path = keep(calibration(phases.update, timeout_seconds=timeout_seconds))
        click.echo(f"wrote {path}", err=True)
    found, console = record(), screen(highlight=False)
    one = found.calibration
    if one is None:
        raise click.ClickException("nothing has been measured on this machine. Run `tfdist plan calibrate`.")
    console.print(escape(f"link       {one.link}"))
    console.print(f"matrices   {one.flops / 1e9:,.1f} Gflop/s, float32")
    console.print(f"memory     {one.memory_bytes_per_second / 1e9:.1f} GB/s copied")
    console.print(f"disk       {one.disk_bytes_per_second / 1e6:,.0f} MB/s written")
    console.print(f"step       {1e6 * one.step_seconds:.0f} us for a compiled function of nothing")
    console.print(f"noise      {one.noise:.1%} between steps")
    about = one.machine
    console.print(
        escape(f"{about['processor']}, {about['cores']} cores; {about['link']}; {about['time']}"), style="dim"
    )
    low, high = found.factors()
    if found.pairs:
        console.print(f"monitored runs: {len(found.pairs)}; interval of the next: {low:.2f} to {high:.2f}")
    for pair in found.pairs[-10:]:
        console.print(
            escape(f"  {1e3 * pair.predicted:.3g} ms predicted, {1e3 * pair.measured:.3g} measured: {pair.key}"),
            soft_wrap=True,
        )
