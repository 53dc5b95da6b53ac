"""Judge a cell of the matrix from the workers' replies and the two outcomes: pure functions."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfdist.processes.pool.worker_pool import Reply
from tfdist.verify.comparison import compare
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
    """The verdict on a call in which a worker failed, by the first failure; None if all returned."""
    failed = sorted((reply for reply in replies if reply.status != "returned"), key=_by_time)
    if not failed:
        return None
    first = failed[0]
    who = f"worker {first.worker}: " if len(replies) > 1 else ""
    if first.status == "silent":
        return Verdict(status="hang", detail=f"{who}{first.message}\n{_main_stack(first.detail)}".strip())
    if first.status == "exited":
        return Verdict(status="crash", detail=f"{who}{first.message}\n{_last_lines(first.detail)}".strip())
    refused = entry.may_refuse and not _REFUSALS.isdisjoint(first.types)
    others = "; another worker does not answer" if failed[-1].status == "silent" else ""
    return Verdict(
        status="refused" if refused else "error",
        error=first.types[0] if first.types else "Exception",
        detail=f"{who}{first.message}{others}\n{_frames(first.detail)}".strip(),
    )


def equality(entry: Feature, outcomes: Sequence[Mapping[str, Any]], reference: Mapping[str, Any]) -> Verdict:
    """The verdict on a call that returned on every worker: each outcome must equal the reference."""
    if name := _not_finite(reference):
        return Verdict(status="error", error="NaN on one device", detail=f"{name} is not finite: it proves nothing")
    differences = [compare(outcome, reference) for outcome in outcomes]
    worker, worst = max(enumerate(differences), key=lambda pair: pair[1].size)
    who = f"worker {worker}: " if len(outcomes) > 1 and worst.where else ""
    green = worst.size <= entry.tolerance
    return Verdict(status="green" if green else "wrong", difference=worst.size, detail=who + worst.where)


def _not_finite(reference: Mapping[str, Any]) -> str:
    """Return the first weight or optimizer variable that is not finite: everything equals it, so nothing may."""
    names = (n for n, value in reference.items() if _VARIABLES.search(n) and not np.isfinite(value).all())
    return next(names, "")


def without_reference(verdict: Verdict) -> Verdict:
    return Verdict(status="error", error=f"{verdict.error or verdict.status} on one device", detail=verdict.detail)


def _by_time(reply: Reply) -> tuple[bool, float]:
    # A silent worker is a consequence when another one failed, whatever the clock says.
    return reply.status == "silent", reply.seconds


def _last_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-_STACK_LINES:])


def _frames(text: str) -> str:
    """Return the innermost calls of a traceback, without their source."""
    return "\n".join([line.strip() for line in text.splitlines() if line.startswith("  File ")][-_STACK_LINES:])


def _main_stack(text: str) -> str:
    _, _, stack = text.rpartition("(most recent call first):")
    return "\n".join(stack.strip().splitlines()[:_STACK_LINES])
