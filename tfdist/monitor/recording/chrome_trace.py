"""The steps of all workers as one chrome trace, for Perfetto and chrome://tracing.

A worker is a process of the trace, with a row of step parts, and rows of reductions, which may overlap. Other hosts'
clocks are aligned by the ends of reductions, which all workers see at about the same time.

Source: Google, "Trace Event Format", 2016: complete events ("ph": "X"), times in microseconds.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.monitor.recording.rows import BUCKETS, CHIEF_WORKERS, KINDS, Column
from tfdist.storage.files import write_whole

_STEPS, _FIRST_REDUCTION = 0, 1
_HOST = ((Column.CALLBACKS, "callbacks"), (Column.DISPATCH, "dispatch"), (Column.INPUT, "input"))
# and what follows where the graph has no stamps, as a chief's
_UNDIVIDED = (
    (Column.TRACE, "trace"),
    (Column.PYTHON, "python"),
    (Column.EXECUTE, "compute"),
    (Column.UNDIVIDED, "compute"),
    (Column.WAIT, "workers"),
    (Column.AGREE, "agree"),
    (Column.UPDATE, "update"),
)
# and what the graph does, with the stamp at which each ends
_GRAPH = (
    ("forward", Column.FORWARD),
    ("backward", Column.GRADIENTS),
    ("communication", Column.REDUCED),
    ("update", Column.GRAPH_END),
)


def trace(rows: Mapping[int, np.ndarray]) -> dict[str, Any]:
    zero = min((int(found[0, Column.BEGIN]) for found in rows.values() if len(found)), default=0)
    events: list[dict[str, Any]] = []
    for rank, found in sorted(rows.items()):
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"worker {rank}"}})
        events.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": _STEPS, "args": {"name": "steps"}})
        for row in found:
            events.extend(_of_step(rank, row, zero))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _of_step(rank: int, row: np.ndarray, zero: int) -> Iterator[dict[str, Any]]:
    def event(name: str, begin: int, end: int, tid: int = _STEPS, **args: Any) -> dict[str, Any]:
        made = {"ph": "X", "name": name, "pid": rank, "tid": tid, "ts": (begin - zero) / 1e3}
        return {**made, "dur": max(end - begin, 0) / 1e3, **({"args": args} if args else {})}

    kind = KINDS[int(row[Column.KIND])]
    arguments: dict[str, Any] = {"step": int(row[Column.STEP])}
    stamped = int(row[Column.GRAPH_BEGIN]) > 0
    loss = _loss(row)
    if loss is not None:
        arguments["loss"] = loss if np.isfinite(loss) else str(loss)  # JSON has no such numbers
    yield event(str(kind), int(row[Column.BEGIN]), int(row[Column.END]), **arguments)
    at = int(row[Column.BEGIN])
    for column, name in _HOST if stamped else (*_HOST, *_UNDIVIDED):  # in this order, as far as it is known
        length = int(row[column])
        if length > 0:
            yield event(name, at, at + length)
            at += length
    if not stamped:
        return
    reached = int(row[Column.GRAPH_BEGIN])
    for name, after in _GRAPH:
        end = max(int(row[after]), reached)
        if end > reached:
            yield event(name, reached, end)
        reached = end
    for number in range(min(int(row[Column.REDUCTIONS]), BUCKETS)):
        begin, end = int(row[Column.ARRIVALS + number]), int(row[Column.COMPLETIONS + number])
        if begin and end:
            yield event("all_reduce", begin, end, _FIRST_REDUCTION + number)


def _loss(row: np.ndarray) -> float | None:
    if row[Column.FORWARD]:
        return float(row[Column.LOSS : Column.LOSS + 1].view(np.float64)[0])
    told = row[Column.FORWARDS : Column.FORWARDS + CHIEF_WORKERS] > 0
    losses = row[Column.LOSSES : Column.LOSSES + CHIEF_WORKERS].view(np.float64)[told]
    return float(losses.mean()) if len(losses) else None


def merged(traces: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return one trace of the traces of several jobs or programs; each process gets its own number."""
    events: list[dict[str, Any]] = []
    number = 0
    for name, one in traces.items():
        found = one.get("traceEvents", one) if isinstance(one, Mapping) else one
        numbers: dict[Any, int] = {}
        for event in found:
            pid = event.get("pid", 0)
            if pid not in numbers:
                numbers[pid], number = number, number + 1
            changed = {**event, "pid": numbers[pid]}
            if event.get("name") == "process_name":
                changed["args"] = {"name": f"{name}: {event.get('args', {}).get('name', pid)}"}
            events.append(changed)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def write(path: str | os.PathLike[str], made: Mapping[str, Any]) -> None:
    write_whole(Path(path), json.dumps(made))
