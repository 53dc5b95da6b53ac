"""Expect an error by its type and its fields; the sentence that it says may be reworded in any release.

Example:
    with refused(ConfigError, name="workers", received=0):
        integer("workers", 0, minimum=1)

A fact of the message that no field holds, such as a number or a command to run, is a mention:

    with refused(ConfigError, name="num_shards", received=2, mentions=("1 examples",)):
        write(photos, data, num_shards=2)

What was raised is kept for further checks:

    with refused(StorageError, path=gone) as caught:
        read(gone)
    assert caught.value.errno == errno.ENOENT
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from tfdist.errors import TfdistError

MOST_WORDS = 4  # of a mention: a longer one is a sentence
_EDGES = re.compile(r"^[^\w/-]+|[^\w/-]+$")  # a flag and a path are no words
_WORD = re.compile(r"[^\W\d_]{2,}([-'][^\W\d_]+)*")
_NOT_COMPARED: Any = object()


@contextmanager
def refused(
    kind: type[TfdistError],
    *,
    name: str | None = _NOT_COMPARED,
    received: object = _NOT_COMPARED,
    path: str | os.PathLike[str] | None = _NOT_COMPARED,
    workers: Sequence[int] = _NOT_COMPARED,
    mentions: Sequence[str] = (),
) -> Iterator[pytest.ExceptionInfo[TfdistError]]:
    """Expect exactly this type of error with these fields; a field that is not given is not compared.

    Args:
        kind: the type itself: an error of a subclass is another refusal.
        name: the field `name`.
        received: the value, or its text, as the field `received` has it.
        path: the field `path`.
        workers: the field `workers`.
        mentions: what the message has in it, each of at most four words.
    """
    assert not isinstance(mentions, str), "mentions is a sequence of texts"
    for mention in mentions:
        assert words(mention) <= MOST_WORDS, f"{mention!r} is a sentence; name the fact"
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    assert type(error) is kind, f"{type(error).__name__}: {error}"
    for field, expected in (("name", name), ("path", path), ("workers", workers)):
        if expected is not _NOT_COMPARED:
            assert getattr(error, field) == _as_kept(expected), f"{field} is {getattr(error, field)!r}: {error}"
    if received is not _NOT_COMPARED:
        assert error.received in (received, repr(received)), f"received is {error.received!r}: {error}"
    missing = [mention for mention in mentions if mention not in str(error)]
    assert not missing, f"not mentioned: {missing} in {str(error)!r}"


def words(text: str) -> int:
    """Count the words of a text, without flags, paths and names with digits.

    Example:
        >>> words("worker 1 of /a/b needs -n 2")
        3
    """
    return sum(bool(_WORD.fullmatch(_EDGES.sub("", part))) for part in text.split())


def _as_kept(expected: object) -> object:
    if isinstance(expected, os.PathLike):
        return os.fspath(expected)
    return tuple(expected) if isinstance(expected, list | range) else expected


def absent(text: str, *facts: str) -> list[str]:
    """The facts (names, numbers, paths, commands) that a line or a page does not have.

    Example:
        >>> absent("worker 1 failed 2.0 s after the start", "worker 1", "3.0 s")
        ['3.0 s']
    """
    return [fact for fact in facts if fact not in text]
