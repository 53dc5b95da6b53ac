"""A job's events, and a snapshot of an ended job, from its event file.

Any program may have changed the file: lines that are not events of a job are skipped.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tfdist.errors import ConfigError
from tfdist.monitor.watch.snapshot import Snapshot, WorkerView

_LATEST = 253_402_300_800  # seconds since 1970, in the year 10000
_ODD = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")  # what a terminal obeys, and what UTF-8 has not


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e30


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


def _is_parts(value: Any) -> bool:
    return isinstance(value, dict) and all(
        re.fullmatch("[0-9]{1,6}", worker) and isinstance(parts, dict) and all(map(_is_number, parts.values()))
        for worker, parts in value.items()
    )


#: the keys of an event that are read, each with a check of its value; all but the first two may be missing
_KEYS: Mapping[str, Callable[[Any], bool]] = {
    "event": lambda value: isinstance(value, str),
    "job": lambda value: isinstance(value, str),
    "time": lambda value: _is_number(value) and 0 <= value < _LATEST,
    "start": _is_count,
    "worker": lambda value: value is None or _is_count(value),
    "seconds": lambda value: value is None or _is_number(value),
    "flops_per_step": _is_number,
    "peak_flops": lambda value: value is None or (_is_number(value) and value > 0),
    "pids": lambda value: isinstance(value, list) and all(map(_is_count, value)),
    "parts": _is_parts,
    "lines": lambda value: isinstance(value, list) and all(isinstance(line, str) for line in value),
}


def event_of(line: str) -> Mapping[str, Any] | None:
    """Parse an event, with texts that can be shown; return None if a line has none."""
    try:
        event = _plain(json.loads(line))
    except (ValueError, RecursionError):  # it is being written, or is none
        return None
    if not isinstance(event, dict) or not {"event", "job"} <= event.keys():
        return None
    return event if all(fits(event[key]) for key, fits in _KEYS.items() if key in event) else None


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return _ODD.sub("\ufffd", value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return {_plain(key): _plain(one) for key, one in value.items()} if isinstance(value, dict) else value


def read_events(path: Path, job: str | None = None) -> list[Mapping[str, Any]]:
    """Return the events of a job in a file, by default of the last job; other lines are left out."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    events = [event for line in text.splitlines() if (event := event_of(line)) is not None]
    wanted = job or (events[-1]["job"] if events else None)
    return [one for one in events if one["job"] == wanted]


def from_events(path: Path) -> Snapshot:
    """Return a snapshot of the last job of an event file, as it was when the file was written."""
    events = read_events(path)
    if not events:
        raise ConfigError(f"{path} has no event of a job; `tfdist run --event-file {path}` writes them.", path=path)
    verdicts = [one for one in events if one["event"] == "verdict"]
    parts = verdicts[-1].get("parts", {}) if verdicts else {}
    pids: list[int] = next((one.get("pids", []) for one in reversed(events) if one["event"] == "started"), [])
    ended = events[-1]["event"] == "ended"
    workers = []
    for worker in sorted({*range(len(pids)), *map(int, parts)}):
        mine = parts.get(str(worker), {})
        total = sum(mine.values())
        workers.append(
            WorkerView(
                worker=worker,
                activity="ended" if ended else "",
                pid=pids[worker] if worker < len(pids) else 0,
                parts=mine,
                steps_per_second=1.0 / total if total > 1e-9 else None,
            )
        )
    return Snapshot(
        job=events[-1]["job"],
        start=events[-1].get("start", 0),
        time=float(events[-1].get("time", 0.0)),
        is_running=False,
        workers=tuple(workers),
        verdict=tuple(verdicts[-1].get("lines", ())) if verdicts else (),
        bound=str(verdicts[-1].get("bound", "")) if verdicts else "",
        events=tuple(events),
    )


class Past:
    """A job from its event file, for `tfdist.monitor.watch.server.Page`; every look returns the same snapshot."""

    timeline = None  # steps themselves are in no event

    def __init__(self, path: Path) -> None:
        self._found = from_events(path)
        self.job = self._found.job

    def look(self) -> Snapshot:
        return self._found
