"""Verdicts on steps, kept in the cache from one start to the next: a file for each step that was tried.

TensorFlow is not loaded here.

Example:
    >>> from tfdist.training.replica.judging import VERDICTS, StateRule
    >>> tried = Tried({("loss", 0): StateRule("sum")}, {("loss", 0): "mine"})
    >>> Tried.of_text(tried.to_text()) == tried
    True
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfdist import cache
from tfdist.errors import TfdistError
from tfdist.storage.files import write_whole
from tfdist.training.replica.judging import VERDICTS, StateRule
from tfdist.variables import TRIALS

_FOLDER = "trials"
_MOST_FILES = 500
_MOST_BYTES = 1 << 20

Key = tuple[str, int]


@dataclass
class Tried:
    """The rule of each value and state, the names that the user gave them, and sentences about uses of gradients."""

    found: dict[Key, StateRule] = field(default_factory=dict)
    names: dict[Key, str] = field(default_factory=dict)
    uses: dict[Key, str] = field(default_factory=dict)

    def to_text(self) -> str:
        rules = [[*key, one.verdict, one.kept, one.at_once] for key, one in sorted(self.found.items())]
        texts = [[[*key, text] for key, text in sorted(several.items())] for several in (self.names, self.uses)]
        return json.dumps({"found": rules, "names": texts[0], "uses": texts[1]})

    @classmethod
    def of_text(cls, text: str) -> "Tried":
        content = json.loads(text)
        try:
            found = {}
            for kind, number, verdict, kept, at_once in _checked(content["found"], str, int, str, float, bool):
                if verdict not in VERDICTS:
                    raise TypeError
                found[kind, number] = StateRule(verdict, kept, at_once)
            names, uses = (
                {(kind, number): text for kind, number, text in _checked(content[part], str, int, str)}
                for part in ("names", "uses")
            )
        except (KeyError, TypeError, IndexError) as error:
            raise ValueError("these are no verdicts") from error
        return cls(found, names, uses)


def _checked(rows: Any, *types: type) -> list[Any]:
    if not all(list(map(type, row)) == list(types) for row in rows):
        raise TypeError
    return list(rows)


class Shelf:
    """The cache of verdicts."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self.is_open = TRIALS.read(environ) == "keep"
        self._root = cache.folder(environ)

    def take(self, key: str) -> Tried | None:
        """Return the verdicts under a key; None if there are none, or if the file is damaged."""
        try:
            with self._place(key).open(encoding="utf-8") as file:
                return Tried.of_text(file.read(_MOST_BYTES))
        except (OSError, ValueError, RecursionError):
            return None

    def put(self, key: str, tried: Tried) -> None:
        """Store verdicts; do nothing if the cache cannot be written."""
        text, place = tried.to_text(), self._place(key)
        with contextlib.suppress(OSError, TfdistError):
            cache.make(self._root, (_FOLDER,))
            write_whole(place, text)
            self._remove_oldest()

    def _place(self, key: str) -> Path:
        return self._root / _FOLDER / f"{key}.json"

    def _remove_oldest(self) -> None:
        """Remove files beyond a number, including temporary ones of processes that were killed."""
        files = []
        for file in (self._root / _FOLDER).iterdir():
            with contextlib.suppress(OSError):  # another process may remove it at this moment
                files.append((file.stat().st_mtime, file))
        for _, file in sorted(files)[:-_MOST_FILES]:
            with contextlib.suppress(OSError):
                file.unlink()


def as_numbers(tried: Tried) -> list[int]:
    """Return two numbers by which workers compare their verdicts."""
    digest = hashlib.sha256(tried.to_text().encode()).digest()
    return [int.from_bytes(digest[place : place + 7], "big") for place in (0, 7)]
