"""Judge what followed each planned fault, from the job's events and the faults' log. Pure functions."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfdist.monitor.fault_plan import FaultPlan
from tfdist.monitor.faults import RESTARTING, Fault


@dataclass(frozen=True, kw_only=True)
class Verdict:
    fault: Fault
    step: int | None = None  # of the fault; None if it did not happen
    found_after: float | None = None  # seconds until the agent noticed, or None
    recovered_after: float | None = None  # seconds until all workers had ended a step again
    lost: int | None = None  # number of repeated steps
    text: str


def lines(text: str) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines, without an incomplete one."""
    found = []
    for line in text.splitlines():
        try:
            content = json.loads(line)
        except ValueError:
            continue
        if isinstance(content, dict):
            found.append(content)
    return found


def verdicts(
    plan: FaultPlan, happened: Sequence[dict[str, Any]], events: Sequence[dict[str, Any]]
) -> tuple[Verdict, ...]:
    left = list(happened)
    found = []
    for fault in plan.faults:
        mine = next((one for one in left if one.get("fault") == fault.as_json()), None)
        if mine is not None:
            left.remove(mine)
        warnings = [float(one["clock"]) for one in happened if "warning" in one]
        found.append(_verdict(fault, mine, events, warnings))
    return tuple(found)


def _verdict(
    fault: Fault, happened: dict[str, Any] | None, events: Sequence[dict[str, Any]], warnings: Sequence[float]
) -> Verdict:
    if happened is None:
        return Verdict(fault=fault, text="did not happen: the job did not get there")
    step, clock = int(happened["step"]), float(happened["clock"])
    later = [event for event in events if float(event.get("clock", 0.0)) >= clock]
    if fault.kind not in RESTARTING:
        ended = next((event for event in later if event.get("event") in ("failed", "ended")), None)
        survived = ended is None or (ended["event"] == "ended" and ended.get("exit_code") == 0)
        text = "went on" if survived else f"then: {_said(ended or {})}"
        if not fault.memory and fault.kind in ("disk-full", "corrupt"):
            never = "that backup was not read" if fault.kind == "corrupt" else "no warning"
            text += "; a warning said so" if any(when >= clock for when in warnings) else f"; {never}"
        return Verdict(fault=fault, step=step, text=text)
    replaced = next((e for e in later if e.get("event") == "replaced" and e.get("task") == fault.task), None)
    if fault.task is not None and replaced is not None:
        after = float(replaced["clock"]) - clock
        return Verdict(fault=fault, step=step, found_after=after, text=f"{fault.task} replaced; the others went on")
    noticed = next((event for event in later if event.get("event") in ("failed", "halted", "ended")), None)
    if noticed is None or noticed["event"] == "ended":
        return Verdict(fault=fault, step=step, text="not found")
    start = noticed.get("start", 0)
    again = next((e for e in later if e.get("event") == "stepping" and e.get("start", 0) > start), None)
    return Verdict(
        fault=fault,
        step=step,
        found_after=float(noticed["clock"]) - clock,
        recovered_after=None if again is None else float(again["clock"]) - clock,
        lost=None if again is None else again.get("lost"),
        text=_said(noticed) if again is not None else f"{_said(noticed)}; no recovery",
    )


def _said(event: dict[str, Any]) -> str:
    if event.get("event") == "halted":
        return f"stopped together ({event.get('purpose')})"
    text, task = event.get("text"), event.get("task")
    if not text:
        return f"ended with code {event.get('exit_code')}"
    return f"{task} failed: {text}" if task and event.get("cause") != "hang" else str(text)


def table(found: Sequence[Verdict]) -> str:
    names = [f"{one.fault.kind} {one.fault.victim} at {one.fault.at}" for one in found]
    width = max([26, *map(len, names)])
    rows = [f"{'fault':<{width}}  {'step':>4}  {'found after':>11}  {'all step again after':>20}  {'repeated':>8}"]
    rows += [
        f"{name:<{width}}  {_number(one.step):>4}  {_seconds(one.found_after):>11}  "
        f"{_seconds(one.recovered_after):>20}  {_number(one.lost):>8}  {one.text}"
        for name, one in zip(names, found, strict=True)
    ]
    return "\n".join(rows)


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"
