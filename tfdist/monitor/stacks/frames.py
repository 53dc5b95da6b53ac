"""Stacks of a process as values, from what faulthandler and py-spy print, and the way to text: pure functions."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_THREAD = re.compile(r"^(Current thread|Thread) (0x[0-9a-f]+)(?: \[(.*)\])? \(most recent call first\):")
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?)(?: in (.*))?$')
#: frames of a thread that are shown, the innermost ones
MOST = 12
_NAMED = 3  # parts of a path


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A call that has not returned: function, file, and line, 0 if unknown."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({'/'.join(Path(self.file).parts[-_NAMED:])}:{self.line})"


@dataclass(frozen=True, kw_only=True)
class Thread:
    """A Python thread, by name or number, with its frames, the innermost call first."""

    name: str
    frames: tuple[Frame, ...]


def from_faulthandler(text: str) -> tuple[Thread, ...]:
    """Parse the threads of one dump, the main thread first: faulthandler prints it last."""
    threads: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        if found := _THREAD.match(line):
            threads.append((found[3] or found[2], []))
        elif threads and (found := _FRAME.match(line)):
            number = int(found[2]) if found[2].isdigit() else 0
            threads[-1][1].append(Frame(function=found[3] or "?", file=found[1], line=number))
    made = [Thread(name=name, frames=tuple(frames)) for name, frames in reversed(threads)]
    if made:
        made[0] = Thread(name="MainThread", frames=made[0].frames)
    return tuple(made)


def from_py_spy(text: str) -> tuple[Thread, ...]:
    """The threads that ``py-spy dump --json`` has printed, the main thread first."""
    printed = json.loads(text)
    if not isinstance(printed, list):
        raise ValueError(f"py-spy has printed {type(printed).__name__} instead of a list of threads.")
    try:
        found = [
            Thread(
                name=str(one["thread_name"] or one["thread_id"]),
                frames=tuple(
                    Frame(function=str(frame["name"]), file=str(frame["filename"]), line=int(frame["line"]))
                    for frame in one["frames"]
                ),
            )
            for one in printed
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"py-spy has printed something else than a list of threads ({error!r}).") from error
    return tuple(sorted(found, key=lambda thread: thread.name != "MainThread"))


@dataclass(frozen=True, kw_only=True)
class Stacks:
    name: str  # in the job, such as "worker 0"
    pid: int
    threads: tuple[Thread, ...]  # the main thread first; none where they could not be read
    source: str  # "py-spy" or "faulthandler", or why there is none
    waits: str = ""  # for which other workers, and in what; "" if for none, or unknown

    def as_json(self) -> dict[str, Any]:
        threads = [{"name": one.name, "frames": [str(frame) for frame in one.frames]} for one in self.threads]
        return {"task": self.name, "pid": self.pid, "source": self.source, "waits": self.waits, "threads": threads}


def lines(stacks: Stacks, *, threads: bool = False, most: int = MOST) -> list[str]:
    head = f"{stacks.name} (process {stacks.pid})"
    if not stacks.threads:
        return [f"{head}: {stacks.source}", *([f"  waits in {stacks.waits}"] if stacks.waits else [])]
    text = [f"{head}, by {stacks.source}"]
    if stacks.waits:
        text.append(f"  waits in {stacks.waits}")
    for thread in stacks.threads if threads else stacks.threads[:1]:
        text.append(f"  {thread.name}")
        text += [f"    {frame}" for frame in thread.frames[:most]]
        if len(thread.frames) > most:
            text.append(f"    ... and {len(thread.frames) - most} more")
    return text


def apart(waits: Mapping[str, str]) -> str:
    """A sentence where processes wait in different collectives, else ""."""
    # the collective alone: for whom each one waits differs in any case
    operations = {name: text.partition(" is waiting for ")[0] or "no collective" for name, text in waits.items()}
    if len(set(operations.values())) < 2:
        return ""
    pieces = [f"{name} {'waits ' if not at else ''}in {what}" for at, (name, what) in enumerate(operations.items())]
    return "; ".join(pieces)
