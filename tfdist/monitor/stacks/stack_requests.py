"""Stacks of a job's processes: requested from processes of this host, parsed, and formatted.

py-spy reads the memory of a process without its cooperation. Otherwise a signal makes faulthandler write stacks into a
file, without Python's lock. A process without a handler gets no signal, which would end it.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdist.monitor.stacks import waits

_THREAD = re.compile(r"^(Current thread|Thread) (0x[0-9a-f]+)(?: \[(.*)\])? \(most recent call first\):")
_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?)(?: in (.*))?$')
#: frames of a thread that are shown, the innermost ones
MOST = 12
_NAMED = 3  # parts of a path


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A call that has not returned: its function, file and line, which is 0 if unknown."""

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
    """Return the threads that ``py-spy dump --json`` has printed, the main thread first."""
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
    """Return a sentence if processes wait in different collectives, else ""."""
    # the collective alone: for whom each one waits differs in any case
    operations = {name: text.partition(" is waiting for ")[0] or "no collective" for name, text in waits.items()}
    if len(set(operations.values())) < 2:
        return ""
    pieces = [f"{name} {'waits ' if not at else ''}in {what}" for at, (name, what) in enumerate(operations.items())]
    return "; ".join(pieces)


#: the signal at which a process writes its stacks; `jobs.process.script_worker` registers the same
SIGNAL = signal.SIGRTMIN + 11
_LOOK_SECONDS = 0.01
_MAIN = "Current thread"
_MOST_NATIVE = 24  # lines
_SECONDS = 60.0  # py-spy reads the symbols of all libraries


@dataclass(frozen=True, kw_only=True)
class Target:
    """A process whose stacks can be requested: its name in the job, its pid, and the file into which it writes."""

    name: str
    pid: int
    file: Path


def ask(targets: Sequence[Target], *, seconds: float = 5.0, spies: bool = True) -> tuple[Stacks, ...]:
    """Return the stacks of these processes, in order; a process without an answer has no threads, but a reason."""
    deadline = time.monotonic() + seconds
    found: dict[str, tuple[tuple[Thread, ...], str]] = {}
    program = py_spy() if spies else None
    if program is not None:
        found = {name: (threads, "py-spy") for name, threads in _spied(program, targets, deadline).items()}
    asked = [one for one in targets if one.name not in found]
    found |= _signalled(asked, max(deadline, time.monotonic() + min(seconds, 1.0)) if found or spies else deadline)
    return tuple(
        Stacks(name=one.name, pid=one.pid, threads=threads, source=source, waits=waits.read(one.file))
        for one in targets
        for threads, source in [found[one.name]]
    )


def py_spy() -> str | None:
    """Return the path of py-spy, next to the interpreter or on PATH; None if there is none."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def _spied(program: str, targets: Sequence[Target], deadline: float) -> dict[str, tuple[Thread, ...]]:
    started = {
        one.name: subprocess.Popen(
            [program, "dump", "--json", "--pid", str(one.pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for one in targets
    }
    found = {}
    for name, process in started.items():
        with process:
            try:
                text, _ = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
                threads = from_py_spy(text) if process.returncode == 0 else ()
            except (subprocess.TimeoutExpired, ValueError):
                process.kill()
                threads = ()
        if threads:
            found[name] = threads
    return found


def _signalled(targets: Sequence[Target], deadline: float) -> dict[str, tuple[tuple[Thread, ...], str]]:
    found: dict[str, tuple[tuple[Thread, ...], str]] = {}
    sizes: dict[str, int] = {}
    for one in targets:
        why = _why_not(one)
        if not why:
            try:
                sizes[one.name] = one.file.stat().st_size
                os.kill(one.pid, SIGNAL)
            except OSError as error:
                why = f"it cannot be asked ({error.strerror})"
        if why:
            found[one.name] = (), why
    waiting = [one for one in targets if one.name not in found]
    while waiting and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        for one in list(waiting):
            threads = _dumped(one.file, sizes[one.name])
            why = "" if threads else _why_not(one)
            if threads or why:  # it may end, or be stopped, meanwhile
                found[one.name] = threads, why or "faulthandler"
                waiting.remove(one)
    for one in waiting:  # a thread of native code has taken the signal, and no Python thread is the current one
        threads = _dumped(one.file, sizes[one.name], by="")
        found[one.name] = threads, "faulthandler" if threads else "it does not answer"
    return found


def _dumped(file: Path, since: int, *, by: str = _MAIN) -> tuple[Thread, ...]:
    """Return the threads of a complete dump, which ends with the main thread."""
    with suppress(OSError):
        text = file.read_bytes()[since:].decode(errors="replace")
        time.sleep(_LOOK_SECONDS)
        if text and file.stat().st_size == since + len(text.encode()) and by in text:
            return from_faulthandler(text)
    return ()


def _why_not(one: Target) -> str:
    """Return the reason why a process cannot be asked by a signal, or ""."""
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{one.pid}/status").read_text().splitlines())
    except (OSError, ValueError):
        return "its process is gone"
    state = status.get("State", "").strip()[:1]
    if state in "ZX":
        return "its process has ended"
    if state in "Tt":
        return "its process is stopped (SIGSTOP); `kill -CONT` lets it continue, and py-spy reads it as it is"
    if not int(status.get("SigCgt", "0").strip(), 16) >> (SIGNAL - 1) & 1:
        return "it has not come to Python yet, or does not run under `tfdist run`"
    return ""


def native_lines(pid: int) -> list[str]:
    """Return the lines of the native stack of a process's main thread, the innermost call first.

    Without py-spy, or if it may not read the process, the lines name the kernel function in which each thread waits.
    """
    program = py_spy()
    found = [] if program is None else _spied_native(program, pid)
    return (found or _of_the_kernel(pid))[:_MOST_NATIVE]


def _spied_native(program: str, pid: int) -> list[str]:
    try:
        done = subprocess.run(
            [program, "dump", "--native", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return frames_of(pid, done.stdout)


def frames_of(thread: int, text: str) -> list[str]:
    frames: list[str] = []
    is_inside = False
    for line in text.splitlines():
        if line.startswith("Thread "):
            is_inside = line.split()[1] == str(thread)
        elif is_inside and line.strip():
            frames.append(line.strip())
    return frames


def _of_the_kernel(pid: int) -> list[str]:
    found = []
    with suppress(OSError):
        for thread in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda path: int(path.name)):
            with suppress(OSError):
                name, waits = ((thread / file).read_text().strip() for file in ("comm", "wchan"))
                does = f"waits in {waits}" if waits not in ("", "0") else "runs"
                found.append(f"thread {thread.name} ({name}) {does}")
    return found
