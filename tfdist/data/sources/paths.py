"""Detect the kind of a source path from file endings, first bytes and folder contents."""

import glob
import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tfdist.data.format import splits
from tfdist.data.format.schema import Schema
from tfdist.data.sources import compressed_files, hdf5, images, source_files
from tfdist.data.sources.array_source import Archive
from tfdist.data.sources.compressed_files import HEAD_BYTES
from tfdist.data.sources.protocol import Options, Source, chained
from tfdist.data.sources.source_files import head
from tfdist.data.sources.stored_columns import widened
from tfdist.data.sources.tables import arrow_ipc, csv, parquet, partitions
from tfdist.data.sources.tables.arrow_table import UntoldError
from tfdist.data.sources.tables.partitions import Keys
from tfdist.data.sources.tfrecords.tfrecord_source import open_tfrecords
from tfdist.errors import ConfigError

_ENDINGS = {
    "csv": r"\.(csv|tsv)(\.gz)?",
    "parquet": r"\.(parquet|pq)",
    "arrow": r"\.(arrow|feather)",
    "hdf5": r"\.(h5|hdf5|hdf|he5)(:/.*)?",
    "npz": r"\.npz",
    "npy": r"\.npy",
    "tfrecords": r"\.tfrec(ord)?s?(-\d+-of-\d+)?(\.gz|\.zlib|\.z)?",
}
UNDERSTOOD = (
    "CSV (.csv, .tsv, also .gz), Parquet (.parquet, .pq), Arrow (.arrow, .feather), HDF5 (.h5, .hdf5; file.h5:/group), "
    "NumPy (.npz, .npy), TFRecord (.tfrecord, or any name: the first bytes tell, of GZIP and ZLIB, too), and folders "
    "with one folder of pictures per class"
)
IMAGES = "images"
TFRECORDS = "tfrecords"
_TABLES = {"csv": csv.open_csv, "parquet": parquet.open_parquet, "arrow": arrow_ipc.open_arrow}


def kind_of(path: str) -> str:
    found = [kind for kind, ending in _ENDINGS.items() if re.search(f"{ending}$", path, re.IGNORECASE)]
    return found[0] if found else ""


class Found(NamedTuple):
    """A file or a folder of pictures: its kind, its path, and the key=value folders that it is in."""

    kind: str
    path: str
    keys: Keys = ()


def open_paths(
    paths: Sequence[str | os.PathLike[str]], schema: Schema | None, *, split: str | None, options: Options
) -> Source:
    """Files, folders and matches of wildcards as one source, in the order given; a folder's files by name."""
    found: list[Found] = []
    for path in map(source_files.spelled, paths):
        found += _expanded(path, split)
    kinds = sorted({file.kind for file in found})
    if len(kinds) > 1:
        raise ConfigError(
            f"source is a mixture of {' and '.join(kinds)}; pass files of one kind.",
            name="source",
            received=" and ".join(kinds),
        )
    return _open(kinds[0], found, schema, options)


def splits_of(path: str | os.PathLike[str]) -> list[str]:
    """The splits that a folder holds, train first; none where it holds one set of examples."""
    where = source_files.spelled(path)
    if kind_of(where) == "hdf5" or (glob.has_magic(where) and not os.path.exists(where)):
        return []
    matches = source_files.matches(where)
    return list(_splits(matches[0])) if len(matches) == 1 and source_files.is_folder(matches[0]) else []


def _expanded(path: str, split: str | None) -> list[Found]:
    found = []
    group = re.search(r":/[^/].*$|:/$", path) if kind_of(path) == "hdf5" and not path.endswith(("5", "f")) else None
    stem = path[: group.start()] if group else path
    for match in source_files.matches(stem):
        keys = _keys_of(match, stem)
        if source_files.is_folder(match):
            inside = _inside(match, split)
            found += [file._replace(keys=keys + file.keys) if file.kind in _TABLES else file for file in inside]
        elif split is not None:
            raise ConfigError(
                f"split is {split!r}; it chooses one of a folder's, and {match} is a file. Leave it out.",
                name="split",
                received=split,
                path=match,
            )
        elif kind := kind_of(match) or (TFRECORDS if compressed_files.kind_of(head(match, HEAD_BYTES)) else ""):
            found.append(Found(kind, match + (group[0] if group else ""), keys if kind in _TABLES else ()))
        else:
            source_files.require_content(match)
            raise ConfigError(
                f"source is {match!r}, which has none of the understood formats: {UNDERSTOOD}. Others (tar, JSON "
                "lines, MDS, LMDB, ...) are read in place, by tfdist.data.open and tfdist.data.read. To copy one: "
                f"examples = tfdist.data.open({match!r}); "
                "tfdist.data.write(examples, directory, schema=examples.schema)",
                name="source",
                path=match,
            )
    return found


def _keys_of(match: str, pattern: str) -> Keys:
    """The keys of the folders that a wildcard matched."""
    magic = [glob.has_magic(part) for part in pattern.split("/")]
    if match == pattern or not any(magic):
        return ()
    plain = magic.index(True)
    parts = match.split("/")[plain:]
    folders = parts if source_files.is_folder(match) else parts[:-1]
    return tuple(key for key in map(partitions.key_of, folders) if key)


def _inside(folder: str, split: str | None) -> list[Found]:
    several = _splits(folder)
    return _plainly(folder) if not several and split is None else splits.chosen(several, split, where=folder)


def _splits(folder: str) -> Mapping[str, list[Found]]:
    """The splits of a folder: one per folder in it, or told by the names of its files; none where it is one set."""
    entries = source_files.entries(folder)
    folders = [entry for entry in entries if entry.is_folder]
    kinds = _by_kind(entries)
    parts = [entry.name for entry in folders if splits.is_word(entry.name)]
    if len(parts) > 1 and (kinds or len(parts) < len(folders)) and not _pictured(folders):
        other = next(iter(kinds), next((entry.name for entry in folders if entry.name not in parts), ""))
        raise ConfigError(
            f"source is the folder {folder!r}, which holds the splits {', '.join(splits.ordered(parts))} and also "
            f"{other}{' files' * bool(kinds)}; name what is meant: {folder}/{splits.ordered(parts)[0]}, say.",
            name="source",
            received=", ".join([*splits.ordered(parts), other]),
            path=folder,
        )
    if not kinds and len(folders) > 1 and all(splits.is_word(entry.name) for entry in folders):
        if _pictured(folders):
            return {}  # these are classes
        paths = {entry.name: entry.path for entry in folders}
        return {name: _plainly(paths[name]) for name in splits.ordered(paths)}
    if len(kinds) == 1 and "npy" not in kinds and not _pictured(folders):
        of_tfds = any(entry.name in splits.OF_TFDS for entry in entries)
        kind, listed = next(iter(kinds.items()))
        by_word = splits.by_word(listed, of_tfds=of_tfds, where=folder)
        return {name: [Found(kind, path) for path in found] for name, found in by_word.items()}
    return {}


def _pictured(folders: Sequence[source_files.Entry]) -> bool:
    return any(images.is_picture(file.name) for entry in folders for file in source_files.entries(entry.path))


def _plainly(folder: str) -> list[Found]:
    if not source_files.is_url(folder) and arrow_ipc.is_saved(folder):
        return [Found("arrow", path) for path in arrow_ipc.saved_files(folder)]
    entries = source_files.entries(folder)
    by_kind = {kind: [Found(kind, path) for path in found] for kind, found in _by_kind(entries).items()}
    folders = [entry for entry in entries if entry.is_folder]
    if _pictured(folders) or any(images.is_picture(entry.name) for entry in entries):
        by_kind[IMAGES] = [Found(IMAGES, folder)]
    keys = {entry.path: key for entry in folders if (key := partitions.key_of(entry.name))}
    if keys and IMAGES not in by_kind:
        if by_kind or len(keys) < len(folders):
            other = next((entry.name for entry in folders if entry.path not in keys), "files")
            raise ConfigError(
                f"source is the folder {folder!r}, which has folders called key=value and {other}; all files must be "
                "under the same keys. Name those that are meant.",
                name="source",
                received=other,
                path=folder,
            )
        return [file._replace(keys=(key, *file.keys)) for inner, key in keys.items() for file in _plainly(inner)]
    if not by_kind and (deeper := _deeper(folders)):
        raise ConfigError(
            f"source is {folder!r}; pictures are one level deeper. Pass a folder of classes: {deeper}.",
            name="source",
            path=folder,
        )
    if len(by_kind) != 1:
        for entry in entries:
            if not entry.is_folder:
                source_files.require_content(entry.path, entry.size)
        seen = ", ".join(entry.name + "/" * entry.is_folder for entry in entries[:10]) or "nothing"
        seen += ", ..." if len(entries) > 10 else ""
        several = f"files of several kinds ({', '.join(by_kind)}); name those that are meant: {folder}/*.csv, say."
        raise ConfigError(
            f"source is the folder {folder!r}, which has {seen}: "
            + (several if by_kind else f"nothing that is understood. Understood are {UNDERSTOOD}."),
            name="source",
            received=seen,
            path=folder,
        )
    return next(iter(by_kind.values()))


def _by_kind(entries: Sequence[source_files.Entry]) -> dict[str, list[str]]:
    """The files of a folder that are understood, by kind: that of their names, or records by their first bytes."""
    by_kind: dict[str, list[str]] = {}
    rest: list[source_files.Entry] = []
    for entry in entries:
        if kind := "" if entry.is_folder else kind_of(entry.name):
            by_kind.setdefault(kind, []).append(entry.path)
        elif not entry.is_folder and not images.is_picture(entry.name):
            rest.append(entry)
    if not by_kind.keys() - {TFRECORDS} and (found := record_files(rest)):
        by_kind[TFRECORDS] = sorted(by_kind.get(TFRECORDS, []) + found)
    return by_kind


def record_files(entries: Sequence[source_files.Entry]) -> list[str]:
    """The paths of the files that begin with a record, compressed or not, sorted.

    Of names that differ only in numbers the first one with content is looked at, for all of them.
    """
    groups: dict[str, list[source_files.Entry]] = {}
    for entry in entries:
        if entry.size:
            groups.setdefault(alike(entry.name), []).append(entry)
    return sorted(entry.path for group in groups.values() if _are_records(group) for entry in group)


def alike(name: str) -> str:
    """Replace the numbers in a name by 0, which makes names equal that differ only in numbers."""
    return re.sub(r"\d+", "0", name)


def _are_records(group: Sequence[source_files.Entry]) -> bool:
    """The first file with content holds records; without any content, all are empty shards."""
    for entry in group:
        begin = head(entry.path, HEAD_BYTES)
        if not source_files.is_pointer(begin) and (kind := compressed_files.kind_of(begin)) != compressed_files.VOID:
            return bool(kind)
    return False


def _deeper(folders: Sequence[source_files.Entry]) -> str:
    """The first folder that has a folder with pictures; empty if there is none."""
    for entry in folders:
        if _pictured([inner for inner in source_files.entries(entry.path) if inner.is_folder]):
            return entry.path
    return ""


def _open(kind: str, found: Sequence[Found], schema: Schema | None, options: Options) -> Source:
    paths = [file.path for file in found]
    for path in paths if kind != IMAGES else ():
        source_files.require_content(hdf5.split(path)[0] if kind == "hdf5" else path)
    if kind not in _TABLES:
        _need_tables(kind, found, options)
    elif kind != "csv" and options.delimiter is not None:
        raise ConfigError(
            f"delimiter is {options.delimiter!r}; it is for CSV files, and these are {kind}.",
            name="delimiter",
            received=options.delimiter,
        )
    if kind == "tfrecords":
        return open_tfrecords(paths, schema)
    if kind == "npy":
        return Archive(paths, schema)
    if kind == IMAGES:
        names = images.classes_of(paths) if len(paths) > 1 and schema is None else ()
        return chained([images.open_images(path, schema, names) for path in paths])
    return _open_each(kind, found, schema, options)


def _need_tables(kind: str, found: Sequence[Found], options: Options) -> None:
    if options.of_tables or options.delimiter is not None:
        raise ConfigError(
            f"nulls, null_masks and delimiter are for tables (CSV, Parquet, Arrow, tables in memory); these are "
            f"{kind}. Leave them out.",
            name="nulls",
        )
    for file in found:
        if file.keys:
            key, value = file.keys[0]
            raise ConfigError(
                f"{file.path} is in the folder {key}={value}, and {kind} files have no columns that it could be one "
                "of. Pass the files by their names, or rename the folder."
            )


def _open_each(kind: str, found: Sequence[Found], schema: Schema | None, options: Options) -> Source:
    """Files whose features are columns, one after the other."""
    keyed = partitions.schema_of([file.keys for file in found], options)
    if schema is not None:
        masks = {f"{name}_is_null" for name in schema}
        keyed = {name: schema.get(name, feature) for name, feature in keyed.items() if name in schema or name in masks}
    inner = schema and _without(schema, keyed)
    of_files = options.without([key for key, _ in found[0].keys])
    opened: list[Source] = []
    for file, source in zip(found, _open_alike(kind, found, inner, of_files), strict=True):
        if file.keys:
            full = Schema({**source.schema, **keyed})
            source = partitions.partitioned(source, full, file.keys, options, file.path)
        opened.append(source)
        if schema is None and _columns(source) != _columns(opened[0]):
            odd = sorted(_columns(source) ^ _columns(opened[0]))
            raise ConfigError(
                f"{file.path} and {found[0].path} have not the same columns: only one of them has "
                f"{', '.join(map(repr, odd))}. Pass a schema with the columns that are wanted.",
                name=", ".join(odd),
                path=file.path,
            )
    whole = chained(opened)
    if whole.count == 0:
        shown = ", ".join(file.path for file in found[:5])
        raise ConfigError(
            f"{shown} ha{'s' if len(found) == 1 else 've'} no rows; at least one is needed.",
            name="source",
            received=shown,
        )
    return whole


def _open_alike(kind: str, found: Sequence[Found], schema: Schema | None, options: Options) -> list[Source]:
    """Open files with one schema, by default that of the first, with dtypes that hold all of them.

    All files but CSV files say their types when they are opened. A column without a value takes its type from other
    files.
    """
    given: dict[str, Source] = {}
    untold: ConfigError | None = None
    for file in found if schema is None else ():
        try:
            given[file.path] = _open_one(kind, file.path, None, options)
        except UntoldError as error:
            untold = untold or error
        if kind == "csv" and given:
            break
    if schema is None:
        if not given and untold is not None:
            raise untold
        schema = widened([source.schema for source in given.values()])
    for file in found:
        if file.path not in given or given[file.path].schema != schema:
            given[file.path] = _open_one(kind, file.path, schema, options)
    return [given[file.path] for file in found]


def _without(schema: Schema, keyed: Mapping[str, object]) -> Schema:
    rest = {name: feature for name, feature in schema.items() if name not in keyed}
    if not rest:
        raise ConfigError(
            f"the schema has {', '.join(map(repr, schema))} alone, which the folders' names say; it must have a column "
            "of the files as well."
        )
    return Schema(rest)


def _columns(source: Source) -> set[str]:
    return set(getattr(source, "columns", source.schema))


def _open_one(kind: str, path: str, schema: Schema | None, options: Options) -> Source:
    if kind in _TABLES:
        return _TABLES[kind](path, schema, options)
    return hdf5.open_hdf5(path, schema) if kind == "hdf5" else Archive([path], schema)
