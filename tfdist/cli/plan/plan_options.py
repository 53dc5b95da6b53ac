"""Options that `tfdist plan scale` and `tfdist plan simulate` share: the profile, the network, the device."""

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from tfdist.jobs.plan.launch_config import LaunchConfig, require_valid_script
from tfdist.planner.layer_profile import Profile, read
from tfdist.planner.scaling import plan_record
from tfdist.planner.scaling.device_table import HERE, PRECISIONS, device_of, link_of
from tfdist.planner.scaling.host_network import HostNetwork
from tfdist.planner.scaling.plan_record import Calibration
from tfdist.planner.scaling.planned_request import is_compared, network_of
from tfdist.processes.shared_memory import observe_gpus
from tfdist.validation import counted

_DIVISORS = (2, 8, 32, 128)  # of the batch, to be measured; times between them are interpolated

_Function = TypeVar("_Function", bound=Callable[..., Any])

timeout_option = click.option(
    "--timeout-seconds", type=click.FloatRange(1), default=600.0, metavar="S", help="Longest time for each measurement."
)
_OPTIONS = (
    click.option("--link", metavar="LINK", help="Between hosts: 10gbit, 25gbit:0.02 (with ms), ndr, ..."),
    click.option("--hosts", metavar="N:LINK", help="Devices of a host and their link, as 8:nvlink4."),
    click.option("--device", default=HERE, metavar="NAME", help="Device: h100, a100, ..., or 12x this one."),
    click.option(
        "--precision",
        type=click.Choice(PRECISIONS),
        default=PRECISIONS[0],
        metavar="NAME",
        help="For named devices: float32, mixed.",
    ),
    click.option("--noise", type=click.FloatRange(0), help="Variation of a worker's steps, as a part; else measured."),
    click.option("--grow", "grows", is_flag=True, help="A worker keeps the batch of one device, not its share."),
    click.option("--profile", metavar="FILE", help="Read the layers' costs; run nothing."),
    timeout_option,
)


def plan_options(function: _Function) -> _Function:
    """Add the options to a command."""
    for one in reversed(_OPTIONS):
        function = one(function)
    return function


def measured_network(
    asked: Mapping[str, Any], found: Calibration | None, *, timeout_seconds: float, told: Callable[[str], None]
) -> HostNetwork:
    """Return the network of the options, or else that of the calibration, or else one that is measured now."""
    link, device = asked["link"], asked["device"]
    device_of(device, here=1.0)  # raises for an unknown device before anything is measured
    between = link_of(link) if link is not None else found.link if found is not None else None
    if between is None:
        from tfdist.tune.profiling import measured_link

        between = measured_link(timeout_seconds=timeout_seconds, told=told)
    return network_of(between, asked["hosts"], device)


def on_processors(
    counts: tuple[int, ...], network: HostNetwork, device: str
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the numbers of workers for which this host has enough processors or GPUs, and notes about the others."""
    if not network.link.is_local or device.lower() != HERE:
        return counts, ()
    most = max(len(os.sched_getaffinity(0)), observe_gpus())
    kept = tuple(one for one in counts if one <= most)
    if kept == counts:
        return counts, ()
    text = (
        f"this host has {counted(most, 'processor')}, so more workers are left out; --link 10gbit plans for hosts like "
        "it"
    )
    if not kept:
        raise click.UsageError(f"--workers: {text}.")
    return kept, (text,)


def measured_rate(
    profile: Profile, device: str, found: Calibration | None, *, told: Callable[[str], None]
) -> float | None:
    """Return the speed of matrix products here, calibrated or measured now; None if no device is compared with it."""
    if not is_compared(profile, device):
        return None
    if found is not None:
        return found.flops
    from tfdist.tune.calibrating import matrix_rate

    told("measuring matrix products")
    return matrix_rate()


def require_source(profile: str | None, script: str | None, *, is_module: bool) -> None:
    """Refuse a command that names neither a readable profile nor an existing script."""
    if profile is not None:
        read(profile)
        return
    if script is None:
        raise click.UsageError("Give the SCRIPT whose model is measured, or --profile FILE.")
    require_valid_script(LaunchConfig(target=script, is_module=is_module))


def words_of(script: str | None, arguments: tuple[str, ...], *, is_module: bool) -> tuple[str, ...]:
    """Return the script and its arguments for the commands that are shown."""
    return ("train.py",) if script is None else (*(["-m"] if is_module else []), script, *arguments)


def profile_of(
    profile: str | None,
    script: str | None,
    arguments: tuple[str, ...],
    *,
    is_module: bool,
    seconds: float,
    workers: int,
    told: Callable[[str], None],
    beside: int = 1,
) -> Profile:
    """Return the profile of a file, or of a script, measured in one process and in ``beside`` processes at once."""
    if profile is not None:
        return read(profile)
    from tfdist.tune.profiling import measured

    return measured(
        (script or "", *arguments),
        devices=beside,
        is_module=is_module,
        divisors=[1, *(one for one in _DIVISORS if one < 8 * workers)],
        timeout_seconds=seconds,
        told=told,
    )


def record() -> plan_record.Record:
    """Return the record of this machine."""
    return plan_record.read(plan_record.path_of(os.environ))
