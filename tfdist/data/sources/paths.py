"""Which kind of source a path is: by the endings of files, and by what a folder holds.

Example:
    >>> kind_of("train.csv.gz"), kind_of("a.tfrecord-00000-of-00016"), kind_of("README.md")
    ('csv', 'tfrecords', '')
"""

import os
import re
from collections.abc import Sequence

from tfdist.data.schema import Schema
from tfdist.data.sources import files, images
from tfdist.data.sources.chain import chained
from tfdist.data.sources.protocol import Source
from tfdist.errors import ConfigError

_ENDINGS = {
    "csv": r"\.(csv|tsv)(\.gz)?",
    "parquet": r"\.(parquet|pq)",
    "hdf5": r"\.(h5|hdf5|hdf|he5)(:/.*)?",
    "npz": r"\.npz",
    "npy": r"\.npy",
    "tfrecords": r"\.tfrec(ord)?s?(-\d+-of-\d+)?(\.gz)?",
}
UNDERSTOOD = (
    "CSV (.csv, .tsv, also .gz), Parquet (.parquet, .pq), HDF5 (.h5, .hdf5; file.h5:/group), NumPy (.npz, .npy), "
    "TFRecord (.tfrecord, .tfrecords, also .gz), and folders with one folder of pictures per class"
)
IMAGES = "images"


def kind_of(path: str) -> str:
    """Return the kind that a file's name tells, empty for none."""
    found = [kind for kind, ending in _ENDINGS.items() if re.search(f"{ending}$", path, re.IGNORECASE)]
    return found[0] if found else ""


def open_paths(paths: Sequence[str | os.PathLike[str]], schema: Schema | None = None) -> Source:
    """Return files, folders and what wildcards match as one source, in the order given; a folder's files by name.

    Args:
        paths: local paths, or URLs for fsspec, all of one kind of file.
        schema: what examples must be; else that follows from the first file.

    Raises:
        ConfigError: there is no such file, or nothing that is understood; kinds are mixed.
    """
    found: list[tuple[str, str]] = []
    for path in map(files.spelled, paths):
        found += _expanded(path)
    kinds = sorted({kind for kind, _ in found})
    if len(kinds) > 1:
        raise ConfigError(f"source is a mixture of {' and '.join(kinds)}; pass files of one kind.")
    return _open(kinds[0], [path for _, path in found], schema)


def _expanded(path: str) -> list[tuple[str, str]]:
    """What a path stands for, each with its kind."""
    found = []
    group = re.search(r":/[^/].*$|:/$", path) if kind_of(path) == "hdf5" and not path.endswith(("5", "f")) else None
    stem = path[: group.start()] if group else path
    for match in files.matches(stem):
        if files.is_folder(match):
            found += _inside(match)
        elif kind := kind_of(match):
            found.append((kind, match + (group[0] if group else "")))
        else:
            raise ConfigError(f"source is {match!r}, whose ending says nothing. Understood are {UNDERSTOOD}.")
    return found


def _inside(folder: str) -> list[tuple[str, str]]:
    entries = files.entries(folder)
    by_kind: dict[str, list[str]] = {}
    for entry in entries:
        kind = "" if entry.is_folder else kind_of(entry.name)
        if kind:
            by_kind.setdefault(kind, []).append(entry.path)
    folders = [entry for entry in entries if entry.is_folder]
    pictured = any(images.is_picture(file.name) for entry in folders for file in files.entries(entry.path))
    if pictured or any(images.is_picture(entry.name) for entry in entries):
        by_kind[IMAGES] = [folder]
    if not by_kind and (deeper := _deeper(folders)):
        raise ConfigError(f"source is {folder!r}; pictures are one level deeper. Pass a folder of classes: {deeper}.")
    if len(by_kind) != 1:
        seen = ", ".join(entry.name + "/" * entry.is_folder for entry in entries[:10]) or "nothing"
        seen += ", ..." if len(entries) > 10 else ""
        several = f"files of several kinds ({', '.join(by_kind)}); name those that are meant: {folder}/*.csv, say."
        raise ConfigError(
            f"source is the folder {folder!r}, which has {seen}: "
            + (several if by_kind else f"nothing that is understood. Understood are {UNDERSTOOD}.")
        )
    kind, found = next(iter(by_kind.items()))
    return [(kind, path) for path in found]


def _deeper(folders: Sequence[files.Entry]) -> str:
    for entry in folders:
        for inner in files.entries(entry.path):
            if inner.is_folder and any(images.is_picture(file.name) for file in files.entries(inner.path)):
                return entry.path
    return ""


def _open(kind: str, paths: list[str], schema: Schema | None) -> Source:
    if kind == "tfrecords":
        from tfdist.data.sources.tfrecords import open_tfrecords

        return open_tfrecords(paths, schema)
    if kind == "npy":
        from tfdist.data.sources.npz import open_npy

        return open_npy(paths, schema)
    opened: list[Source] = []
    for path in paths:
        source = _open_one(kind, path, opened[0].schema if opened else schema)
        opened.append(source)
        if schema is None and _columns(source) != _columns(opened[0]):
            odd = sorted(_columns(source) ^ _columns(opened[0]))
            raise ConfigError(
                f"{path} and {paths[0]} have not the same columns: only one of them has {', '.join(map(repr, odd))}. "
                "Pass a schema with the columns that are wanted."
            )
    found = chained(opened)
    if found.count == 0:
        raise ConfigError(
            f"{', '.join(paths[:5])} ha{'s' if len(paths) == 1 else 've'} no rows; at least one is needed."
        )
    return found


def _columns(source: Source) -> set[str]:
    return set(getattr(source, "columns", source.schema))


def _open_one(kind: str, path: str, schema: Schema | None) -> Source:
    if kind == "csv":
        from tfdist.data.sources.csv import open_csv

        return open_csv(path, schema)
    if kind == "parquet":
        from tfdist.data.sources.parquet import open_parquet

        return open_parquet(path, schema)
    if kind == "hdf5":
        from tfdist.data.sources.hdf5 import open_hdf5

        return open_hdf5(path, schema)
    if kind == "npz":
        from tfdist.data.sources.npz import open_npz

        return open_npz(path, schema)
    return images.open_images(path, schema)
