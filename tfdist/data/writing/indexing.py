"""Index TFRecord files, so that they are read as if tfdist had written them."""

import os
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tfdist import validation
from tfdist.data.format import data_manifest as manifests
from tfdist.data.format import splits
from tfdist.data.format.data_manifest import Manifest, read_manifest, require_folder
from tfdist.data.format.revisions import index_name, of_one_writing
from tfdist.data.format.schema import Schema
from tfdist.data.sources import paths, source_files
from tfdist.data.sources.compressed_files import GZIP, HEAD_BYTES, VOID, ZLIB, kind_of
from tfdist.data.writing import foreign_tfrecords, journal
from tfdist.data.writing.index_files import put_index
from tfdist.errors import ConfigError, CorruptDataError
from tfdist.storage.directory import Storage, storage
from tfdist.storage.files import plain_name

_OUR_INDEX = re.compile(rb'\A.{8}\{.*"offset"', re.DOTALL)


def index_records(
    directory: str | os.PathLike[str],
    *,
    schema: Schema | None,
    label: str | None,
    exists: str,
    split: str | None,
    storage_options: Mapping[str, Any] | None,
    follow_symlinks: bool,
) -> Manifest:
    validation.one_of("exists", exists, ("raise", "overwrite"))
    place = storage(directory, storage_options=storage_options, follow_symlinks=follow_symlinks)
    asked = foreign_tfrecords.Asked(directory, split, storage_options, follow_symlinks=follow_symlinks)
    if (elsewhere := foreign_tfrecords.indexed_elsewhere(place, asked, schema=schema, label=label)) is not None:
        return read_manifest(elsewhere)
    require_folder(place)
    with place.lock():
        is_there, old = manifests.NAME in place.names(), None
        if is_there and exists != "overwrite":
            raise ConfigError(
                f"{place.url} has a {manifests.NAME} already. `tfdist data verify` compares it with the files, and "
                "`tfdist data repair` brings it in line; exists='overwrite' (--overwrite) indexes all anew.",
                name="exists",
                received=exists,
                path=place.url,
            )
        if is_there:
            with suppress(CorruptDataError):
                old = read_manifest(place)
        shards = of_one_writing(files(place, split), is_writing=journal.NAME in place.names())
        _check_free(place, shards, own=exists == "overwrite")
        return put_index(place, shards, schema=schema, label=label, old=old)


def files(place: Storage, split: str | None = None) -> list[str]:
    """Return the TFRecord files of a directory or one split, by their names or first bytes, in the order of names."""
    foreign_tfrecords.need_names(place)
    ours = {manifests.NAME, journal.NAME}
    names = [name for name in place.names() if name not in ours and not name.endswith(".index")]
    heads = {name: place.read(name, 0, min(place.size(name), HEAD_BYTES)) for name in names}
    kinds = {name: kind_of(head) for name, head in heads.items()}
    groups = {paths.alike(name) for name in names if kinds[name]}
    found = [name for name in names if paths.alike(name) in groups or foreign_tfrecords.NAMED.search(name)]
    for name in found:
        source_files.refuse(name, heads[name])
    several = splits.by_word(found, of_tfds=not splits.OF_TFDS.isdisjoint(names), where=place.url)
    if several or split is not None:
        found = splits.chosen(several, split, where=place.url)
    for name in found:
        if kinds[name] in (GZIP, ZLIB):
            raise ConfigError(
                f"{name} is compressed, so no record of it can be found without those before. Write it anew: `tfdist "
                f"data write '{place.url}/*' DIRECTORY`; `tfdist.data.read` does so in the user's cache."
            )
    found = [name for name in found if heads[name] and kinds[name] != VOID]
    if not found:
        raise ConfigError(
            f"{place.url} has {validation.counted(len(names), 'file')}, and no TFRecord file with records among them. "
            "`tfdist data write SOURCE DIRECTORY` makes some of other formats.",
            path=place.url,
        )
    return found


def _check_free(place: Storage, shards: list[str], *, own: bool) -> None:
    """Refuse to write an index over a file that is not an index."""
    taken, wanted = set(place.names()), [index_name(shard) for shard in shards]
    counts = Counter([*wanted, *shards])
    for shard, name in zip(shards, wanted, strict=True):
        plain_name(name)
        if counts[name] > 1:
            raise ConfigError(f"the index of {shard} is called {name}, and so is another file's. Rename one of them.")
        if name in taken and not _OUR_INDEX.match(place.read(name, 0, min(place.size(name), 1 << 16))):
            raise ConfigError(
                f"{place.url} has {name}, which tfdist did not write, and the index of {shard} is called so. "
                "Rename it.",
                name=name,
                path=place.url,
            )
