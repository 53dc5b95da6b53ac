"""The judgement of a cell of the matrix from the workers' replies and the two outcomes: pure functions."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfdist.processes.pool.worker_pool import Reply, failures
from tfdist.verify.feature import Feature
from tfdist.verify.matrix_report import Status

_REFUSALS = {"ConfigError", "UnsupportedError"}
_STACK_LINES = 12
_VARIABLES = re.compile("(weights|optimizer)/")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A cell's status and its reasons; the fields are those of `report.Cell`."""

    status: Status
    difference: float | None = None
    error: str = ""
    detail: str = ""


def failure(entry: Feature, replies: Sequence[Reply]) -> Verdict | None:
    """Return the verdict on a call in which a worker failed, by the first failure; None if all returned."""
    failed = failures(replies)
    if not failed:
        return None
    first = failed[0]
    who = f"worker {first.worker}: " if len(replies) > 1 else ""
    if first.status == "silent":
        _, _, stack = first.detail.rpartition("(most recent call first):")
        main = "\n".join(stack.strip().splitlines()[:_STACK_LINES])
        return Verdict(status="hang", detail=f"{who}{first.message}\n{main}".strip())
    if first.status == "exited":
        end = "\n".join(first.detail.strip().splitlines()[-_STACK_LINES:])
        return Verdict(status="crash", detail=f"{who}{first.message}\n{end}".strip())
    refused = entry.may_refuse and not _REFUSALS.isdisjoint(first.types)
    others = "; another worker does not answer" if failed[-1].status == "silent" else ""
    return Verdict(
        status="refused" if refused else "error",
        error=first.types[0] if first.types else "Exception",
        detail=f"{who}{first.message}{others}\n{_frames(first.detail)}".strip(),
    )


def equality(entry: Feature, outcomes: Sequence[Mapping[str, Any]], reference: Mapping[str, Any]) -> Verdict:
    """Return the verdict on a call that returned on every worker: each outcome must equal the reference."""
    for name, value in reference.items():
        if _VARIABLES.search(name) and not np.isfinite(value).all():
            return Verdict(status="error", error="NaN on one device", detail=f"{name} is not finite: it proves nothing")
    differences = [compare(outcome, reference) for outcome in outcomes]
    worker, worst = max(enumerate(differences), key=lambda pair: pair[1].size)
    who = f"worker {worker}: " if len(outcomes) > 1 and worst.where else ""
    green = worst.size <= entry.tolerance
    return Verdict(status="green" if green else "wrong", difference=worst.size, detail=who + worst.where)


def without_reference(verdict: Verdict) -> Verdict:
    return Verdict(status="error", error=f"{verdict.error or verdict.status} on one device", detail=verdict.detail)


def _frames(text: str) -> str:
    """Return the innermost calls of a traceback, without their source."""
    return "\n".join([line.strip() for line in text.splitlines() if line.startswith("  File ")][-_STACK_LINES:])


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
            what = "missing" if name not in outcome else "not in the reference"
            found = Difference(size=math.inf, where=f"{name}: {what}")
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
        wide = np.complex128 if "c" in value.dtype.kind + reference.dtype.kind else np.float64
        sizes = _sizes(value.astype(wide), reference.astype(wide))
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
