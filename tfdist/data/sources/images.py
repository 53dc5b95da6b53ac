"""A folder of pictures with one folder per class, as a source of the pictures' bytes and the numbers of their classes.

    photos/cat/1.jpg        label 0
    photos/dog/a.png        label 1

Folders are matched by name to the classes of a schema that has names: the folders of photos/test, for instance, to the
    classes of photos/train. Examples are in the order of classes, then of file names. Hidden files are left out.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.data.format.picture_decoding import format_of
from tfdist.data.format.schema import TEXT, Feature, Schema
from tfdist.data.sources import source_files
from tfdist.data.sources.protocol import BLOCK_BYTES, Block
from tfdist.data.sources.stored_columns import column, numbers_of
from tfdist.errors import ConfigError

ENDINGS = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".webp")
_MOST_FILES = 256  # of a block


def classes_of(folders: Sequence[str]) -> tuple[str, ...]:
    return tuple(
        sorted({entry.name for folder in folders for entry in source_files.entries(folder) if entry.is_folder})
    )


def open_images(folder: str, schema: Schema | None, names: Sequence[str]) -> "Images":
    root = source_files.entries(folder)
    classes = [entry for entry in root if entry.is_folder]
    if stray := [entry for entry in root if not entry.is_folder and is_picture(entry.name)]:
        raise ConfigError(
            f"{folder} has the picture {stray[0].name!r} outside of the folders of classes; move it into one of "
            f"{_some(classes) or 'them'}, so that it has a label.",
            name=stray[0].name,
            path=folder,
        )
    if not classes:
        raise ConfigError(f"{folder} has no folders; it must have one per class, with that class's pictures in it.")
    if schema is not None and schema.keys() != {"image", "label"}:
        raise ConfigError(
            f"the schema has {', '.join(map(repr, schema))}; a folder of pictures has 'image' and 'label'."
        )
    said = (schema["label"].names if schema else ()) or tuple(names) or tuple(entry.name for entry in classes)
    if len(set(said)) < len(said):
        twice = next(name for name in said if said.count(name) > 1)
        raise ConfigError(f"the schema has the class {twice!r} twice; every class must have one number.")
    found: list[source_files.Entry] = []
    labels: list[int] = []
    numbers = numbers_of([entry.name for entry in classes], said, "label", folder)
    for entry, number in zip(classes, numbers.tolist(), strict=True):
        pictures = _pictures(entry, folder)
        found += pictures
        labels += [number] * len(pictures)
    if not found:
        raise ConfigError(f"{folder} has no pictures in {_some(classes)}; at least one is needed.")
    features = {"image": Feature(TEXT, is_image=True), "label": Feature("int64", names=said)}
    if schema is not None:
        features = {**schema, "label": replace(schema["label"], names=said)}
    if features["image"].dtype == TEXT:  # pictures they are, whether the schema says so or not
        features["image"] = replace(features["image"], is_image=True)
    return Images(Schema(features), found, labels, said)


class Images:
    """The pictures of a folder; pickled by their paths."""

    seekable = True

    def __init__(
        self, schema: Schema, found: Sequence[source_files.Entry], labels: Sequence[int], names: Sequence[str]
    ) -> None:
        self.schema = schema
        self._paths, self._labels = [entry.path for entry in found], np.asarray(labels, np.int64)
        self.count: int | None = len(found)
        self.sizes: NDArray[np.int64] | None = np.asarray([entry.size for entry in found], np.int64)
        digest = hashlib.blake2b(digest_size=16)
        for label, entry in zip(labels, found, strict=True):
            row = f"{names[label]}/{entry.name}\0{entry.size}\0{entry.stamp}\n"
            digest.update(row.encode(errors="surrogateescape"))
        self.identity: dict[str, Any] = {"kind": "images", "count": len(found), "digest": digest.hexdigest()}
        self.identifies = all(entry.stamp for entry in found)

    def blocks(self, start: int, stop: int | None) -> Iterator[Block]:
        """Yield blocks; a file that is not a picture raises an error with its path."""
        assert self.sizes is not None
        end = min(len(self._paths), len(self._paths) if stop is None else stop)
        at = start
        while at < end:
            sizes = np.cumsum(self.sizes[at : min(end, at + _MOST_FILES)])
            last = at + max(1, int(np.searchsorted(sizes, BLOCK_BYTES)))
            yield self._block(at, min(last, end))
            at = min(last, end)

    def path_of(self, number: int) -> str:
        return self._paths[number]

    def _block(self, first: int, last: int) -> Block:
        contents = source_files.read_all(self._paths[first:last])
        for path, content in zip(self._paths[first:last], contents, strict=True):
            if not format_of(content):
                raise ConfigError(
                    f"{path} is not a picture: it begins with {validation.shown(content[:12])}, and "
                    "is no JPEG, PNG, GIF, "
                    "BMP or WebP. Take it out, or save it as one of these.",
                    path=path,
                )
        values = {"image": contents, "label": self._labels[first:last]}
        return {name: column(name, feature, values[name], first) for name, feature in self.schema.items()}


def is_picture(name: str) -> bool:
    return name.lower().endswith(ENDINGS)


def _pictures(entry: source_files.Entry, folder: str) -> list[source_files.Entry]:
    try:
        entry.name.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"the folder {entry.name!r} in {folder} has no name in UTF-8; rename it.") from None
    inside = source_files.entries(entry.path)
    for file in inside[:1]:  # the others are named when they are decoded
        source_files.require_content(file.path, file.size)
    for file in inside:
        if file.is_folder:
            raise ConfigError(
                f"{entry.path} has the folder {file.name!r} in it; the folders in {folder} must be classes, with "
                f"pictures alone. If {entry.name!r} is a part such as train or validation, pass {entry.path} itself.",
                name=file.name,
                path=entry.path,
            )
        if not is_picture(file.name):
            raise ConfigError(
                f"{file.path} is not a picture by its name; a class's folder has files that end with "
                f"{', '.join(ENDINGS)}. Take it out.",
                path=file.path,
            )
        if not file.size:
            raise ConfigError(f"{file.path} is empty; take it out, or replace it by the picture.", path=file.path)
    return inside


def _some(entries: Sequence[source_files.Entry]) -> str:
    return ", ".join(entry.name for entry in entries[:10]) + (", ..." if len(entries) > 10 else "")
