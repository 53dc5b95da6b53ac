"""Names of a directory's files, each used once: readers of one revision of the manifest meet no file of another."""

import re
from collections.abc import Iterable

_WRITTEN = re.compile(
    r"data-(?P<number>\d{5,})(\.repair-\d+)?(\.revision-(?P<revision>[1-9]\d{0,17}))?\.(tfrecord|index)"
)
# a name that only tfdist uses: files with it that no manifest names are removed
_REVISED = re.compile(r"(?P<stem>.+?)\.repair-(?P<revision>[1-9][0-9]{0,17})(?P<suffix>(\..*)?)", re.DOTALL)


def shard_name(number: int, revision: int = 1) -> str:
    """Return the file name of a shard; it has the revision, so that overwritten and new files never share a name."""
    return f"data-{number:05}.tfrecord" if revision == 1 else f"data-{number:05}.revision-{revision}.tfrecord"


def written_in(name: str) -> int | None:
    """Return the revision in which `tfdist.data.write` wrote a file; None for the files of others."""
    found = _WRITTEN.fullmatch(name)
    return int(found["revision"] or 1) if found else None


def index_name(shard: str) -> str:
    return shard.removesuffix(".tfrecord") + ".index"


def revised(name: str, revision: int) -> str:
    """Return the name of a shard that replaces another."""
    stem, dot, suffix = original(name)[0].partition(".")
    return f"{stem}.repair-{revision}{dot}{suffix}"


def original(name: str) -> tuple[str, int]:
    """Return the name that a file had before any repair, and the revision in which it was made."""
    found = _REVISED.fullmatch(name)
    return (f"{found['stem']}{found['suffix']}", int(found["revision"])) if found else (name, 1)


def next_revision(last: int, names: Iterable[str]) -> int:
    """Return the revision after the last one and after those of all files, so that no name is used again."""
    return max(last, made_in(names)) + 1


def newest(names: list[str]) -> list[str]:
    """Return the newest of the files that replaced each other, in the order of their original names."""
    last: dict[str, str] = {}
    for name in names:
        first, revision = original(name)
        if first not in last or original(last[first])[1] < revision:
            last[first] = name
    return [last[first] for first in sorted(last)]


def made_in(names: Iterable[str]) -> int:
    """Return the last revision in which one of these files was written or repaired."""
    return max((max(original(name)[1], written_in(name) or 1) for name in names), default=1)


def of_one_writing(names: list[str], *, is_writing: bool) -> list[str]:
    """Return the shards of the last complete writing and of what was appended to it; files of other writers stay.

    A writing begins with shard 0; appended shards have higher numbers.
    """
    found = sorted({revision for name in names if (revision := written_in(name))})
    if is_writing and len(found) > 1:
        found.pop()
    parts = [match for name in names if (match := _WRITTEN.fullmatch(name))]
    begun = {int(match["revision"] or 1) for match in parts if not int(match["number"])}
    first = max((revision for revision in found if revision in begun), default=min(found, default=1))
    kept = {None, *(revision for revision in found if revision >= first)}
    return [name for name in names if written_in(name) in kept]


def superseded(names: Iterable[str], used: Iterable[str]) -> list[str]:
    """Return the files of overwritten revisions that a writer left because it was killed after writing its manifest."""
    oldest = min((written_in(name) or 1 for name in used), default=1)
    return [name for name in names if (written_in(name) or oldest) < oldest]
