"""Kinds of devices: their number, speed, memory and price. Loads no TensorFlow."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from tfdist import validation
from tfdist.errors import ConfigError
from tfdist.validation import as_bytes

_WRITE = "Write one as fast=2,speed=3,memory=16GB,price=2.5: the name and how many, then what differs."


@dataclass(frozen=True, kw_only=True)
class DeviceKind:
    """A number of devices that are alike.

    Attributes:
        name: the name, a plain word.
        count: the number of devices.
        speed: the speed, as a multiple of the device on which the profile was measured.
        memory_bytes: the memory of each device in bytes; infinite if it is not given.
        price: the price of each device for an hour, in any currency.

    Example:
        >>> DeviceKind.parse("fast=2,speed=3,memory=16GB,price=2.5").memory_bytes
        17179869184
    """

    name: str = "device"
    count: int = 1
    speed: float = 1.0
    memory_bytes: float = math.inf
    price: float = 0.0

    def __post_init__(self) -> None:
        if not validation.text("the name of devices", self.name).isidentifier():
            raise ConfigError(f"devices are named {self.name!r}; it must be a plain word. {_WRITE}")
        validation.integer("devices", self.count, minimum=1, hint="Give how many devices there are.")
        validation.number("speed", self.speed, above=0)
        validation.number("price", self.price, minimum=0)
        if self.memory_bytes != math.inf:
            validation.number("memory_bytes", self.memory_bytes, above=0)

    @classmethod
    def parse(cls, text: str) -> "DeviceKind":
        """Return the kind of devices that a text describes.

        Raises:
            ConfigError: the text describes none.
        """
        pairs = [entry.partition("=") for entry in text.split(",")]
        given = {key.strip(): value.strip() for key, _, value in pairs[1:]}
        name, equals, count = pairs[0]
        unknown = [key for key in given if key not in ("speed", "memory", "price")]
        if not equals or unknown or len(given) < len(pairs) - 1:
            raise ConfigError(f"a kind of devices is {text!r}. {_WRITE}")
        try:
            speed, price = float(given.get("speed", "1")), float(given.get("price", "0"))
        except ValueError as error:
            raise ConfigError(f"a kind of devices is {text!r}: {error}. {_WRITE}") from error
        return cls(
            name=name.strip(),
            count=validation.parse_integer(f"devices {name.strip()!r}", count, minimum=1, hint=_WRITE),
            speed=speed,
            memory_bytes=as_bytes(given["memory"]) if "memory" in given else math.inf,
            price=price,
        )


def require_names(kinds: Iterable[DeviceKind]) -> tuple[DeviceKind, ...]:
    """Return the kinds of devices; refuse two with the same name."""
    found = tuple(kinds)
    names = [one.name for one in found]
    if not found or len(set(names)) < len(names):
        raise ConfigError(f"the kinds of devices are {names}; give at least one, each with a name of its own.")
    return found
