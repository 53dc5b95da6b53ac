"""A finding of the doctor, and the report of all findings."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from functools import partial
from typing import Any

import tfdist

SCHEMA = "tfdist.doctor/1"


class Level(IntEnum):
    """The severity of a finding; a report has the level of its worst finding.

    ``OK``: as it should be. ``NOTE``: worth knowing, usually nothing to do. ``WARNING``: works, but slowly, partly or
    not always. ``PROBLEM``: training fails or hangs until it is cured.

    Example:
        >>> max(Level.NOTE, Level.WARNING).name
        'WARNING'
    """

    OK = 0
    NOTE = 1
    WARNING = 2
    PROBLEM = 3


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One observation of the doctor, judged.

    Attributes:
        check: the name of the check, stable between versions.
        level: the severity.
        seen: the observation.
        why: the reason why it matters; empty at level ok.
        cure: the command that fixes it; empty if there is nothing to do.
    """

    check: str
    level: Level
    seen: str
    why: str = ""
    cure: str = ""


def _of(level: Level, check: str, seen: str, why: str = "", cure: str = "") -> Finding:
    return Finding(check=check, level=level, seen=seen, why=why, cure=cure)


ok, note, warning, problem = (partial(_of, level) for level in Level)


def worst(findings: Sequence[Finding]) -> Level:
    """Return the highest level among the findings; ok if there are none."""
    return max((finding.level for finding in findings), default=Level.OK)


def as_report(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings as the JSON document of ``tfdist doctor --json``; docs/doctor.md describes its fields.

    Example:
        >>> as_report([])["schema"]
        'tfdist.doctor/1'
    """
    return {
        "schema": SCHEMA,
        "tfdist": tfdist.__version__,
        "level": worst(findings).name.lower(),
        "findings": [{**asdict(finding), "level": finding.level.name.lower()} for finding in findings],
    }
