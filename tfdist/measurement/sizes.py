"""Numbers of bytes as people write them."""

import re
from fractions import Fraction

from tfdist.errors import ConfigError

__all__ = ["as_bytes", "shown"]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def as_bytes(text: str) -> int:
    """Return the bytes that a size such as 4096, 4K, 1.5G, 4MB or 4MiB means; K, M, G and T are powers of 1024.

    A part of a byte is left out.

    Example:
        >>> as_bytes("4K"), as_bytes("256MiB"), as_bytes("1.5 GB")
        (4096, 268435456, 1610612736)
    """
    found = re.fullmatch(r"\s*(\d+|\d+\.\d+(?=\s*[KMGT]))\s*([KMGT]?)(?:I?B)?\s*", text, re.IGNORECASE)
    size = int(Fraction(found[1]) * _UNITS[found[2].upper()]) if found else 0
    if not size:
        raise ConfigError(f"a size is {text!r}; it must be a number of bytes above 0, such as 4096, 4K or 1.5G.")
    return size


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
