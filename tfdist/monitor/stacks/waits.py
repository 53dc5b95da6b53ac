"""A process's waits for others, written next to its stacks once a wait has lasted a second."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tfdist.storage.files import write_whole
from tfdist.variables import STACKS_FILE

_SUFFIX = ".waits"


class WaitNote:
    """A file in which a process describes its current wait."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._told = ""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> "WaitNote":
        path = STACKS_FILE.read(environ)
        return cls(Path(path + _SUFFIX) if path else None)

    def tell(self, text: str) -> None:
        """Write the description of this process's wait, or ""; failures are ignored."""
        if self._path is None or text == self._told:
            return
        self._told = text
        with suppress(OSError):
            if text:
                write_whole(self._path, text)
            else:
                self._path.unlink(missing_ok=True)


def read(stacks_file: Path) -> str:
    """Read the wait of the process whose stacks are in this file, or ""."""
    try:
        return stacks_file.with_name(stacks_file.name + _SUFFIX).read_text(encoding="utf-8").strip()
    except OSError:
        return ""
