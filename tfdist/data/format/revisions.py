"""Names of a directory's files, each used once: readers of one revision of the manifest meet no file of another."""

import re
from collections.abc import Iterable

_WRITTEN = re.compile(r"data-\d{5,}(\.repair-\d+)?(\.revision-(?P<revision>[1-9]\d{0,17}))?\.(tfrecord|index)")
# a name that nobody else chooses: files that have it and that no manifest names are removed
_REVISED = re.compile(r"(?P<stem>.+?)\.repair-(?P<revision>[1-9][0-9]{0,17})(?P<suffix>(\..*)?)", re.DOTALL)


def shard_name(number: int, revision: int = 1) -> str:
    """Return the file of a shard: of what was overwritten and of what takes its place no two files share a name.

    Example:
        >>> shard_name(7), shard_name(7, 2)
        ('data-00007.tfrecord', 'data-00007.revision-2.tfrecord')
    """
    return f"data-{number:05}.tfrecord" if revision == 1 else f"data-{number:05}.revision-{revision}.tfrecord"


def written_in(name: str) -> int | None:
    """Return the revision in which `tfdist.data.write` wrote a shard, or what is left of it; None for other files.

    Example:
        >>> written_in("data-00007.repair-3.revision-2.index"), written_in("data-00007.index"), written_in("a.index")
        (2, 1, None)
    """
    found = _WRITTEN.fullmatch(name)
    return int(found["revision"] or 1) if found else None


def index_name(shard: str) -> str:
    """Return the index that belongs to a shard's file."""
    return shard.removesuffix(".tfrecord") + ".index"


def revised(name: str, revision: int) -> str:
    """Return the name of a shard that takes the place of another.

    Example:
        >>> revised("data-00003.tfrecord", 2), revised("data-00003.repair-2.tfrecord", 3)
        ('data-00003.repair-2.tfrecord', 'data-00003.repair-3.tfrecord')
    """
    stem, dot, suffix = original(name)[0].partition(".")
    return f"{stem}.repair-{revision}{dot}{suffix}"


def original(name: str) -> tuple[str, int]:
    """Return the name that a file had before any repair, and the revision in which it was made.

    Example:
        >>> original("data-00003.repair-2.index"), original("data-00003.tfrecord")
        (('data-00003.index', 2), ('data-00003.tfrecord', 1))
    """
    found = _REVISED.fullmatch(name)
    return (f"{found['stem']}{found['suffix']}", int(found["revision"])) if found else (name, 1)


def next_revision(last: int, names: Iterable[str]) -> int:
    """Return the revision after the last, and after all in which a file was made, so that no name is used again.

    Example:
        >>> next_revision(1, ["data-00000.revision-4.tfrecord"]), next_revision(3, ["data-00000.repair-2.tfrecord"])
        (5, 4)
    """
    return max([last, *(max(original(name)[1], written_in(name) or 1) for name in names)]) + 1


def newest(names: list[str]) -> list[str]:
    """Return of files that took each other's place the last one, in the order of the names that they had at first."""
    last: dict[str, str] = {}
    for name in names:
        first, revision = original(name)
        if first not in last or original(last[first])[1] < revision:
            last[first] = name
    return [last[first] for first in sorted(last)]


def of_one_writing(names: list[str], *, is_writing: bool) -> list[str]:
    """Return the shards of one revision, where another is being written or was overwritten; all that have other names.

    Example:
        >>> names = ["data-00000.tfrecord", "data-00000.revision-2.tfrecord", "data-00001.tfrecord"]
        >>> of_one_writing(names, is_writing=True), of_one_writing(names, is_writing=False)
        (['data-00000.tfrecord', 'data-00001.tfrecord'], ['data-00000.revision-2.tfrecord'])
    """
    found = sorted({revision for name in names if (revision := written_in(name))})
    if not found:
        return names
    chosen = found[-2] if is_writing and len(found) > 1 else found[-1]
    return [name for name in names if written_in(name) in (None, chosen)]


def superseded(names: Iterable[str], used: Iterable[str]) -> list[str]:
    """Return the files of revisions that were overwritten; a writer that was killed behind its manifest leaves some.

    Example:
        >>> superseded(["data-00000.index", "data-00000.revision-2.index"], ["data-00000.revision-2.index"])
        ['data-00000.index']
    """
    oldest = min((written_in(name) or 1 for name in used), default=1)
    return [name for name in names if (written_in(name) or oldest) < oldest]
