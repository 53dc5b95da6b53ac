"""The page of a job below the cell of a notebook: what the exporter ``html`` writes, shown again as it changes."""

import contextlib
import sys
import tempfile
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self

LOOK_SECONDS = 0.5


def in_notebook() -> bool:
    """True in the kernel of a notebook that can show HTML."""
    interactive = sys.modules.get("IPython")
    shell = None if interactive is None else interactive.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class Cell:
    """Shows the file ``path`` below the cell that runs, and again whenever it has changed, until it is closed.

    Its thread reads a few kilobytes twice a second.
    """

    def __enter__(self) -> Self:
        from IPython.display import HTML, display

        self._folder = tempfile.TemporaryDirectory(prefix="tfdist-cell-")
        self.path = Path(self._folder.name, "page.html")
        self._shown = ""
        self._make: Any = HTML
        self._handle: Any = display(HTML("tfdist: waiting for the first steps"), display_id=True)
        self._closed = Event()
        self._thread = Thread(target=self._follow, name="page in a cell", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join()
        self._show()  # what came last
        self._folder.cleanup()

    def _follow(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            self._show()

    def _show(self) -> None:
        with contextlib.suppress(OSError):
            text = self.path.read_text(encoding="utf-8")
            if text != self._shown:
                self._shown = text
                self._handle.update(self._make(text))
