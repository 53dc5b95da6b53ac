"""The journal of a search: one line of JSON for each event, so that a killed search resumes where it stopped.

An event is on disk before it takes effect. A line that a kill has cut is removed when the search resumes, and the same
decision is made again.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from tfdist.errors import CorruptDataError
from tfdist.tune.search.search_history import Event, event_from_json, event_to_json


class Journal:
    """A journal, to which events are appended."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "ab")  # noqa: SIM115 - closed by `close`

    def write(self, event: Event) -> None:
        self._file.write(json.dumps(event_to_json(event)).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(path: Path) -> Iterator[Event]:
    """Yield the events of a journal, without a line that was cut."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            yield event_from_json(json.loads(line))
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptDataError(
                f"line {number} of {path} is not an event of a search ({error}). Restore the file, or search anew in "
                "another folder.",
                path=path,
            ) from error


def repair(path: Path) -> None:
    """Remove a line that a kill has cut."""
    if path.exists():
        whole = path.read_bytes().rpartition(b"\n")
        os.truncate(path, len(whole[0]) + len(whole[1]))
