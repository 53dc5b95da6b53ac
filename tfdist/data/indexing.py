"""TFRecord files that are there already become a directory that is read as if tfdist had written it."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfdist import validation
from tfdist.data import journal
from tfdist.data import manifest as manifests
from tfdist.data.filenames import plain_name
from tfdist.data.inference import inferred
from tfdist.data.layout import GENERIC, layout_of
from tfdist.data.manifest import Manifest, Shard
from tfdist.data.records import HEADER_BYTES, headers
from tfdist.data.salvage import described
from tfdist.data.schema import Schema
from tfdist.data.shard import index_name, store_index
from tfdist.data.shard_index import Index
from tfdist.data.storage import Storage, storage
from tfdist.errors import ConfigError, CorruptDataError

_NAMED = re.compile(r"tfrec(ord)?s?\b|tfrecords?[-_.]", re.IGNORECASE)
_GZIP = b"\x1f\x8b"
_SAMPLE = 256
_OUR_INDEX = re.compile(rb'\A.{8}\{.*"offset"', re.DOTALL)


def index(
    directory: str | os.PathLike[str],
    *,
    schema: Schema | None = None,
    label: str | None = None,
    exists: str = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> Manifest:
    """Take TFRecord files of tf.train.Example as they are: only an index for each and a manifest are written.

    Every record is looked at. The files are read in the order of their names, as shards. Where pictures or texts have
    one value per example and the rest is small, they are read without parsing; otherwise batches are parsed.

    Args:
        directory: where the files are; a path or an fsspec URL.
        schema: what each example consists of. Default: what all examples show; arrays that are stored as bytes cannot
            be told from text.
        label: the feature that is learnt. Default: "label" if there is one.
        exists: what to do with a directory that has a manifest: "raise", or "overwrite" it (not the examples).
        storage_options: what fsspec's driver takes, such as ``{"anon": True}``; for URLs alone.
    Returns:
        The manifest.
    Raises:
        ConfigError: there are no TFRecord files; they are compressed, or have names that cannot be kept; examples
            differ in their features.
        CorruptDataError: a record is corrupt, or does not fit the schema.

    Example:
        >>> import tempfile, tfdist, os, numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = tfdist.data.write({"name": ["a", "b"], "label": np.arange(2)}, folder)
        ...     os.remove(f"{folder}/manifest.json"), os.remove(f"{folder}/data-00000.index")
        ...     manifest = index(folder)
        ...     manifest.layout, sorted(manifest.schema), manifest.label
        (None, None)
        ('extent', ['label', 'name'], 'label')
    """
    validation.one_of("exists", exists, ("raise", "overwrite"))
    place = storage(directory, storage_options=storage_options)
    with place.lock():
        if manifests.NAME in place.names() and exists != "overwrite":
            raise ConfigError(
                f"{place.url} has a {manifests.NAME} already. `tfdist data verify` compares it with the files, and "
                "`tfdist data repair` brings it in line; exists='overwrite' (--overwrite) indexes all anew."
            )
        shards = files(place)
        _check_free(place, shards, own=exists == "overwrite")
        chosen, layout, found = _best(place, shards, schema)
        if label is None:
            label = "label" if "label" in chosen else None
        elif label not in chosen:
            raise ConfigError(f"label is {label!r}; the examples have {', '.join(map(repr, chosen))}.")
        finished = tuple(
            shard if rows is None else replace(shard, index=store_index(place, shard.file, rows))
            for shard, rows in found
        )
        manifest = Manifest(schema=chosen, layout=layout, shards=finished, label=label)
        with place.create(manifests.NAME) as file:
            file.write(manifest.to_bytes())
    return manifest


def files(place: Storage) -> list[str]:
    """Return the TFRecord files of a directory, in the order of their names.

    Those are files whose names say so, or, where none does, files that begin with a record.

    Raises:
        ConfigError: there is none; one is compressed, or has a name that cannot be kept.
    """
    _check_names(place)
    ours = {manifests.NAME, journal.NAME}
    names = [name for name in place.names() if name not in ours and not name.endswith(".index")]
    found = [name for name in names if _NAMED.search(name)] or [name for name in names if _begins(place, name)]
    for name in found:
        if place.size(name) >= 2 and place.read(name, 0, 2) == _GZIP:
            raise ConfigError(
                f"{name} is compressed with GZIP, so no record of it can be found without those before. Write it anew: "
                f"`tfdist data write '{place.url}/*' DIRECTORY`, with names that end with .gz."
            )
    found = [name for name in found if place.size(name)]
    if not found:
        raise ConfigError(
            f"{place.url} has {len(names)} files, and no TFRecord file with records among them. `tfdist data write "
            "SOURCE DIRECTORY` makes some of other formats."
        )
    return found


def _begins(place: Storage, name: str) -> bool:
    size = place.size(name)
    return size >= HEADER_BYTES and bool(len(headers(place.read(name, 0, HEADER_BYTES), size)))


def _check_names(place: Storage) -> None:
    """Refuse names that a listing leaves out because they are not plain."""
    if place.local is not None and Path(place.local).is_dir():
        for name in os.listdir(place.local):
            if _NAMED.search(name) and not name.startswith("."):
                plain_name(name)


def _check_free(place: Storage, shards: list[str], *, own: bool) -> None:
    """Refuse to write an index over a file that is none."""
    taken, wanted = set(place.names()), [index_name(shard) for shard in shards]
    for shard, name in zip(shards, wanted, strict=True):
        plain_name(name)
        if wanted.count(name) > 1 or name in shards:
            raise ConfigError(f"the index of {shard} is called {name}, and so is another file's. Rename one of them.")
        if name in taken and not _is_index(place, name):
            raise ConfigError(
                f"{place.url} has {name}, which tfdist did not write, and the index of {shard} is called so. Rename it."
            )


def _is_index(place: Storage, name: str) -> bool:
    return bool(_OUR_INDEX.match(place.read(name, 0, min(place.size(name), 1 << 16))))


def _best(
    place: Storage, shards: list[str], schema: Schema | None
) -> tuple[Schema, str, list[tuple[Shard, Index | None]]]:
    """Return the schema and the best layout that hold for all records, and what each shard is then."""
    error: CorruptDataError | None = None
    for chosen in _schemas(place, shards, schema):
        for layout in layouts(chosen):
            try:
                return chosen, layout, [described(place, s, chosen, layout, strict=schema is None) for s in shards]
            except CorruptDataError as unfit:
                error = unfit
    raise CorruptDataError(
        f"{error} Pass a schema that fits all records; or, where they are damaged, `tfdist data repair "
        f"--rebuild-manifest {place.url}` keeps those that are whole."
    ) from error


def _schemas(place: Storage, shards: list[str], schema: Schema | None) -> Iterator[Schema]:
    """Yield what the records may be: what is said, or what the first show, and if that does not hold what all show."""
    if schema is not None:
        yield schema
        return
    few = inferred(place, shards, most=_SAMPLE)
    yield few
    all_ = inferred(place, shards)
    if all_ != few:
        yield all_


def layouts(schema: Schema) -> list[str]:
    """Return the layouts that examples of a schema may have, the best first.

    The fixed one takes records that tfdist wrote: other writers give integers as few bytes as each needs.
    """
    best = layout_of(schema)
    return [best] if best == GENERIC else [best, GENERIC]
