"""TFRecord files of other writers, whose index the first call makes in the user's cache.

The files stay as they are, and nothing is written next to them. Compressed files are written into the cache as plain
records, because a compressed file cannot be read from the middle.
"""

import errno
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdist import cache as caches
from tfdist.data.format import data_manifest as manifests
from tfdist.data.format import splits
from tfdist.data.format.data_manifest import Manifest
from tfdist.data.format.revisions import written_in
from tfdist.data.format.schema import Schema
from tfdist.data.sources import paths, source_files
from tfdist.data.sources.compressed_files import GZIP, HEAD_BYTES, VOID, ZLIB, kind_of
from tfdist.data.writing import journal
from tfdist.data.writing.index_files import put_index
from tfdist.errors import ConfigError, CorruptDataError, StorageError
from tfdist.storage.directory import Overlay, Storage, storage
from tfdist.storage.files import plain_name
from tfdist.storage.local_storage import LocalStorage

_FOLDER = "tfrecords"
_ABOUT = "files.json"  # the files of the manifest next to it; written last
_COPY = "records"  # a folder with what compressed files hold
NAMED = re.compile(r"tfrec(ord)?s?\b|tfrecords?[-_.]", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
_PART = re.compile(r"[-_.]?\d+-of-\d+")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Asked:
    """The directory or files to read, the split to index if their names state several, and storage options."""

    directory: str | os.PathLike[str]
    split: str | None = None
    storage_options: Mapping[str, Any] | None = None
    cache: Any = None
    follow_symlinks: bool = False

    def storage(self, directory: str | os.PathLike[str]) -> Storage:
        follows = self.follow_symlinks
        return storage(directory, storage_options=self.storage_options, cache=self.cache, follow_symlinks=follows)


@dataclass(frozen=True)
class _Files:
    """TFRecord files of one folder. `key` is the same for every spelling; `is_folder`: all its files are meant."""

    url: str
    key: str
    folder: str
    entries: tuple[source_files.Entry, ...]
    is_folder: bool

    def identity(self) -> list[list[Any]]:
        """JSON that changes when one of the files is written anew."""
        return [[entry.name, entry.size, entry.stamp] for entry in self.entries]


def place_of(directory: str | os.PathLike[str], **options: Any) -> Storage:
    """Return the storage of a directory with a manifest, or of TFRecord files with an index in the user's cache.

    The index is made at the first call, and again after the files have changed; a line in the log describes them.
    """
    asked = Asked(directory, **options)
    place = asked.storage(directory)
    if manifests.has_manifest(place):
        return place
    found = _selected(place, asked)
    return place if found is None else _opened(found, None, asked)


def indexed_elsewhere(place: Storage, asked: Asked, *, schema: Schema | None, label: str | None) -> Storage | None:
    """Index TFRecord files in the user's cache if they are compressed or selected, or if their folder is read-only.

    The returned storage has both the files and their index. Return None if the index belongs next to the files.
    """
    found = None if manifests.has_manifest(place) else _selected(place, asked, to_index=True)
    if found is None:
        return None
    is_compressed = not {GZIP, ZLIB}.isdisjoint(_kinds(found, asked).values())
    if found.is_folder and not is_compressed and _can_write(place):
        return None
    wanted = {"schema": None if schema is None else schema.to_json(), "label": label, "split": asked.split}
    return _opened(found, wanted, asked)


def need_names(place: Storage) -> None:
    """Refuse entries that a listing leaves out: names that are not plain, and links that lead nowhere."""
    if place.local is not None and Path(place.local).is_dir():
        for name in os.listdir(place.local):
            if NAMED.search(name) and not name.startswith("."):
                path = place.local / plain_name(name)
                if path.is_symlink() and not path.exists():
                    raise ConfigError(
                        f"{path} is a link to {os.readlink(path)}, where nothing is; its examples would be missing. "
                        "Fetch the file (`dvc pull`, say), or remove the link.",
                        path=path,
                    )


def shown_features(manifest: Manifest) -> str:
    """Return the features of a manifest in a line for people."""
    words = []
    for name, feature in manifest.schema.items():
        notes = ["label"] * (name == manifest.label) + ["picture"] * feature.is_image
        shape = ", ".join("any" if dim is None else str(dim) for dim in feature.shape)
        words.append(f"{name} {feature.dtype}[{shape}]" + (f" ({', '.join(notes)})" if notes else ""))
    return ", ".join(words)


def _selected(place: Storage, asked: Asked, *, to_index: bool = False) -> _Files | None:
    """Return the TFRecord files that a user means; None if there are none, or tfdist has not finished writing them."""
    text = source_files.spelled(asked.directory)
    text = text if source_files.is_url(text) else os.path.abspath(os.path.expanduser(text))
    with source_files.driven_by(asked.storage_options):
        if source_files.is_folder(text):
            need_names(place)
            return _of_folder(place.url, text, asked.split, to_index=to_index)
        try:
            matched = source_files.matches(text)
        except ConfigError:
            return None
        if asked.split is not None:
            splits.chosen({}, asked.split, where=text)
        folders = {path.rstrip("/").rpartition("/")[0] for path in matched}
        if len(folders) > 1:
            raise ConfigError(
                f"{text} has files in {len(folders)} folders, and files of one are read as they are. `tfdist data "
                f"write '{text}' DIRECTORY` writes those of all into a directory of examples.",
                path=text,
            )
        entries = [entry for entry in map(source_files.entry, matched) if not entry.is_folder and entry.size]
        known = set(paths.record_files(entries))
        for entry in entries if not known else ():
            source_files.require_content(entry.path, entry.size)
        if entries and not known:
            raise ConfigError(
                f"{matched[0]} is not a TFRecord file: it does not begin with a record. `tfdist data write` makes a "
                "directory of CSV, Parquet, HDF5 and NumPy files. Formats that are read in place have no checksums to "
                "verify; `tfdist data stats` reads every example of them.",
                path=matched[0],
            )
        chosen = tuple(entry for entry in entries if entry.path in known)
        return _Files(place.url, text, folders.pop() or "/", chosen, False) if chosen else None


def _of_folder(url: str, folder: str, split: str | None, *, to_index: bool) -> _Files | None:
    entries = [entry for entry in source_files.entries(folder) if not entry.is_folder]
    names = {entry.name for entry in entries}
    if journal.NAME in names or (
        not to_index and any(name.endswith(".tfrecord") and written_in(name) for name in names)
    ):
        return None
    entries = [entry for entry in entries if entry.name not in (manifests.NAME, journal.NAME)]
    named = [entry for entry in entries if paths.kind_of(entry.name) == paths.TFRECORDS]
    begun = paths.record_files([entry for entry in entries if not paths.kind_of(entry.name)])
    known = {entry.path for entry in named if entry.size}.union(begun)
    chosen = [entry.name for entry in entries if entry.path in known]
    several = splits.by_word(chosen, of_tfds=not splits.OF_TFDS.isdisjoint(names), where=folder)
    if not to_index:  # an indexed split is what its folder means
        split = _about(_notes(folder)).get("split")
        split = split if split in several else None
    if split is not None or (to_index and several):
        chosen = splits.chosen(several, split, where=folder)
    elif not to_index:
        _need_one_set(folder, chosen, several)
    wanted = set(chosen)
    taken = tuple(entry for entry in entries if entry.name in wanted)
    return _Files(url, folder, folder, taken, True) if taken else None


def _need_one_set(folder: str, names: Sequence[str], several: Mapping[str, list[str]]) -> None:
    """Refuse files of several sets in one folder, which may mix training and validation."""
    sets = {_PART.sub("-*", name) for name in names if _PART.search(name)}
    if len(sets) < 2:
        sets = {_NUMBER.sub("*", name) for listed in several.values() for name in listed}
    if len(sets) > 1:
        named = [f"{folder}/{name}" for name in sorted(sets)]
        raise ConfigError(
            f"{folder} has several sets of TFRecord files. Pass the one that is meant: {', '.join(named[:5])}"
            f"{', ...' if len(named) > 5 else ''}; or {folder}/* for all of them as one.",
            path=folder,
        )


def _notes(key: str) -> LocalStorage:
    """Return the cache's folder for files, found by the name that the user gave them."""
    digest = hashlib.blake2b(key.encode(errors="surrogateescape"), digest_size=12).hexdigest()
    return LocalStorage(caches.folder(os.environ) / _FOLDER / digest)


def _opened(found: _Files, wanted: dict[str, Any] | None, asked: Asked) -> Storage:
    """Return the storage of files with an index, which is made unless there is one of their present state."""
    folder = asked.storage(found.folder)
    for entry in found.entries if folder.local is not None else ():
        folder.size(plain_name(entry.name))  # refuses links that lead out of the folder unless they are followed
    caches.make(caches.folder(os.environ), (_FOLDER,))
    notes = _notes(found.key)
    if wanted is None and _is_of(notes, found):
        return _place(found, notes, asked)
    with notes.lock():
        if wanted is None and _is_of(notes, found):  # another process has made it
            return _place(found, notes, asked)
        about = wanted or _about(notes)
        notes.remove(_ABOUT)
        manifest = _index(found, notes, about, asked)
        content = {name: about.get(name) for name in ("schema", "label", "split")}
        with notes.create(_ABOUT) as file:
            file.write(json.dumps({"files": found.identity(), **content}).encode())
    place = _place(found, notes, asked)
    _log.warning(
        "%s: %d examples in %d TFRecord files. Their records have: %s. `tfdist data index --schema` says otherwise; "
        "the index is in %s.",
        *(found.url, manifest.examples, len(found.entries), shown_features(manifest), notes.local),
    )
    return place


def _index(found: _Files, notes: LocalStorage, about: Mapping[str, Any], asked: Asked) -> Manifest:
    schema = None if about.get("schema") is None else Schema.from_json(about["schema"])
    # Every machine has its own cache, and workers compare manifests: none tells how often this one was made.
    copy = notes.local / _COPY
    kinds = _kinds(found, asked)
    if not {GZIP, ZLIB}.isdisjoint(kinds.values()):
        _keep_only(notes, ())
        shutil.rmtree(copy, ignore_errors=True)
        return _copied(found, copy, schema, about.get("label"), asked)
    names = [plain_name(entry.name) for entry in found.entries if kinds[entry.name] != VOID]
    place = Overlay(asked.storage(found.folder), names, notes, url=found.url)
    manifest = put_index(place, names, schema=schema, label=about.get("label"))
    _keep_only(notes, (manifests.NAME, *manifest.files))  # last: others may read by what is the same
    shutil.rmtree(copy, ignore_errors=True)  # of files that were compressed
    return manifest


def _keep_only(notes: LocalStorage, names: Collection[str]) -> None:
    kept = set(names)
    for name in notes.names():
        if name not in kept:
            notes.remove(name)


def _copied(found: _Files, folder: Path, schema: Schema | None, label: str | None, asked: Asked) -> Manifest:
    from tfdist.data.sources.tfrecords.tfrecord_source import surveyed
    from tfdist.data.writing.dataset_writer import write

    size = sum(entry.size for entry in found.entries)
    _log.warning(
        "%s: its %d files of %.1f MB are compressed, so their records are written into %s; TFDIST_CACHE_DIR chooses "
        "another disk.",
        *(found.url, len(found.entries), size / 1e6, folder),
    )
    listed = [entry.path for entry in found.entries]
    with source_files.driven_by(asked.storage_options):
        chosen = schema or surveyed(listed)
    return write(
        listed,
        folder,
        schema=chosen,
        label=label,
        exists="overwrite",
        check_images=False,
        source_options=asked.storage_options if source_files.is_url(found.folder) else None,
    )


def _is_of(notes: LocalStorage, found: _Files) -> bool:
    """Return whether the manifest in the cache is whole, and describes the present state of these files."""
    if _about(notes).get("files") != found.identity():
        return False
    try:
        copy = LocalStorage(notes.local / _COPY)
        Manifest.from_bytes((notes if manifests.NAME in notes.names() else copy).read(manifests.NAME))
    except (StorageError, CorruptDataError):
        return False
    return True


def _about(notes: LocalStorage) -> dict[str, Any]:
    try:
        content = json.loads(notes.read(_ABOUT))
    except (StorageError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _place(found: _Files, notes: LocalStorage, asked: Asked) -> Storage:
    copy = notes.local / _COPY
    if manifests.NAME not in notes.names() and copy.is_dir():
        return LocalStorage(copy)
    names = [entry.name for entry in found.entries]
    return Overlay(asked.storage(found.folder), names, notes, url=found.url)


def _kinds(found: _Files, asked: Asked) -> dict[str, str]:
    kinds = {}
    with source_files.driven_by(asked.storage_options):
        for entry in found.entries:
            head = source_files.head(entry.path, HEAD_BYTES)
            source_files.refuse(entry.path, head)
            kinds[entry.name] = kind_of(head)
    return kinds


def _can_write(place: Storage) -> bool:
    try:
        with place.lock():
            return True
    except StorageError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return False
        raise
