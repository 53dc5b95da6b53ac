"""A single view of the examples to read: a directory, several, files of other libraries, or some of their examples."""

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.data.examples.checked_examples import Examples
from tfdist.data.examples.computed_examples import Computed, ComputedFetcher
from tfdist.data.examples.fetch import Fetcher, source_of
from tfdist.data.examples.joined_columns import ColumnFetcher, JoinedFetcher
from tfdist.data.examples.joined_examples import Joined, joined
from tfdist.data.foreign.foreign_files import CONTENTS, EXAMPLES
from tfdist.data.foreign.foreign_kinds import open_foreign
from tfdist.data.format import data_manifest as manifests
from tfdist.data.format.data_manifest import Manifest, read_manifest
from tfdist.data.order.epoch_orders import Order
from tfdist.data.order.mixtures import Mixed, Schedule
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.storage.directory import Storage, storage

Source = Any  # a path, a URL, a list of them, `Examples` or a `View`


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """The shares of sources: the number of examples of each, by name, and the arguments of `Schedule` and `Mixed`."""

    sizes: Mapping[str, int]
    schedule: Schedule
    stop: str
    examples: int
    name: str

    def order(self, orders: Sequence[Order]) -> Order:
        """Return the order of the mixture, from the orders of its sources."""
        inner = ",".join(dict.fromkeys(order.name for order in orders))
        return Mixed(self.schedule, orders, self.stop, self.examples, f"mix:{inner}:{self.name}")


class View:
    """Some examples, by number: a result of `tfdist.data.select` or `tfdist.data.mix`, for `tfdist.data.read`.

    Args:
        examples: the examples of a directory, or of several as one.
        ids: the numbers of the examples that the view has, int64 ``[examples]``; None for all.
        mixture: the shares of sources; None for none.

    Example:
        >>> import tempfile, numpy as np, tfdist
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = tfdist.data.write({"x": np.arange(10)}, folder)
        ...     view = tfdist.data.select(folder, where={"x": lambda x: x % 2 == 1})
        ...     len(view), int(view[1]["x"])
        (5, 3)
    """

    def __init__(
        self, examples: Examples, ids: NDArray[np.int64] | None = None, mixture: Mixture | None = None
    ) -> None:
        self.examples = examples
        self.ids = ids
        self.mixture = mixture

    def __len__(self) -> int:
        return len(self.examples) if self.ids is None else len(self.ids)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[place] for place in range(len(self)))

    def __getitem__(self, number: Any) -> Any:
        """Return an example as a dict of values, or a list of examples for a slice."""
        if self.ids is None:
            return self.examples[number]
        if isinstance(number, slice):
            return list(self.examples.each(self.ids[number].tolist()))
        return self.examples[int(self.ids[validation.integer("number", number)])]

    def __repr__(self) -> str:
        kind = f"mixture of {', '.join(self.mixture.sizes)}" if self.mixture else f"of {self.examples.url}"
        return f"View({len(self)} examples, {kind})"

    def of(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values that belong to these examples.

        Args:
            values: a value for each example of the directory.
        """
        return values if self.ids is None else values[self.ids]

    def all_ids(self) -> NDArray[np.int64]:
        """Return the numbers of these examples in the directory."""
        return np.arange(len(self.examples), dtype=np.int64) if self.ids is None else self.ids


def open_directory(
    directory: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    storage_options: Mapping[str, Any] | None = None,
    cache: Any = None,
    follow_symlinks: bool = False,
    records: str = "examples",
    revision: int | None = None,
) -> Examples:
    """Open a directory that `tfdist.data.write` has made, or TFRecord files of other writers.

    Args:
        directory: the path or URL of a directory, or of TFRecord files, also of a single one or of several by
            wildcards. TFRecord files are indexed in the user's cache when they are first opened, and a line in the log
            describes them. A list of directories, or wildcards that match several, gives all of their examples, one
            directory after the other.
        storage_options: options of fsspec's driver, such as ``{"anon": True}``; for URLs only.
        cache: a `tfdist.data.BlockCache` for remote directories.
        follow_symlinks: whether files of a local directory may be symbolic links that lead out of it, as in the caches
            of DVC and of hubs. Default: they are refused.
        records: the kind of records in TFRecord and ArrayRecord files: "examples" of TensorFlow; "sequences",
            tf.train.SequenceExample, whose feature lists become features; or "raw" bytes, such as protocol buffers of
            your own, which become the feature ``record``.
        revision: the revision of a directory that was appended to, whose examples are opened. Default: the newest, with
            all examples.
    Raises:
        ConfigError: the directory has no manifest, or never had this revision.
        CorruptDataError: the manifest cannot be trusted.

    Example:
        >>> import tempfile, tfdist
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = tfdist.data.write({"x": np.arange(3.0), "name": ["a", "b", "c"]}, folder)
        ...     examples = tfdist.data.open(folder)
        ...     len(examples), examples[1]["name"]
        (3, b'b')
    """
    options: dict[str, Any] = {"storage_options": storage_options, "cache": cache, "follow_symlinks": follow_symlinks}
    validation.one_of("records", records, CONTENTS)
    matching = list(directory) if isinstance(directory, (list, tuple)) else _matching(directory)
    if len(matching) > 1 or isinstance(directory, (list, tuple)):
        if revision is not None:
            raise ConfigError("revision is for one directory; open each, and pass them to mix.", name="revision")
        several = [open_directory(one, records=records, **options) for one in matching]
        _require_each_once(matching, several)
        return joined(dict(zip(map(str, matching), several, strict=True)))
    one: Any = matching[0] if matching else directory
    if revision is not None:
        revision = validation.integer("revision", revision, minimum=1)
    if records != EXAMPLES and (found := open_foreign(one, records)) is not None:
        return found
    place: Storage = storage(one, **options)
    if not manifests.has_manifest(place):
        from tfdist.data.writing.foreign_tfrecords import place_of

        if revision is not None:
            raise ConfigError(f"{one} has no manifest of tfdist, and so no revisions.", name="revision")
        if (found := open_foreign(one)) is not None:
            return found
        place = place_of(one, **options)
    return Examples(place, _in_revision(read_manifest(place), revision))


def _require_each_once(directories: Sequence[Any], found: Sequence[Examples]) -> None:
    """Refuse files that two directories of a list share, because each of their examples would come twice."""
    owners: dict[str, Any] = {}
    for directory, examples in zip(directories, found, strict=True):
        for part in examples.parts if isinstance(examples, Joined) else [examples]:
            local = part.storage.local
            folder = part.url if local is None else os.path.realpath(local)
            for shard in part.manifest.shards:
                path = os.path.join(folder, shard.file)
                if path in owners:
                    raise ConfigError(
                        f"directory has {path} twice, in {str(owners[path])!r} and in {str(directory)!r}; each example "
                        "is read once. tfdist.data.mix({'a': ..., 'b': ...}, stop='all') repeats those of a source.",
                        name="directory",
                        path=path,
                    )
                owners[path] = directory


def _in_revision(newest: Manifest, revision: int | None) -> Manifest:
    """Return a manifest, or the one of an earlier revision, before examples were appended."""
    if revision is None:
        return newest
    found = {manifest.revision: manifest for manifest in newest.generations()}
    if revision not in found:
        raise ConfigError(
            f"revision is {revision}; the directory can be read in the revisions {', '.join(map(str, sorted(found)))}.",
            name="revision",
            received=revision,
        )
    return found[revision]


def _matching(directory: Any) -> list[str]:
    """Return the local directories with a manifest that match a path with wildcards."""
    text = os.fspath(directory) if isinstance(directory, (str, os.PathLike)) else ""
    if not isinstance(text, str) or "://" in text or os.path.lexists(text) or not glob.has_magic(text):
        return []
    found = sorted(glob.glob(os.path.expanduser(text)))
    return [path for path in found if os.path.isfile(os.path.join(path, manifests.NAME))]


def view_of(source: Source, name: str = "directory", **options: Any) -> View:
    """Return a view of the examples that a user gives as a source."""
    if isinstance(source, (View, Examples)):
        if given := ", ".join(sorted(key for key, value in options.items() if value and value != EXAMPLES)):
            raise ConfigError(
                f"{given} must be given where the directory is opened: tfdist.data.open(directory, ...).", name=given
            )
        return source if isinstance(source, View) else View(source)
    if not isinstance(source, (str, os.PathLike, list, tuple)):
        required = "a path, a URL, a list of them, or what tfdist.data.open, select or mix returned."
        raise validation.mismatch(name, source, required, kind=ConfigTypeError)
    return View(open_directory(source, **options))


def fetcher_of(examples: Examples, *, verify: str, skip: bool) -> ColumnFetcher:
    """Return a fetcher that reads these examples."""
    if isinstance(examples, Computed):
        return ComputedFetcher(examples, skip=skip)
    if isinstance(examples, Joined) and not examples.is_uniform:
        parts = [fetcher_of(part, verify=verify, skip=skip) for part in examples.parts]
        return JoinedFetcher(examples, parts, skip=skip)
    return Fetcher(examples, source_of(examples), verify=verify, skip=skip)
