"""Devices and links by name, from their vendors' data sheets. Loads no TensorFlow.

Peaks are those of dense matrices; figures with sparsity in data sheets are twice as high. float32 is TF32 where
the device has it, which TensorFlow uses by default. `EFFICIENCY` is the part of a peak that training is predicted to
attain. The attained part depends on the model, so a device has the range that was published.
"""

import re
from dataclasses import dataclass

from tfdist import validation
from tfdist.errors import ConfigError
from tfdist.planner.device_kinds import DeviceKind
from tfdist.planner.planner_link import Link

#: the part of a device's peak that training is predicted to attain
EFFICIENCY = 0.35
PRECISIONS = ("float32", "mixed")
# The ends, where nothing is published of a device: ResNet-50 with TF32 on A100, and GPT with Megatron-LM on A100
_PUBLISHED = 0.15, 0.52


@dataclass(frozen=True)
class Device:
    """A device, as described by its data sheet."""

    float32: float  # the peak in operations per second, with 32-bit numbers
    mixed: float  # the peak in operations per second, with 16-bit numbers
    memory_gb: float  # the memory of the device, in 10^9 bytes
    source: str  # the data sheet
    # the smallest and the largest part of the peak that training is known to attain
    float32_attained: tuple[float, float] = _PUBLISHED
    mixed_attained: tuple[float, float] = _PUBLISHED


# An image of ResNet-50 is 24.6 Gflop of training and 8.2 of inference; its rates are those of NVIDIA's
# DeepLearningExamples (PyTorch, resnet50v1.5): A100 938 and 2,470 images/s, V100 367 and 1,200, T4 415 and 1,198 of
# inference. Transformers: Megatron-LM (Narayanan and others, 2021), 44 to 52 % on A100; Llama 3 (2024), 38 to 43 % on
# H100, for which no convolutions are published here.
DEVICES = {
    "h200": Device(494.5e12, 989e12, 141, "NVIDIA H200 Tensor Core GPU, SXM", (0.15, 0.43), (0.15, 0.43)),
    "h100": Device(494.5e12, 989e12, 80, "NVIDIA H100 Tensor Core GPU, SXM", (0.15, 0.43), (0.15, 0.43)),
    "a100": Device(156e12, 312e12, 80, "NVIDIA A100 Tensor Core GPU, 80 GB SXM", (0.15, 0.52), (0.19, 0.52)),
    "l40s": Device(183e12, 362e12, 48, "NVIDIA L40S GPU"),
    "l4": Device(60e12, 121e12, 24, "NVIDIA L4 Tensor Core GPU"),
    "t4": Device(8.1e12, 65e12, 16, "NVIDIA T4 Tensor Core GPU"),
    "v100": Device(15.7e12, 125e12, 32, "NVIDIA V100 Tensor Core GPU, SXM2", (0.15, 0.58), (0.23, 0.52)),
    "p100": Device(10.6e12, 21.2e12, 16, "NVIDIA Tesla P100, SXM2"),
}
HERE = "here"


@dataclass(frozen=True)
class KnownLink:
    """A known link, in one direction."""

    gigabytes: float  # the attained rate, in 10^9 bytes per second
    microseconds: float  # the latency of a message
    source: str  # the source of the rate, and the part of it that is counted


LINKS = {
    "nvlink4": KnownLink(360, 8, "NVIDIA H100: 900 GB/s both ways together; 80 %"),
    "nvlink3": KnownLink(240, 8, "NVIDIA A100: 600 GB/s both ways together; 80 %"),
    "pcie5": KnownLink(50, 10, "PCI-SIG: 16 lanes of 32 GT/s, 63 GB/s; 80 %"),
    "pcie4": KnownLink(25, 10, "PCI-SIG: 16 lanes of 16 GT/s, 31.5 GB/s; 80 %"),
    "ndr": KnownLink(45, 6, "NVIDIA InfiniBand NDR: 400 Gbit/s; 90 %"),
    "hdr": KnownLink(22.5, 6, "NVIDIA InfiniBand HDR: 200 Gbit/s; 90 %"),
}


def link_of(text: str) -> Link:
    """Return the link that a text describes: a name or a rate, perhaps followed by a latency in milliseconds.

    Example:
        >>> link_of("nvlink4").bytes_per_second, link_of("10gbit:0.2").latency_seconds
        (360000000000.0, 0.0002)
    """
    what, colon, delay = text.partition(":")
    try:
        late = float(delay) if colon else None
    except ValueError:
        late = -1.0
    if late is not None and late < 0:
        raise ConfigError(
            f"the link is {text!r}; milliseconds of latency follow the colon, as in 10gbit:0.05.",
            name="link",
            received=text,
        )
    known = LINKS.get(what.strip().lower())
    if known is not None:
        seconds = known.microseconds / 1e6 if late is None else late / 1e3
        return Link(latency_seconds=seconds, bytes_per_second=1e9 * known.gigabytes)
    try:
        return Link.parse(what) if late is None else Link.parse(what, delay_ms=late)
    except ConfigError as error:
        names = ", ".join(LINKS)
        raise ConfigError(f"{error} Or a name: {names}.", name="link", received=text) from error


def device_of(text: str, *, here: float | None, precision: str = "float32") -> DeviceKind:
    """Return the device that a text describes, relative to the one on which the profile was measured.

    The peak of a device in `DEVICES` is compared with the operations per second that matrices attain here; 12x is
    twelve times as fast as here.

    Example:
        >>> device_of("2x", here=None).speed, round(device_of("h100", here=50e9).speed)
        (2.0, 3462)
    """
    validation.one_of("precision", precision, PRECISIONS)
    name = text.strip().lower()
    if name == HERE:
        return DeviceKind(name=HERE)
    if times := re.fullmatch(r"(\d+(?:\.\d+)?)x", name):
        return DeviceKind(name="device", speed=validation.number("the speed of the device", float(times[1]), above=0))
    if name not in DEVICES:
        raise ConfigError(
            f"the device is {text!r}; it must be {HERE}, a multiple of this machine's speed such as 12x, or one of "
            f"{', '.join(DEVICES)}.{validation.nearest(name, DEVICES)}",
            name="device",
            received=text,
        )
    if here is None:
        raise ConfigError(
            f"the device is {text!r}, and this machine's speed is not known, which it is compared with. Run `tfdist "
            "plan calibrate` where the profile was measured, or give a multiple of its speed, such as 12x.",
            name="device",
            received=text,
        )
    device = DEVICES[name]
    peak = device.float32 if precision == "float32" else device.mixed
    return DeviceKind(name=name, speed=EFFICIENCY * peak / here, memory_bytes=1e9 * device.memory_gb)


def attained(text: str, *, precision: str = "float32") -> tuple[float, float]:
    """Return the lowest and the highest speed of a device, as parts of the speed that `device_of` gives it.

    Example:
        >>> attained("here"), [round(one, 2) for one in attained("h100")]
        ((1.0, 1.0), [0.43, 1.23])
    """
    device = DEVICES.get(text.strip().lower())
    if device is None:
        return 1.0, 1.0
    low, high = device.float32_attained if precision == "float32" else device.mixed_attained
    return low / EFFICIENCY, high / EFFICIENCY
