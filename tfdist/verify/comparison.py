"""Compare two outcomes: pure functions on flat dicts of arrays."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The largest difference between two outcomes, infinite if incomparable, and the entry that has it."""

    size: float
    where: str


def compare(outcome: Mapping[str, Any], reference: Mapping[str, Any]) -> Difference:
    """Return the largest difference over all entries.

    NaN equals NaN and an infinity equals itself. Unequal texts, bools or shapes and missing entries differ infinitely.
    """
    worst = Difference(size=0.0, where="")
    for name in sorted(outcome.keys() | reference.keys()):
        if name not in outcome or name not in reference:
            found = Difference(
                size=math.inf, where=f"{name}: {'missing' if name not in outcome else 'not in the reference'}"
            )
        else:
            found = _entry(name, np.asarray(outcome[name]), np.asarray(reference[name]))
        if found.size > worst.size:
            worst = found
    return worst


def _entry(name: str, value: np.ndarray, reference: np.ndarray) -> Difference:
    if value.shape != reference.shape:
        return Difference(size=math.inf, where=f"{name}: shape {value.shape}, one device has {reference.shape}")
    if value.dtype.kind in "US" or reference.dtype.kind in "US":
        sizes = np.where(value.astype(str) == reference.astype(str), 0.0, math.inf)
    else:
        sizes = _sizes(value.astype(np.float64), reference.astype(np.float64))
        if value.dtype.kind == "b" or reference.dtype.kind == "b":
            sizes = np.where(sizes == 0, 0.0, math.inf)
    if sizes.size == 0:
        return Difference(size=0.0, where="")
    place = np.unravel_index(int(np.argmax(sizes)), sizes.shape)
    index = "".join(f"[{i}]" for i in place)
    where = f"{name}{index}: {value[place]!s}, one device has {reference[place]!s}"
    return Difference(size=float(sizes[place]), where=where)


def _sizes(value: np.ndarray, reference: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        sizes = np.abs(value - reference) / np.maximum(1.0, np.abs(reference))
    same = (value == reference) | (np.isnan(value) & np.isnan(reference))
    return np.where(same, 0.0, np.where(np.isfinite(sizes), sizes, math.inf))
