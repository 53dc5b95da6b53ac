"""The indexing of files of other writers, so that they are read without another pass over them."""

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tfdist import validation
from tfdist.data.foreign.foreign_kinds import open_foreign
from tfdist.data.foreign.kept_index import keep_beside
from tfdist.data.format import data_manifest as manifests
from tfdist.data.format.data_manifest import Manifest, read_manifest, require_folder
from tfdist.data.format.revisions import of_one_writing
from tfdist.data.format.schema import Schema
from tfdist.data.writing import foreign_tfrecords, journal
from tfdist.data.writing.index_files import put_index
from tfdist.data.writing.indexing import files, require_free
from tfdist.errors import ConfigError, CorruptDataError
from tfdist.storage.directory import storage


def index(
    directory: str | os.PathLike[str],
    *,
    schema: Schema | None = None,
    label: str | None = None,
    exists: str = "raise",
    split: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    follow_symlinks: bool = False,
) -> Manifest:
    """Index TFRecord files of tf.train.Example as they are: only an index for each and a manifest are written.

    Tars, JSON lines and files of LMDB and ArrayRecord are also taken. What a pass over them finds is written into the
    folder ``.tfdist`` next to them, so no reader has to pass over them again while they stay as they are.

    Every record is read. Files are shards in the order of their names. If pictures or texts have one value per example
    and the rest is small, they are read without parsing; otherwise batches are parsed.

    Index and manifest are next to the files. They are in the user's cache if the folder is read-only, or if
    ``directory`` is a wildcard or a file. Compressed files are written into the cache as plain records. Opening the
    same ``directory`` finds them there.

    Args:
        directory: the path or fsspec URL of a folder, or of files in a folder by a wildcard.
        schema: the features of each example. Default: inferred from all examples; arrays stored as bytes look like
            text.
        label: the feature to learn. Default: "label" if there is one.
        exists: the treatment of a directory that has a manifest: "raise" an error, or "overwrite" the manifest (not the
            examples).
        split: the split to index, such as "train", if the names of the files state several.
        storage_options: options of fsspec's driver, such as ``{"anon": True}``; for URLs only.
        follow_symlinks: whether files of a local directory may be symbolic links that lead out of it, as in the caches
            of DVC and of hubs. Default: they are refused.
    Returns:
        The manifest.
    Raises:
        ConfigError: there are no TFRecord files; their names cannot be kept; they belong to several splits; examples
            differ in their features, or are tf.train.SequenceExample; or an option for TFRecord files is given for
            other files.
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
    place = storage(directory, storage_options=storage_options, follow_symlinks=follow_symlinks)
    if not manifests.has_manifest(place) and (found := open_foreign(directory)) is not None:
        for name, value in (("schema", schema), ("label", label), ("split", split)):
            if value is not None:
                raise ConfigError(
                    f"{name} is for TFRecord files, and {found.url} has files of the kind {found.files.kind}, which "
                    f"say themselves what examples have: {', '.join(found.schema)}.",
                    name=name,
                )
        keep_beside(found.files)
        return found.manifest
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
        require_free(place, shards)
        return put_index(place, shards, schema=schema, label=label, old=old)
