"""A corrupt directory made sound again with all that is whole of it. Nothing that is sound is written anew.

Bad shards are written under new names first, then the manifest with the next revision, and the old files are removed
last: whenever it ends, the directory is what it was or what it becomes.
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import google_crc32c

from tfdist.data import manifest as manifests
from tfdist.data.examining import Examined, Place
from tfdist.data.examples import read_manifest
from tfdist.data.indexing import files
from tfdist.data.layout import FIXED
from tfdist.data.manifest import IndexFile, Manifest, Shard
from tfdist.data.rebuilding import Rebuilt, rebuilt
from tfdist.data.salvage import described, salvage
from tfdist.data.schema import Schema
from tfdist.data.shard import index_name, store_index
from tfdist.data.storage import Storage, storage
from tfdist.data.verifying import Progress, examine_all
from tfdist.errors import CorruptDataError

# a name that nobody else chooses: files that have it and that no manifest names are removed
_REVISED = re.compile(r"(?P<stem>.+?)\.repair-(?P<revision>[1-9][0-9]{0,17})(?P<suffix>(\..*)?)", re.DOTALL)


@dataclass(frozen=True)
class Repair:
    """What was done.

    Attributes:
        url: the directory.
        revision: of the manifest now.
        kept: examples that the directory has now.
        lost: places of what could not be kept, with the numbers that the examples had.
        rewritten: shards that were written anew: old name -> new name; empty where nothing of it was left.
        indexed: indices that were written anew.
        removed: files that were removed.
        inferred: what was told from the records because no manifest said it.
    """

    url: str
    revision: int
    kept: int
    lost: tuple[Place, ...] = ()
    rewritten: Mapping[str, str] = dataclasses.field(default_factory=dict)
    indexed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    inferred: tuple[str, ...] = ()

    @property
    def lost_examples(self) -> int:
        """Number of examples that are lost, as far as it is known."""
        return sum(place.examples for place in self.lost)

    @property
    def has_changed(self) -> bool:
        """Whether anything was written or removed."""
        return bool(self.rewritten or self.indexed or self.removed or self.inferred)

    def lines(self) -> Iterator[str]:
        """Yield what was done for people."""
        yield from (f"lost: {place}" for place in self.lost)
        for old, new in self.rewritten.items():
            yield f"{old} is now {new}" if new else f"{old} had nothing that is whole"
        yield from (f"{name} was written anew" for name in self.indexed)
        yield from (f"{name} was removed" for name in self.removed)
        yield from self.inferred
        yield (
            f"{self.url} has {self.kept} examples now, revision {self.revision}; {self.lost_examples} are lost."
            if self.has_changed
            else f"{self.url} is sound: nothing was changed."
        )

    def to_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {**dataclasses.asdict(self), "lost_examples": self.lost_examples, "has_changed": self.has_changed}

    def __str__(self) -> str:
        return "\n".join(self.lines())


def repair(
    directory: str | os.PathLike[str],
    *,
    rebuild_manifest: bool = False,
    drop_missing: bool = False,
    schema: Schema | None = None,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Repair:
    """Take out what is corrupt, and keep all that is whole.

    A shard with corrupt records is written anew without them; an index that is missing or wrong is made from its
    shard; then the manifest gets the next revision. Examples behind one that is lost have lower numbers afterwards, so
    states of readers and orders are others. Ended at any moment, the directory is the old one or the new one.

    Args:
        directory: what `tfdist.data.write` or `tfdist.data.index` made; a path or an fsspec URL.
        rebuild_manifest: whether a manifest that is missing or cannot be trusted is made from the shards. The schema is
            the one that can still be read in it, if all whole records fit it; else it is told from the records, which
            do not say what was an array of bytes.
        drop_missing: whether to go on without shards that are not there.
        schema: of the examples, for a manifest that is made anew.
        progress: called now and then with bytes read and bytes in all.
        storage_options: what fsspec's driver takes, such as ``{"anon": True}``; for URLs alone.
    Returns:
        What was kept, lost, written and told.
    Raises:
        ConfigError: there is no manifest, and ``rebuild_manifest`` is not given.
        CorruptDataError: the manifest cannot be trusted, a shard is missing, or nothing whole is left.

    Example:
        >>> import tempfile, pathlib, numpy as np, tfdist
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = tfdist.data.write({"x": np.zeros((3, 2), "float32")}, folder)
        ...     shard = pathlib.Path(folder, "data-00000.tfrecord")
        ...     _ = shard.write_bytes(shard.read_bytes()[:-1] + b"?")
        ...     done = repair(folder)
        ...     done.kept, [place.example for place in done.lost], dict(done.rewritten)
        (2, [2], {'data-00000.tfrecord': 'data-00000.repair-2.tfrecord'})
    """
    place = storage(directory, storage_options=storage_options)
    with place.lock():
        return repair_storage(
            place, rebuild_manifest=rebuild_manifest, drop_missing=drop_missing, schema=schema, progress=progress
        )


def repair_storage(
    place: Storage,
    *,
    rebuild_manifest: bool = False,
    drop_missing: bool = False,
    schema: Schema | None = None,
    progress: Progress | None = None,
) -> Repair:
    """Repair a directory that nobody else writes to; see `repair`."""
    try:
        old = read_manifest(place)
    except (CorruptDataError, ValueError) as error:
        if not rebuild_manifest:
            raise type(error)(
                f"{error} If the shards are there, rebuild_manifest=True (--rebuild-manifest) makes one from them."
            ) from error
        return _rebuild(place, schema)
    done = examine_all(place, old, progress=progress)
    missing = [shard.file for shard, state in zip(old.shards, done, strict=True) if state.is_missing]
    if missing and not drop_missing:
        raise CorruptDataError(
            f"{place.url} has no {', '.join(missing[:5])}{' and others' if len(missing) > 5 else ''}. Copy them into "
            "it; or pass drop_missing=True (--drop-missing) to go on without their examples."
        )
    work = _Work(place, old)
    for shard, state in zip(old.shards, done, strict=True):
        work.add(shard, state)
    return work.commit()


class _Work:
    """A directory on its way to its next revision."""

    def __init__(self, place: Storage, old: Manifest) -> None:
        self._place = place
        self._old = old
        self._revision = next_revision(old.revision, _files_of(old))
        self._shards: list[Shard] = []
        self._lost: list[Place] = []
        self._rewritten: dict[str, str] = {}
        self._indexed: list[str] = []

    def add(self, shard: Shard, state: Examined) -> None:
        """Do what a shard needs, and nothing that a reader of the old manifest could see."""
        if state.is_damaged:
            self._lost += [place for place in state.places if place.examples]
            self._rewrite(shard, is_missing=state.is_missing)
        elif not state.is_described:
            self._lost += [place for place in state.places if place.examples]
            self._shards.append(self._described(shard))
        elif not state.is_indexed:
            self._shards.append(self._reindexed(shard))
        else:
            self._shards.append(shard)

    def _rewrite(self, shard: Shard, *, is_missing: bool) -> None:
        anew = revised(shard.file, self._revision)
        found = None
        if not is_missing:
            found = salvage(self._place, shard.file, anew, self._old.schema, self._old.layout)
        self._rewritten[shard.file] = found.file if found else ""
        if found:
            self._shards.append(found)

    def _described(self, shard: Shard) -> Shard:
        """Describe a shard that is whole, and not the one that the manifest describes."""
        found, rows = described(self._place, shard.file, self._old.schema, self._old.layout)
        if rows is None:
            return found
        name = revised(shard.file, self._revision)
        index = store_index(self._place, name, rows)
        self._indexed.append(index.file)
        return replace(found, index=index)

    def _reindexed(self, shard: Shard) -> Shard:
        """Write the index of a shard anew: under its name, if that is what it was."""
        _, rows = described(self._place, shard.file, self._old.schema, self._old.layout)
        assert rows is not None
        assert shard.index is not None
        data = rows.to_bytes()
        made = IndexFile(file=index_name(shard.file), bytes=len(data), crc32c=google_crc32c.value(data))
        # where the manifest is wrong, too, readers of the old revision keep what they have
        name = shard.file if made == shard.index else revised(shard.file, self._revision)
        index = store_index(self._place, name, rows)
        self._indexed.append(index.file)
        return replace(shard, index=index)

    def commit(self) -> Repair:
        """Make the new revision the directory's, and remove what only the old one had."""
        old = self._old
        new = replace(old, shards=tuple(self._shards))
        if not new.examples and old.examples:
            raise CorruptDataError(
                f"{self._place.url} has no example that is whole, so there is nothing to keep. Nothing was changed; "
                "copy its files again, or write it again."
            )
        if new.shards != old.shards:
            new = replace(new, revision=self._revision)
            _commit(self._place, new)
        removed = _leftovers(self._place, new, old)
        _remove(self._place, removed)
        return Repair(
            url=self._place.url,
            revision=new.revision,
            kept=new.examples,
            lost=tuple(self._lost),
            rewritten=self._rewritten,
            indexed=tuple(self._indexed),
            removed=tuple(removed),
        )


def _rebuild(place: Storage, schema: Schema | None) -> Repair:
    """Make a manifest from the shards that are there."""
    shards = newest(files(place))
    found: Rebuilt = rebuilt(place, shards, schema)
    revision, old_names = next_revision(found.revision, shards), place.names()
    finished, rewritten, indexed = [], {}, []
    for shard, rows, is_damaged in found.shards:
        if is_damaged:
            anew = salvage(place, shard.file, revised(shard.file, revision), found.schema, found.layout)
            rewritten[shard.file] = anew.file if anew else ""
            finished += [anew] if anew else []
        elif found.layout == FIXED or rows is None:
            finished.append(shard)
        else:
            about = store_index(place, shard.file, rows)
            indexed.append(about.file)
            finished.append(replace(shard, index=about))
    new = Manifest(
        schema=found.schema, layout=found.layout, shards=tuple(finished), label=found.label, revision=revision
    )
    if not new.examples:
        raise CorruptDataError(f"{place.url} has no example that is whole. Copy its files again, or write it again.")
    _commit(place, new)
    removed = [name for old in rewritten for name in (old, index_name(old)) if name in old_names]
    removed += [name for name in _leftovers(place, new, new) if name not in removed]
    _remove(place, removed)
    return Repair(
        url=place.url,
        revision=revision,
        kept=new.examples,
        lost=found.lost,
        rewritten=rewritten,
        indexed=tuple(indexed),
        removed=tuple(removed),
        inferred=(*found.inferred, f"revision: {revision}"),
    )


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
    """Return the revision after the last, and after all in which a file was made, so that no name is used again."""
    return max([last, *(original(name)[1] for name in names)]) + 1


def newest(names: list[str]) -> list[str]:
    """Return of files that took each other's place the last one, in the order of the names that they had at first."""
    last: dict[str, str] = {}
    for name in names:
        first, revision = original(name)
        if first not in last or original(last[first])[1] < revision:
            last[first] = name
    return [last[first] for first in sorted(last)]


def _leftovers(place: Storage, new: Manifest, old: Manifest) -> list[str]:
    """Return the files that a repair left which was ended, or which only the old revision had."""
    used, before = _files_of(new), _files_of(old)
    families = {original(name)[0] for name in used | before}
    replaced = {original(name)[0] for name in used if original(name)[0] != name}

    def is_ours(name: str) -> bool:
        first = original(name)[0]
        return name in before or name in replaced or (first != name and first in families)

    return [name for name in place.names() if name not in used and is_ours(name)]


def _commit(place: Storage, manifest: Manifest) -> None:
    data = manifest.to_bytes()
    Manifest.from_bytes(data)  # what cannot be read must not take the place of what can
    with place.create(manifests.NAME) as file:
        file.write(data)


def _files_of(manifest: Manifest) -> set[str]:
    return {shard.file for shard in manifest.shards} | {shard.index.file for shard in manifest.shards if shard.index}


def _remove(place: Storage, names: list[str]) -> None:
    for name in names:
        place.remove(name)
