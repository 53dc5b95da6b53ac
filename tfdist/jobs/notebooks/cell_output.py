"""Worker output in a notebook cell: whole lines with prefixes, and one live progress line.

The progress line of the chief is above the lines, in a separate output that front ends replace. A saved notebook has
only its last state.
"""

import contextlib
import contextvars
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tfdist.jobs.output.output_forwarder import Output, prefixes_of, screen

# Between two states of the living line, and between two pieces of lines: no front end is faster, and no user
# notices. A kernel drops messages when a thousand wait for a front end that is slower than it.
_PACE_SECONDS = 0.02


class CellOutput:
    """An output into a notebook cell, without file descriptors, for any thread.

    Example:
        >>> out = CellOutput(["worker 0", "worker 1"], write=lambda stream, text: print(text, end=""))
        >>> out.lines(1, 1, [b"loss 0.5"])
        [worker 1] loss 0.5
    """

    speaker = "tfdist"
    lends = False

    def __init__(
        self,
        names: Sequence[str],
        *,
        write: Callable[[int, str], Any],
        show: Callable[[str], Any] | None = None,
        coloured: bool = False,
    ) -> None:
        self.closed = threading.Event()
        self.noise: re.Pattern[bytes] | None = None
        self.said: list[str] = []  # the last messages of the agent
        self._prefixes = prefixes_of(names, coloured=coloured)
        self._plain = prefixes_of(names, coloured=False)
        self._write = write
        self._show = show
        self._shown, self._when = "", 0.0
        self._wrote = 0.0
        self._lock = threading.Lock()
        self._context = contextvars.copy_context()  # by it a kernel knows the cell

    def lines(self, stream: int, worker: int, lines: list[bytes]) -> None:
        if lines:  # meanwhile output collects in the pipe, and arrives in one piece
            time.sleep(max(0.0, self._wrote + _PACE_SECONDS - time.monotonic()))
            self._wrote = time.monotonic()
            prefix = self._prefixes.get(worker, b"")
            self._call(self._write, stream, b"".join(prefix + line + b"\n" for line in lines).decode(errors="replace"))

    def living(self, stream: int, worker: int, text: bytes) -> None:
        shown = (self._plain.get(worker, b"") + text).decode(errors="replace") if text else ""
        if self._show is None or shown == self._shown:
            return
        if shown:  # meanwhile output collects in the pipe; only its end is shown
            time.sleep(max(0.0, self._when + _PACE_SECONDS - time.monotonic()))
        self._shown, self._when = shown, time.monotonic()
        self._call(self._show, shown)

    def message(self, text: str, *, style: str = "", give_up: Callable[[], bool]) -> None:
        self.said = [*self.said, text.removeprefix(f"{self.speaker}: ")][-2:]
        self._call(self._write, 2, f"{text}\n")

    def _call(self, function: Callable[..., Any], *arguments: Any) -> None:
        with self._lock:
            try:
                self._context.run(function, *arguments)
            except (OSError, ValueError):  # the stream is closed
                self.closed.set()


def output(names: Sequence[str]) -> Output:
    """Return the output for workers of these names: the cell, a replaced `sys.stdout`, or the terminal."""
    show = _living_line()
    streams: dict[int, Any] = {1: sys.stdout, 2: sys.stderr}
    if show is None and sys.stdout is sys.__stdout__ and sys.stderr is sys.__stderr__:
        with contextlib.suppress(AttributeError, OSError, ValueError):  # a program may have none, or a closed one
            streams[1].flush()  # the caller's output comes before that of the workers
            terminal = screen(names, standard_output=streams[1].fileno(), standard_error=streams[2].fileno())
            terminal.speaker, terminal.lends = CellOutput.speaker, CellOutput.lends
            return terminal

    def write(stream: int, text: str) -> None:
        encoding = getattr(streams[stream], "encoding", None) or "utf-8"  # which may lack the letters of Keras' bar
        streams[stream].write(text.encode(encoding, "backslashreplace").decode(encoding))
        streams[stream].flush()

    return CellOutput(names, write=write, show=show, coloured=show is not None)


def _living_line() -> Callable[[str], None] | None:
    """Return a function that replaces a line of the cell; None outside of a kernel. IPython is not imported for it."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    from IPython.display import display

    handles: list[Any] = []

    def show(text: str) -> None:
        content = {"text/plain": text}
        if handles:
            handles[0].update(content, raw=True)
        elif text:
            handles.append(display(content, raw=True, display_id=True))

    return show
