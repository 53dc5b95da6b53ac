"""Options that `tfdist plan scale` and `tfdist plan simulate` share: the profile, the network, the device."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from tfdist.jobs.plan.launch_config import LaunchConfig, require_script
from tfdist.planner import machine
from tfdist.planner.device_kinds import DeviceKind
from tfdist.planner.layer_profile import Profile, read
from tfdist.planner.planner_link import Link
from tfdist.planner.scaling import plan_record
from tfdist.planner.scaling.device_table import DEVICES, HERE, PRECISIONS, device_of, link_of
from tfdist.planner.scaling.host_network import HostNetwork
from tfdist.planner.scaling.plan_record import Calibration
from tfdist.processes.shared_memory import observe_gpus

#: of a worker's step, where nothing was measured and nothing is said
ASSUMED_NOISE = 0.03
_ASSUMED_DISK = 1e9
_ASSUMED_CODEC = 1e-4, 1e-9
_ASSUMED_STEP = 1e-3
_LEAST_SAVE = 0.1
_DIVISORS = (2, 8, 32, 128)  # the times of batches between two that were measured lie on a line

_Function = TypeVar("_Function", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--link", metavar="LINK", help="Between hosts: 10gbit, 25gbit:0.02 (with ms), ndr, ..."),
    click.option("--hosts", metavar="N:LINK", help="Devices of a host and their link, as 8:nvlink4."),
    click.option("--device", default=HERE, show_default=True, metavar="NAME", help="h100, a100, ..., or 12x this one."),
    click.option(
        "--precision",
        type=click.Choice(PRECISIONS),
        default=PRECISIONS[0],
        show_default=True,
        metavar="NAME",
        help="Of a device by name: float32, mixed.",
    ),
    click.option("--noise", type=click.FloatRange(0), help="By which part a worker's steps differ; else measured."),
    click.option("--grow", "grows", is_flag=True, help="A worker keeps the batch of one device, not its share."),
    click.option("--profile", metavar="FILE", help="Read the layers' costs; run nothing."),
)


def plan_options(function: _Function) -> _Function:
    """A decorator that adds the options."""
    for one in reversed(_OPTIONS):
        function = one(function)
    return function


@dataclasses.dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Where a job is to run.

    Attributes:
        network: between its workers.
        device: of each.
        noise: of a worker's computing.
        codec: seconds of PowerSGD for a layer's gradients, and for each byte of them.
        notes: what was assumed, for the user.
    """

    network: HostNetwork
    device: DeviceKind
    noise: float
    codec: tuple[float, float]
    notes: tuple[str, ...]


def network_of(link: str | None, hosts: str | None, device: str, found: Calibration | None) -> HostNetwork:
    """Return the network that options say, else that of the calibration, else one that is measured now."""
    between = link_of(link) if link is not None else found.link if found is not None else None
    if between is None:
        from tfdist.tune.profiling import measured_link

        between = measured_link()
    per_host, inside = _hosts(hosts)
    return HostNetwork(link=between, per_host=per_host, inside=inside, has_trees=device.lower() in DEVICES)


def on_processors(
    counts: tuple[int, ...], network: HostNetwork, device: str
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the numbers of workers that this host has a processor or a GPU for each of, and what is left out."""
    if not network.link.is_local or device.lower() != HERE:
        return counts, ()
    most = max(len(os.sched_getaffinity(0)), observe_gpus())
    kept = tuple(one for one in counts if one <= most)
    if kept == counts:
        return counts, ()
    text = f"this host has {most} processor(s), so more workers are left out; --link 10gbit plans for hosts like it"
    if not kept:
        raise click.UsageError(f"--workers: {text}.")
    return kept, (text,)


def surroundings(
    profile: Profile,
    found: Calibration | None,
    *,
    network: HostNetwork,
    device: str,
    precision: str,
    noise: float | None,
) -> Surroundings:
    """Return what the options say, and the calibration where they say nothing."""
    notes = []
    own = machine.describe()["processor"]
    is_here = profile.machine.get("processor", own) == own
    rate = None
    if device.lower() in DEVICES and is_here:
        from tfdist.tune.calibrating import matrix_rate

        rate = matrix_rate() if found is None else found.flops
    kind = device_of(device, here=rate, precision=precision)
    if rate is not None:
        notes.append(f"{kind.name}: {kind.speed:,.0f} times this machine, by its data sheet and an assumed efficiency")
    if noise is None:
        noise = ASSUMED_NOISE if found is None else found.noise
        if found is None:
            notes.append(f"noise: {noise:.0%} is assumed; `tfdist plan calibrate` measures it")
    codec = _ASSUMED_CODEC if found is None else (found.codec_seconds, found.codec_seconds_per_byte)
    return Surroundings(network=network, device=kind, noise=noise, codec=codec, notes=tuple(notes))


def _hosts(text: str | None) -> tuple[int, Link | None]:
    if text is None:
        return 1, None
    count, _, rest = text.partition(":")
    if not count.isdigit() or not int(count) or not rest:
        raise click.UsageError(f"--hosts is {text!r}; write the devices of a host and their link, as 8:nvlink4.")
    return int(count), link_of(rest)


def require_source(profile: str | None, script: str | None, *, is_module: bool) -> None:
    """Refuse a command that gives neither a profile nor a script that is there."""
    if profile is not None:
        return
    if script is None:
        raise click.UsageError("Give the SCRIPT whose model is measured, or --profile FILE.")
    require_script(LaunchConfig(target=script, is_module=is_module))


def profile_of(
    profile: str | None,
    script: str | None,
    arguments: tuple[str, ...],
    *,
    is_module: bool,
    seconds: float,
    workers: int,
    beside: int = 1,
) -> Profile:
    """Return the profile of a file, or of a script in one process, and in so many of this host beside each other."""
    if profile is not None:
        return read(profile)
    from tfdist.tune.profiling import measured

    return measured(
        (script or "", *arguments),
        devices=beside,
        is_module=is_module,
        divisors=[1, *(one for one in _DIVISORS if one < 8 * workers)],
        timeout_seconds=seconds,
    )


def on_device(profile: Profile, device: DeviceKind, found: Calibration | None) -> Profile:
    """Return a profile whose step takes on another device as long as a compiled step of nothing, at least."""
    if device.name == HERE:
        return profile
    least = _ASSUMED_STEP if found is None else found.step_seconds
    alone = profile.alone and on_device(profile.alone, device, found)
    return dataclasses.replace(profile, fixed_seconds=max(profile.fixed_seconds, least), alone=alone)


def record() -> plan_record.Record:
    """Return the record of this machine."""
    return plan_record.read(plan_record.path_of(os.environ))


def save_seconds(given: float | None, profile: Profile, found: Calibration | None) -> float:
    """Return the seconds of a save: given, or of writing all weights and slots."""
    if given is not None:
        return given
    size = profile.parameter_bytes + profile.slot_bytes
    rate = _ASSUMED_DISK if found is None else found.disk_bytes_per_second
    return max(size / rate, _LEAST_SAVE)
