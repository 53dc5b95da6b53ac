"""Sizes of what an all-reduce carries, and the bandwidths that nccl-tests print for it."""

import re

from tfdist.errors import ConfigError

__all__ = ["as_bytes", "bus_bandwidth", "calls", "shown", "sizes"]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_ELEMENT_BYTES = 4
_BYTES_PER_MEASUREMENT = 64 << 20
_MOST_CALLS, _FEWEST_CALLS = 50, 1


def as_bytes(text: str) -> int:
    """Return the bytes that a size such as 4096, 4K, 256M, 4MB or 4MiB means; K, M and G are powers of 1024.

    Raises:
        ConfigError: that is no size.

    Example:
        >>> as_bytes("4K"), as_bytes("256MiB")
        (4096, 268435456)
    """
    found = re.fullmatch(r"\s*(\d+)\s*([KMG]?)(?:I?B)?\s*", text, re.IGNORECASE)
    if found is None or not int(found[1]):
        raise ConfigError(f"a size is {text!r}; it must be a number of bytes above 0, such as 4096, 4K or 256M.")
    return int(found[1]) * _UNITS[found[2].upper()]


def shown(number: int) -> str:
    """Return bytes as `as_bytes` reads them, in the largest unit that divides them.

    Example:
        >>> shown(4096), shown(1500), shown(256 << 20)
        ('4K', '1500', '256M')
    """
    for unit in ("G", "M", "K"):
        if number % _UNITS[unit] == 0:
            return f"{number // _UNITS[unit]}{unit}"
    return str(number)


def sizes(smallest: int, largest: int, factor: int) -> tuple[int, ...]:
    """Return sizes in bytes from the smallest to the largest, each ``factor`` times the one before.

    Raises:
        ConfigError: the smallest is no multiple of a float32's 4 bytes, or above the largest.

    Example:
        >>> sizes(4096, 262144, 8)
        (4096, 32768, 262144)
    """
    if smallest % _ELEMENT_BYTES:
        raise ConfigError(f"the smallest size is {smallest} bytes; it must be a multiple of 4, the bytes of a float32.")
    if smallest > largest:
        raise ConfigError(f"the smallest size is {smallest} bytes, the largest {largest}; exchange them.")
    found = [smallest]
    while found[-1] * factor <= largest:
        found.append(found[-1] * factor)
    return tuple(found)


def calls(number_of_bytes: int) -> int:
    """Return how many all-reduces of this size one measurement takes: many short ones, few long ones.

    Example:
        >>> calls(4096), calls(4 << 20), calls(256 << 20)
        (50, 16, 1)
    """
    return max(_FEWEST_CALLS, min(_MOST_CALLS, _BYTES_PER_MEASUREMENT // number_of_bytes))


def bus_bandwidth(number_of_bytes: int, seconds: float, workers: int) -> float:
    """Return the bytes per second that each link carries in a perfect all-reduce of that duration.

    A worker has to send 2 S (n - 1) / n bytes, whatever the algorithm, so this can be compared with what the wire
    does; the algorithm's bandwidth is S / t. With two workers both are equal.

    Example:
        >>> bus_bandwidth(1000, 1.0, 4)
        1500.0
    """
    return number_of_bytes / seconds * 2 * (workers - 1) / workers
