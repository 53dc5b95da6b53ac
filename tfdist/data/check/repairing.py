"""Repair a damaged directory: copy the records that are whole, and name the others.

Copies have new names, the manifest follows them, and the files that they replace are removed last. So a repair that is
killed leaves the old directory or the new one. A lost manifest is rebuilt from the shards.
"""

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfdist import validation
from tfdist.data.check.shard_check import Examined, Place
from tfdist.data.check.verifying import Progress, examine_all
from tfdist.data.format import data_manifest as manifests
from tfdist.data.format import record_framing
from tfdist.data.format.contents import Contents, batches
from tfdist.data.format.data_manifest import Manifest, Shard, read_manifest, require_folder
from tfdist.data.format.picture_decoding import Decode, decoding
from tfdist.data.format.record_framing import Content, Found, walk
from tfdist.data.format.revisions import (
    index_name,
    newest,
    next_revision,
    of_one_writing,
    original,
    revised,
    shard_name,
    superseded,
)
from tfdist.data.format.schema import Schema, label_of, layouts
from tfdist.data.sources.source_files import is_url
from tfdist.data.sources.tfrecords.inference import looked_at
from tfdist.data.writing import journal
from tfdist.data.writing.encode import Encoded
from tfdist.data.writing.index_files import described, store_index_of
from tfdist.data.writing.indexing import files
from tfdist.data.writing.shard import ShardWriter
from tfdist.errors import ConfigError, CorruptDataError, TfdistError, fields_of
from tfdist.storage.directory import Storage, storage

_LARGEST_REVISION = 1 << 53


def _inferred(
    place: Storage, shards: list[str], schema: Schema | None
) -> tuple[Manifest, dict[str, list[Found]], tuple[str, ...]]:
    """Return a manifest without shards, the stretches of each shard that are not examples, and what was inferred.

    Schemas are tried in this order: the given one, the legible one, and the one that the records show. The first that
    fits every whole record is taken. If none fits, the last is taken, without the records that do not fit.
    """
    legible = _legible(place)
    label, number = legible.get("label"), legible.get("revision")
    revision = number if type(number) is int and 1 <= number < _LARGEST_REVISION else 1
    for chosen, said, is_last in _schemas(place, shards, schema, legible):
        for layout in layouts(chosen):
            faults = {shard: _faults(place, shard, chosen, layout) for shard in shards}
            is_unfit = any(fault.payload is not None for listed in faults.values() for fault in listed)
            if is_unfit and not (is_last and layout == layouts(chosen)[-1]):
                continue  # a record that is whole and does not fit: rather the schema or the layout is wrong
            known = label_of(chosen, label if isinstance(label, str) and label in chosen else None)
            none = Manifest(schema=chosen, layout=layout, shards=(), label=known, revision=revision)
            return none, faults, (said, f"layout: {layout}")
    raise AssertionError("the last schema is always taken")


def _schemas(
    place: Storage, shards: list[str], given: Schema | None, legible: Mapping[str, Any]
) -> Iterator[tuple[Schema, str, bool]]:
    if given is not None:
        yield given, "schema: as given", True
        return
    try:
        found = Schema.from_json(legible.get("schema"))
        yield found, f"schema: as {manifests.NAME} still has it; all records fit it", False
    except TfdistError:
        pass
    found = looked_at(place, shards).schema(place.url)
    parts = ", ".join(f"{name} {feature.dtype}{list(feature.shape)}" for name, feature in found.items())
    yield found, f"schema: inferred from the records ({parts}); arrays that were stored as bytes are bytes now", True


def _faults(place: Storage, shard: str, schema: Schema, layout: str) -> list[Found]:
    """Return the stretches of a shard that are not examples; the payload, which may be large, is left out."""
    contents, faults = Contents(schema, layout), list[Found]()
    for batch in batches(walk(Content(place, shard))):
        problems = contents.of([found.payload or b"" for found in batch]).problems
        for row, found in enumerate(batch):
            if found.payload is None:
                faults.append(found)
            elif row in problems:
                faults.append(found._replace(payload=b"", problem=problems[row]))
    return faults


def _legible(place: Storage) -> dict[str, Any]:
    """Return the legible fields of a damaged manifest, none of which can be trusted."""
    if manifests.NAME not in place.names() or place.size(manifests.NAME) > manifests.LARGEST_BYTES:
        return {}
    try:
        found = json.loads(place.read(manifests.NAME))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Repair:
    """The result of a repair.

    Attributes:
        url: the directory that is sound now.
        revision: the revision of the manifest now.
        kept: examples that the directory has now.
        lost: places of the examples that could not be kept, with the numbers that they had.
        rewritten: shards that were written anew: old name -> new name; an empty name where nothing was left.
        indexed: indices that were written anew.
        removed: files that were removed.
        inferred: facts that were inferred from the records because no manifest had them.
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
        """The number of lost examples, as far as it is known."""
        return sum(place.examples for place in self.lost)

    @property
    def has_changed(self) -> bool:
        """Whether anything was written or removed."""
        return bool(self.rewritten or self.indexed or self.removed or self.inferred)

    def lines(self) -> Iterator[str]:
        """Yield the lines of a report for people."""
        yield from (f"lost: {place}" for place in self.lost)
        for old, new in self.rewritten.items():
            if new != old:
                yield f"{old} is now {new}" if new else f"{old} had nothing that is whole"
        yield from (f"{name} was written anew" for name in self.indexed)
        yield from (f"{name} was removed" for name in self.removed)
        yield from self.inferred
        lost = f"{validation.counted(self.lost_examples, 'example')} lost" if self.lost_examples else "none was lost"
        now = f"has {validation.counted(self.kept, 'example')} now, revision {self.revision}; {lost}."
        yield f"{self.url} {now if self.has_changed else 'is sound: nothing was changed.'}"

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON for programs."""
        return {**dataclasses.asdict(self), "lost_examples": self.lost_examples, "has_changed": self.has_changed}

    def __str__(self) -> str:
        return "\n".join(self.lines())


def repair(
    directory: str | os.PathLike[str],
    into: str | os.PathLike[str] | None = None,
    *,
    rebuild_manifest: bool = False,
    drop_missing: bool = False,
    decode: bool = False,
    schema: Schema | None = None,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    follow_symlinks: bool = False,
) -> Repair:
    """Copy the whole records of a damaged directory, and name the others.

    With ``into`` they are copied there, and ``directory`` stays as it is, byte for byte. Without it, a copy replaces
    each shard with corrupt records, an index that is missing or wrong is made from its shard, and the manifest gets the
    next revision; sound files stay. A repair that is killed leaves the old directory or the new one. Examples after a
    lost one get lower numbers, so states of readers and orders change.

    Args:
        directory: a directory that `tfdist.data.write` or `tfdist.data.index` made; a path or an fsspec URL.
        into: the directory of the copy, which must not exist or be empty; a path or a URL. Default: ``directory``
            itself.
        rebuild_manifest: whether a manifest that is missing or cannot be trusted is made from the shards. Its schema is
            still used if it can be read and all whole records fit it; else it is inferred from the records, and arrays
            that were stored as bytes become bytes.
        drop_missing: whether to continue without missing shards.
        decode: whether to decode pictures with TensorFlow, and to leave out examples whose picture cannot be decoded.
        schema: the schema of the examples, for a manifest that is rebuilt.
        progress: a function that is called now and then with the bytes read so far and the bytes in all.
        storage_options: options of fsspec's driver, such as ``{"anon": True}``; for URLs only.
        follow_symlinks: whether files of a local directory may be symbolic links that lead out of it, as in the caches
            of DVC and of hubs. Default: they are refused.
    Returns:
        The result: what was kept, lost, rewritten and inferred.
    Raises:
        ConfigError: there is no manifest, and ``rebuild_manifest`` is not given; ``into`` is not empty.
        CorruptDataError: the manifest cannot be trusted, a shard is missing, or no record is whole.

    Example:
        >>> import tempfile, pathlib, numpy as np, tfdist
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = tfdist.data.write({"x": np.zeros((3, 2), "float32")}, f"{folder}/old")
        ...     shard = pathlib.Path(folder, "old", "data-00000.tfrecord")
        ...     _ = shard.write_bytes(shard.read_bytes()[:-1] + b"?")
        ...     done = repair(f"{folder}/old", f"{folder}/new")
        ...     done.kept, [place.example for place in done.lost], tfdist.data.verify(f"{folder}/new").is_sound
        (2, [2], True)
    """
    place = storage(directory, storage_options=storage_options, follow_symlinks=follow_symlinks)
    require_folder(place)
    copy = None
    if into is not None:
        copy = storage(into, storage_options=storage_options if is_url(os.fspath(into)) else None)
    with (copy or place).lock():
        return repair_storage(
            place,
            copy,
            rebuild_manifest=rebuild_manifest,
            drop_missing=drop_missing,
            decode=validation.boolean("decode", decode),
            schema=schema,
            progress=progress,
        )


def repair_storage(
    place: Storage,
    into: Storage | None = None,
    *,
    rebuild_manifest: bool = False,
    drop_missing: bool = False,
    decode: bool = False,
    schema: Schema | None = None,
    progress: Progress | None = None,
) -> Repair:
    """Repair a directory that has no other writer; see `repair`."""
    if into is not None and (taken := into.names()):
        raise ConfigError(
            f"{into.url} has {taken[0]} already. Choose a directory that is empty; or, where a repair that was "
            "interrupted left these files, remove them first.",
            name="into",
            received=taken[0],
            path=into.url,
        )
    try:
        old = read_manifest(place)
    except (CorruptDataError, ValueError) as error:
        if not rebuild_manifest:
            raise type(error)(
                f"{error} If the shards are there, rebuild_manifest=True (--rebuild-manifest) makes one from them.",
                **fields_of(error),
            ) from error
        if decode:
            raise ConfigError(
                "decode looks at a directory that has a manifest. Repair that first, then decode."
            ) from error
        return _without_manifest(place, into, schema)
    with decoding(old.schema, old.total_bytes) if decode else nullcontext() as decodes:
        done = examine_all(place, old, decode=decodes, progress=progress)
        missing = [shard.file for shard, state in zip(old.shards, done, strict=True) if state.is_missing]
        if missing and not drop_missing:
            raise CorruptDataError(
                f"{place.url} has no {', '.join(missing[:5])}{' and others' if len(missing) > 5 else ''}. Copy what is "
                "missing into it; or pass drop_missing=True (--drop-missing) to continue without those examples.",
                name=missing[0],
                path=place.url,
            )
        work = _Work(place, into, old, next_revision(old.revision, old.files), decodes)
        for shard, state in zip(old.shards, done, strict=True):
            work.add(shard, state)
    return work.commit()


def _without_manifest(place: Storage, into: Storage | None, schema: Schema | None) -> Repair:
    is_writing = journal.NAME in place.names()
    shards = newest(of_one_writing(files(place), is_writing=is_writing))
    none, faults, said = _inferred(place, shards, schema)
    work = _Work(place, into, none, next_revision(none.revision, shards), None)
    for shard, found in faults.items():
        work.add_unknown(shard, [Place(shard, fault.offset, None, fault.problem, 1) for fault in found])
    done = work.commit()
    return replace(done, inferred=(*said, f"revision: {done.revision}"))


class _Work:
    """The state of a repair: a directory on its way to its next revision, or to a copy."""

    def __init__(
        self, place: Storage, into: Storage | None, old: Manifest, revision: int, decode: Decode | None
    ) -> None:
        self._place, self._target, self._is_copy = place, into or place, into is not None
        self._old, self._decode = old, decode
        self._revision = 1 if self._is_copy else revision
        self._shards: list[Shard] = []
        self._lost: list[Place] = []
        self._rewritten: dict[str, str] = {}
        self._indexed: list[str] = []

    def add(self, shard: Shard, state: Examined) -> None:
        """Repair one shard, without a change that a reader of the old manifest could see."""
        self._lost += [place for place in state.places if place.examples]
        if state.is_missing:
            self._rewritten[shard.file] = ""
        elif state.is_damaged or self._is_copy:
            self._copy(shard.file)
        elif not (state.is_described and state.is_indexed):
            self._describe(shard.file, shard, is_described=state.is_described)
        else:
            self._shards.append(shard)

    def add_unknown(self, file: str, faults: list[Place]) -> None:
        self._lost += faults
        if faults or self._is_copy:
            self._copy(file)
        else:
            self._describe(file, None, is_described=False)

    def _copy(self, file: str) -> None:
        name = shard_name(len(self._shards)) if self._is_copy else revised(file, self._revision)
        old = self._old
        found = copied(self._place, file, self._target, name, old.schema, old.layout, decode=self._decode)
        self._rewritten[file] = found.file if found else ""
        self._shards += [found] if found else []

    def _describe(self, file: str, known: Shard | None, *, is_described: bool) -> None:
        found, rows = described(self._place, file, self._old.schema, self._old.layout)
        if known is not None and is_described:
            found = known
        if rows is not None:
            index = store_index_of(self._place, file, rows, known.index if known else None, self._revision)
            self._indexed.append(index.file)
            found = replace(found, index=index)
        self._shards.append(found)

    def commit(self) -> Repair:
        """Put the new manifest in place, and remove the files that only the old one named."""
        new = replace(self._old, shards=tuple(self._shards), revision=self._revision)
        if not new.examples and (self._old.examples or not self._old.shards):
            raise CorruptDataError(
                f"{self._place.url} has no example that is whole, so there is nothing to keep. Nothing was changed; "
                "copy its files again, or write it again.",
                path=self._place.url,
            )
        if new.shards == self._old.shards and not self._is_copy:
            new = self._old
        else:
            data = new.to_bytes()
            Manifest.from_bytes(data)  # what cannot be read must not take the place of what can
            with self._target.create(manifests.NAME) as file:
                file.write(data)
        removed = [] if self._is_copy else self._leftovers(new)
        for name in removed:
            self._target.remove(name)
        return Repair(
            url=self._target.url,
            revision=new.revision,
            kept=new.examples,
            lost=tuple(self._lost),
            rewritten=self._rewritten,
            indexed=tuple(self._indexed),
            removed=tuple(removed),
        )

    def _leftovers(self, new: Manifest) -> list[str]:
        """Return the files that only the old revision has, or that a killed repair has left."""
        names, used = self._target.names(), new.files
        before = self._old.files | {name for file in self._rewritten for name in (file, index_name(file))}
        families = {original(name)[0] for name in used | before}
        replaced = {original(name)[0] for name in used if original(name)[0] != name}
        old_ones = superseded(names, used)

        def is_ours(name: str) -> bool:
            first = original(name)[0]
            return name in before or name in replaced or name in old_ones or (first != name and first in families)

        return [name for name in names if name not in used and is_ours(name)]


class _NothingLeftError(Exception):
    """Raised if no record is left, so that no file appears."""


def copied(
    place: Storage, shard: str, into: Storage, name: str, schema: Schema, layout: str, *, decode: Decode | None = None
) -> Shard | None:
    """Copy the records of a shard that are whole and fit the schema; return None if there are none."""
    contents = Contents(schema, layout, decode=decode)
    try:
        with ShardWriter(into, name, layout) as writer:
            for batch in batches(walk(Content(place, shard))):
                payloads = [found.payload for found in batch if found.payload is not None]
                rows = contents.of(payloads)
                kept = np.array([row for row in range(len(payloads)) if row not in rows.problems], np.int64)
                if len(kept):
                    framed = [record_framing.frame(payloads[row]) for row in kept.tolist()]
                    columns = {name: values[kept] for name, values in rows.columns.items()}
                    writer.add(Encoded(b"".join(framed), np.cumsum([len(frame) for frame in framed]), columns))
            if not writer.examples:
                raise _NothingLeftError
    except _NothingLeftError:
        return None
    assert writer.shard is not None
    return writer.shard
