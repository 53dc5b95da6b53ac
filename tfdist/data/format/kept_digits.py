"""Floats that were spelled in decimal digits, and whether a narrower float keeps all of these."""

import numpy as np
from numpy.typing import NDArray

_FIRST = 100
_SHORT = 6  # digits that every float32 holds
_POWERS = np.array([float(f"1e{place}") for place in range(23)])  # those that a float64 is


def fits_float32(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which values keep all their digits as float32: written out with as many, they read the same.

    Example:
        >>> fits_float32(np.array([0.1, 16777217.0, 3.14159274, 1e300, np.nan])).tolist()
        [True, False, True, False, True]
    """
    with np.errstate(all="ignore"):
        narrow = values.astype(np.float32)
        good = (narrow == values) | np.isnan(values)
        size = np.where(good, 1.0, np.abs(values))
        # most values have few digits: a whole number below 2**53 times or by an exact power of ten, so rounded once
        places = _SHORT - 1 - np.floor(np.log10(size))
        inside = np.abs(places) < len(_POWERS)
        power = _POWERS[np.where(inside, np.abs(places), 0).astype(int)]
        whole = np.rint(np.where(places > 0, size * power, size / power))
        short = inside & (np.where(places > 0, whole / power, whole * power) == size)
    normal = np.finfo(np.float32)
    good |= short & (size >= float(normal.tiny)) & (size <= float(normal.max))
    rest = np.flatnonzero(~good)
    good[rest] = narrow[rest].astype(str).astype(np.float64) == values[rest]
    rest = np.flatnonzero(~good & np.isfinite(narrow))
    good[rest] = [_reads_the_same(*pair) for pair in zip(narrow[rest].tolist(), values[rest].tolist(), strict=True)]
    return good


def all_fit_float32(values: NDArray[np.float64]) -> bool:
    """Return whether all values, in any shape, keep all their digits; what does not mostly shows in the first ones.

    Example:
        >>> all_fit_float32(np.array([[0.1, 0.2]])), all_fit_float32(np.array(1 / 3))
        (True, False)
    """
    flat = values.reshape(-1)
    return bool(fits_float32(flat[:_FIRST]).all() and fits_float32(flat[_FIRST:]).all())


def _reads_the_same(narrow: float, value: float) -> bool:
    digits = len(repr(value).partition("e")[0].replace(".", "").lstrip("-0").rstrip("0"))
    return float(f"{narrow:.{digits}g}") == value
