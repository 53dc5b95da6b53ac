"""Open what a path means: one directory, several, or files of other libraries."""

import glob
import os
from collections.abc import Mapping, Sequence
from typing import Any

from tfdist import validation
from tfdist.data.examples.checked_examples import Examples
from tfdist.data.examples.joined_examples import joined
from tfdist.data.format import data_manifest as manifests
from tfdist.data.format.data_manifest import read_manifest
from tfdist.storage.directory import Storage, storage


def open_directory(
    directory: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    storage_options: Mapping[str, Any] | None = None,
    cache: Any = None,
    follow_symlinks: bool = False,
    records: str = "examples",
) -> Examples:
    """Open a directory that `tfdist.data.write` has made, or TFRecord files of other writers.

    Args:
        directory: its path or URL; of TFRecord files also of one, or with wildcards of several. These are indexed in
            the user's cache when they are first opened, and a line in the log describes them. A list of directories, or
            wildcards that match several, is all of their examples, one directory after the other.
        storage_options: what fsspec's driver takes, such as ``{"anon": True}``; for URLs alone.
        cache: a `tfdist.data.BlockCache` for remote directories.
        follow_symlinks: whether files of a local directory may be symbolic links out of it, as in the caches of DVC and
            of hubs. Default: they are refused.
        records: what the records of TFRecord files are: "examples" of TensorFlow, or "raw" bytes, such as protocol
            buffers of your own, which are then the feature ``record``.
    Raises:
        ConfigError: there is no manifest in it.
        CorruptDataError: the manifest cannot be trusted.

    Example:
        >>> import tempfile, tfdist
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = tfdist.data.write({"x": np.arange(3.0), "name": ["a", "b", "c"]}, folder)
        ...     examples = tfdist.data.open(folder)
        ...     len(examples), examples[1]["name"]
        (3, b'b')
    """
    options: dict[str, Any] = {
        "storage_options": storage_options,
        "cache": cache,
        "follow_symlinks": follow_symlinks,
    }
    if validation.one_of("records", records, ("examples", "raw")) == "raw":
        from tfdist.data.foreign.raw_records import open_raw

        return open_raw(directory)
    matching = list(directory) if isinstance(directory, (list, tuple)) else _matching(directory)
    if len(matching) > 1 or isinstance(directory, (list, tuple)):
        return joined({str(one): open_directory(one, **options) for one in matching})
    one: Any = matching[0] if matching else directory
    place: Storage = storage(one, **options)
    if not manifests.has_manifest(place):
        from tfdist.data.foreign.foreign_kinds import open_foreign
        from tfdist.data.writing.foreign_tfrecords import place_of

        if (found := open_foreign(one)) is not None:
            return found
        place = place_of(one, **options)
    return Examples(place, read_manifest(place))


def _matching(directory: Any) -> list[str]:
    """The local directories with a manifest that a path with wildcards matches."""
    text = os.fspath(directory) if isinstance(directory, (str, os.PathLike)) else ""
    if not isinstance(text, str) or "://" in text or os.path.lexists(text) or not glob.has_magic(text):
        return []
    found = sorted(glob.glob(os.path.expanduser(text)))
    return [path for path in found if os.path.isfile(os.path.join(path, manifests.NAME))]
