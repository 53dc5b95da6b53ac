"""The TFRecord files of a directory that are to be indexed, and the names of their indices."""

import re
from collections import Counter

from tfdist import validation
from tfdist.data.format import data_manifest as manifests
from tfdist.data.format import splits
from tfdist.data.format.revisions import index_name
from tfdist.data.sources import paths, source_files
from tfdist.data.sources.compressed_files import GZIP, HEAD_BYTES, VOID, ZLIB, kind_of
from tfdist.data.writing import foreign_tfrecords, journal
from tfdist.errors import ConfigError
from tfdist.storage.directory import Storage
from tfdist.storage.files import plain_name

_OUR_INDEX = re.compile(rb'\A.{8}\{.*"offset"', re.DOTALL)


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


def require_free(place: Storage, shards: list[str]) -> None:
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
