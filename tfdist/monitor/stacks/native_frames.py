"""The native stack of a process, by py-spy or from the kernel, also after Python has ended."""

import contextlib
import subprocess
from pathlib import Path

from tfdist.monitor.stacks.stack_requests import py_spy

MOST = 24  # lines
_SECONDS = 60.0  # py-spy reads the symbols of all libraries


def native_lines(pid: int) -> list[str]:
    """Return the native stack of the main thread of a process, the innermost call first, in lines.

    Without py-spy, or where it may not read the process: what each thread waits for in the kernel.

    Example:
        >>> native_lines(2**22 + 1)  # there is no such process
        []
    """
    program = py_spy()
    found = [] if program is None else _spied(program, pid)
    return (found or _of_the_kernel(pid))[:MOST]


def _spied(program: str, pid: int) -> list[str]:
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
    """Return the frames of one thread in what ``py-spy dump`` has printed; none if it has none there.

    Example:
        >>> frames_of(7, 'Thread 9 (idle): "Other"\\n    a (b.so)\\nThread 7 (idle)\\n    f (g.so)\\n')
        ['f (g.so)']
    """
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
    with contextlib.suppress(OSError):
        for thread in sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda path: int(path.name)):
            with contextlib.suppress(OSError):
                name, waits = ((thread / file).read_text().strip() for file in ("comm", "wchan"))
                does = f"waits in {waits}" if waits not in ("", "0") else "runs"
                found.append(f"thread {thread.name} ({name}) {does}")
    return found
