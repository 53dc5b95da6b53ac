"""The conversion of users' words into a request, completed by the calibration. Loads no TensorFlow."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from tfdist import validation
from tfdist.errors import ConfigError
from tfdist.planner import machine
from tfdist.planner.device_kinds import DeviceKind
from tfdist.planner.layer_profile import Profile, read
from tfdist.planner.planner_link import Link
from tfdist.planner.scaling import plan_record
from tfdist.planner.scaling.device_table import DEVICES, EFFICIENCY, HERE, attained, device_of, link_of
from tfdist.planner.scaling.host_network import HostNetwork
from tfdist.planner.scaling.job_cost import Price
from tfdist.planner.scaling.job_steps import EXACT, METHODS, Surroundings
from tfdist.planner.scaling.plan_record import Calibration, Record
from tfdist.planner.scaling.scaling_report import Request, ScalingReport, numbers_of, plan_scaling

#: the noise of a worker's step if none was measured or given
ASSUMED_NOISE = 0.03
_ASSUMED_DISK = 1e9
_ASSUMED_CODEC = 1e-4, 1e-9
_ASSUMED_STEP = 1e-3
_LEAST_SAVE = 0.1


def network_of(between: Link, hosts: str | None, device: str) -> HostNetwork:
    per_host, inside = _hosts(hosts)
    by_nccl = device.strip().lower() in DEVICES
    link = dataclasses.replace(between, is_direct=not (by_nccl or between.is_local))
    return HostNetwork(link=link, per_host=per_host, inside=inside, has_trees=by_nccl)


def is_compared(profile: Profile, device: str) -> bool:
    """Return whether the speed of this machine is needed: its profile is used for a device from a data sheet."""
    own = machine.describe()["processor"]
    return device.strip().lower() in DEVICES and profile.machine.get("processor", own) == own


def surroundings(
    found: Calibration | None,
    *,
    network: HostNetwork,
    device: str,
    rate: float | None,
    precision: str = "float32",
    noise: float | None = None,
) -> Surroundings:
    """Return the given values, completed by the calibration; ``rate`` is this machine's speed on matrices."""
    notes = []
    kind = device_of(device, here=rate, precision=precision)
    speeds = attained(device, precision=precision)
    if kind.name in DEVICES:
        low, high = (EFFICIENCY * one for one in speeds)
        notes.append(
            f"{kind.name}: {kind.speed:,.0f} times this machine, at {EFFICIENCY:.0%} of its data sheet; intervals are "
            f"for {low:.0%} to {high:.0%}, as published"
        )
    if noise is None:
        noise = ASSUMED_NOISE if found is None else found.noise
        if found is None:
            notes.append(f"noise: {noise:.0%} is assumed; `tfdist plan calibrate` measures it")
    codec = _ASSUMED_CODEC if found is None else (found.codec_seconds, found.codec_seconds_per_byte)
    return Surroundings(network=network, device=kind, speeds=speeds, noise=noise, codec=codec, notes=tuple(notes))


def _hosts(text: str | None) -> tuple[int, Link | None]:
    if text is None:
        return 1, None
    count, _, rest = text.partition(":")
    if not count.isdigit() or not int(count) or not rest:
        raise ConfigError(
            f"--hosts is {text!r}; write the devices of a host and their link, as 8:nvlink4.",
            name="--hosts",
            received=text,
        )
    return int(count), link_of(rest)


def on_device(profile: Profile, device: DeviceKind, found: Calibration | None) -> Profile:
    """Return a profile for another device, whose step takes at least as long as an empty compiled step."""
    if device.name == HERE:
        return profile
    least = _ASSUMED_STEP if found is None else found.step_seconds
    alone = profile.alone and on_device(profile.alone, device, found)
    return dataclasses.replace(profile, fixed_seconds=max(profile.fixed_seconds, least), alone=alone)


def save_seconds(given: float | None, profile: Profile, found: Calibration | None) -> float:
    """Return the seconds of a save: the given ones, or the time of writing all weights and slots."""
    if given is not None:
        return given
    size = profile.parameter_bytes + profile.slot_bytes
    rate = _ASSUMED_DISK if found is None else found.disk_bytes_per_second
    return max(size / rate, _LEAST_SAVE)


def prices_of(price: float, spot: str | None, budget: float | None) -> tuple[Price, ...]:
    if (spot or budget) and not price:
        raise ConfigError("--spot and --budget need --price, of a device on demand for an hour.", name="--price")
    own = Price(hourly=price)
    return (own,) if spot is None else (own, Price.spot(spot, hourly=price))


def request_of(
    profile: Profile,
    around: Surroundings,
    record: Record,
    *,
    workers: Sequence[int],
    methods: Sequence[str],
    price: float,
    spot: str | None,
    examples: int | None,
    deadline: str | None,
    budget: float | None,
    save: float | None,
    **more: Any,
) -> Request:
    """Return the request for rows of these numbers of workers; ``more`` are fields of `Request`."""
    if examples is None and (deadline or budget):
        raise ConfigError("--deadline and --budget need --examples, of an epoch.", name="--examples")
    return Request(
        profile=on_device(profile, around.device, record.calibration),
        around=around,
        workers=tuple(workers),
        methods=METHODS if "all" in methods else tuple(methods),
        prices=prices_of(price, spot, budget),
        examples=examples,
        deadline_seconds=None if deadline is None else validation.as_seconds(deadline, name="--deadline"),
        budget=budget,
        save_seconds=save_seconds(save, profile, record.calibration),
        factors=record.factors(),
        **more,
    )


def scale(
    profile: Profile | str | os.PathLike[str],
    *,
    workers: str | Sequence[int] = "1..8",
    link: str | Link | None = None,
    hosts: str | None = None,
    device: str = HERE,
    precision: str = "float32",
    noise: float | None = None,
    methods: Sequence[str] = EXACT,
    grow: bool = False,
    examples: int | None = None,
    epochs: float = 1.0,
    noise_scale: float | None = None,
    price: float = 0.0,
    spot: str | None = None,
    save: float | None = None,
    deadline: str | None = None,
    budget: float | None = None,
    script: Sequence[str] = ("train.py",),
) -> ScalingReport:
    """Predict step, time and price of a training for numbers of workers, as ``tfdist plan`` does.

    It runs and measures nothing: missing values come from the record that ``tfdist plan calibrate`` has written on this
        machine.

    Args:
        profile: the profile of the model, from `tfdist.parallel.partition.measure`, or the file of ``--save-profile``.
        workers: the numbers of workers, such as ``[1, 2, 6]``, or "1..64", which doubles.
        link: the link between hosts: "10gbit", "25gbit:0.02" (with milliseconds), "ndr", or a `Link`; None: the
            recorded one.
        hosts: the number of devices of a host and their link, such as "8:nvlink4".
        device: the device of each worker: "here", a name such as "h100", or "12x" for twelve times this machine.
        precision: the precision for a named device: "float32" or "mixed".
        noise: the standard deviation of a worker's steps, relative to their mean; None: as recorded.
        methods: the methods to choose from; "all" for all of them.
        grow: whether a worker keeps the batch of one device.
        examples: the number of examples of an epoch; None: times are those of a million examples.
        epochs: the number of epochs to train.
        noise_scale: the noise scale of the gradients, in examples.
        price: the price of a device for an hour.
        spot: the factor of the price and the time between failures of spot capacity, such as "0.6:mtbf=4h".
        save: the seconds of a checkpoint; None: the time of writing all weights and slots.
        deadline: the longest time of the training, such as "24h".
        budget: the highest price of the training, in the currency of ``price``.
        script: the script and its arguments, for the commands of the rows.
    Returns:
        A report with a row for each number of workers and price; `ScalingReport.best` is the recommended row.
    Raises:
        ConfigError: a value is not allowed, or the link or this machine's speed is not known.

    Example:
        >>> from tfdist.parallel.partition import LayerProfile, Profile
        >>> layer = LayerProfile(name="a", forward_seconds=(0.1,), backward_seconds=(0.2,), parameter_bytes=4 << 20)
        >>> measured = Profile(model="m", batch=8, batch_sizes=(8,), layers=(layer,), whole_seconds=(0.3,))
        >>> found = scale(measured, workers=[1, 2], link="1gbit", noise=0.0, grow=True)
        >>> [(row.job.workers, round(row.step.seconds, 2)) for row in found.rows]
        [(1, 0.3), (2, 0.33)]
    """
    costs = profile if isinstance(profile, Profile) else read(str(profile))
    record = plan_record.read(plan_record.path_of(os.environ))
    found = record.calibration
    between = link_of(link) if isinstance(link, str) else link or (None if found is None else found.link)
    if between is None:
        raise ConfigError(
            "the link between workers is not known. Give link='10gbit', or run `tfdist plan calibrate` here.",
            name="link",
        )
    around = surroundings(
        found,
        network=network_of(between, hosts, device),
        device=device,
        rate=found.flops if found is not None and is_compared(costs, device) else None,
        precision=precision,
        noise=noise,
    )
    counts = numbers_of(workers) if isinstance(workers, str) else workers
    for one in counts:
        validation.integer("workers", one, minimum=1)
    return plan_scaling(
        request_of(
            costs,
            around,
            record,
            workers=counts,
            price=price,
            spot=spot,
            examples=examples,
            deadline=deadline,
            budget=budget,
            save=save,
            methods=methods,
            grows=grow,
            epochs=epochs,
            noise_scale=noise_scale,
            script=tuple(script),
        )
    )
