"""A directory of examples, opened: each is found by its number, and checked when it is read."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.data.format import data_manifest as manifests
from tfdist.data.format import example, record_framing
from tfdist.data.format.contents import index_anew
from tfdist.data.format.data_manifest import Manifest, Shard, read_manifest
from tfdist.data.format.record_framing import Content
from tfdist.data.format.schema import FIXED, Schema
from tfdist.data.format.shard_index import Index, stored_index
from tfdist.data.reading.shard_checksums import Binding, payload_of
from tfdist.errors import ConfigError, CorruptDataError
from tfdist.storage.directory import Storage, storage

__all__ = ["Examples", "open_directory"]

_logger = logging.getLogger(__name__)


def open_directory(
    directory: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    cache: Any = None,
    follow_symlinks: bool = False,
) -> "Examples":
    """Open a directory that `tfdist.data.write` has made, or TFRecord files of other writers.

    Args:
        directory: its path or URL; of TFRecord files also of one, or with wildcards of several. These are indexed in
            the user's cache when they are first opened, and a line in the log describes them.
        storage_options: what fsspec's driver takes, such as ``{"anon": True}``; for URLs alone.
        cache: a `tfdist.data.BlockCache` for remote directories.
        follow_symlinks: whether files of a local directory may be symbolic links out of it, as in the caches of DVC and
            of hubs. Default: they are refused.
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
    place: Storage = storage(directory, storage_options=storage_options, cache=cache, follow_symlinks=follow_symlinks)
    if not manifests.has_manifest(place):
        from tfdist.data.writing.foreign_tfrecords import place_of  # which builds on this file

        place = place_of(directory, storage_options=storage_options, cache=cache, follow_symlinks=follow_symlinks)
    return Examples(place, read_manifest(place))


class Examples:
    """The examples of a directory, by number.

    Args:
        place: the directory.
        found: its manifest.
    """

    def __init__(self, place: Storage, found: Manifest) -> None:
        self.storage = place
        self.manifest = found
        for shard in found.shards:  # first: what is made below is as large as the files, not as a manifest may say
            self._check_size(shard)
        self.template = example.Template(found.schema) if found.layout == FIXED else None
        #: int64 ``[shards + 1]``: number of each shard's first example
        self.begins = np.cumsum([0, *(shard.examples for shard in found.shards)], dtype=np.int64)
        self._indices: dict[int, Index] = {}
        self._columns: dict[str, NDArray[Any]] = {}
        #: ties what is read to the manifest
        self.binding = Binding(place, found, self._ends)

    def _ends(self, shard: int) -> tuple[tuple[int, int], tuple[int, int]]:
        _, offsets, lengths = self.locate(np.array([self.begins[shard], self.begins[shard + 1] - 1]))
        first, last = zip(offsets.tolist(), lengths.tolist(), strict=True)
        return first, last

    def _check_size(self, shard: Shard) -> None:
        size = self.storage.size(shard.file)
        if size != shard.bytes:
            raise CorruptDataError(
                f"{shard.file} has {size} bytes; the manifest says {shard.bytes}. It was cut short or replaced. "
                f"`tfdist data repair {self.storage.url}` keeps what is whole.",
                received=size,
                path=shard.file,
            )

    @property
    def schema(self) -> Schema:
        """What each example consists of."""
        return self.manifest.schema

    def __len__(self) -> int:
        return self.manifest.examples

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[place] for place in range(len(self)))

    def __getitem__(self, number: Any) -> Any:
        """Return an example as a dict of values; of a slice, a list of them."""
        if isinstance(number, slice):
            return [self[place] for place in range(*number.indices(len(self)))]
        place = validation.integer("number", number)
        if not -len(self) <= place < len(self):
            raise IndexError(f"example {place} of {len(self)}")
        return next(self.each([place % len(self)]))

    def each(self, numbers: Sequence[int]) -> Iterator[dict[str, Any]]:
        """Yield examples, read in one go.

        Raises:
            CorruptDataError: one is corrupt; the message says which and where it is.
            DataChangedError: the directory was written anew or repaired since it was opened.
        """
        ids = np.asarray(numbers, np.int64)
        shards, offsets, lengths = self.locate(ids)
        ranges = [
            (self.manifest.shards[shard].file, int(offset), int(length) + record_framing.OVERHEAD_BYTES)
            for shard, offset, length in zip(shards, offsets, lengths, strict=True)
        ]
        with self.binding.reading(np.unique(shards).tolist()):
            frames = self.storage.read_ranges(ranges)
        for number, shard, offset, data in zip(ids, shards, offsets, frames, strict=True):
            payload = payload_of(data)
            if payload is None:
                raise CorruptDataError(
                    self.corrupt(int(number), int(shard), int(offset)), path=self.manifest.shards[int(shard)].file
                )
            parsed = example.parse(payload)
            yield {name: example.value(name, feature, parsed) for name, feature in self.schema.items()}

    def corrupt(self, number: int, shard: int, offset: int) -> str:
        """Return what an error says of a corrupt example.

        Args:
            number: of the example.
            shard: in which it is, from 0.
            offset: where its record begins in that file, in bytes.
        """
        return (
            f"example {number} is corrupt: {self.manifest.shards[shard].file}, byte {offset}. "
            f"`tfdist data verify {self.storage.url}` finds all that are, `tfdist data repair` takes them out; "
            "on_corrupt='skip' reads on without them."
        )

    def index(self, shard: int) -> Index:
        """Return the index of a shard, made from the shard where its file is missing."""
        if shard not in self._indices:
            with self.binding.explained():
                self._indices[shard] = self._load(self.manifest.shards[shard])
        return self._indices[shard]

    def _load(self, shard: Shard) -> Index:
        try:
            return stored_index(self.storage, self.manifest, shard)
        except (FileNotFoundError, CorruptDataError) as error:
            _logger.warning(
                "%s is indexed anew, in memory; `tfdist data repair %s` writes its index. The reason: %s",
                *(shard.file, self.storage.url, error),
            )
        return index_anew(
            Content(self.storage, shard.file),
            shard.file,
            self.schema,
            self.manifest.layout,
            examples=shard.examples,
            accept=lambda problem: _logger.warning("%s", problem),
        )

    def locate(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """Return shard, first byte of the frame, and bytes of the payload of examples."""
        shards = np.searchsorted(self.begins, numbers, side="right") - 1
        inside = numbers - self.begins[shards]
        if self.template is not None:
            length = self.template.length
            offsets = inside * (length + record_framing.OVERHEAD_BYTES)
            return shards.astype(np.int32), offsets, np.full(len(numbers), length, np.int64)
        ends = self.offsets
        places = numbers + shards  # each shard has one offset more than it has examples
        return shards.astype(np.int32), ends[places], ends[places + 1] - ends[places] - record_framing.OVERHEAD_BYTES

    def verify(self) -> Any:
        """Look at every byte; see `tfdist.data.verify`, which returns the same report."""
        from tfdist.data.check.verifying import verify_manifest  # which few need

        return verify_manifest(self.storage, self.manifest)

    @property
    def offsets(self) -> NDArray[np.int64]:
        """The offsets of all shards' indices, one after the other."""
        return self.column("offset")

    def column(self, name: str) -> NDArray[Any]:
        """Return an array of the index over all shards, such as ``value:label``."""
        if name not in self._columns:
            parts = [self.index(shard) for shard in range(len(self.manifest.shards))]
            self._columns[name] = np.concatenate(
                [part.offsets if name == "offset" else part.columns[name] for part in parts]
            )
        return self._columns[name]

    def integers(self, name: str) -> NDArray[Any]:
        """Return a feature of single integers for all examples, ``[examples]``, read from the index or from the shards.

        Raises:
            ConfigError: there is no such feature, or it is something else.
        """
        feature = self.schema.get(name)
        if feature is None or feature.encoding != "int64" or feature.shape != ():
            raise ConfigError(
                f"feature {name!r} is {feature}; it must be a single integer per example. There are "
                f"{', '.join(map(repr, self.schema))}."
            )
        if self.template is None:
            return self.column(f"value:{name}")
        found = []
        for place, shard in enumerate(self.manifest.shards):
            width = self.template.length + record_framing.OVERHEAD_BYTES
            step = max(1, (16 << 20) // width)
            for start in range(0, shard.examples, step):
                count = min(step, shard.examples - start)
                with self.binding.reading([place]):
                    data = self.storage.read(shard.file, start * width, count * width)
                rows = np.frombuffer(data, np.uint8).reshape(count, width)
                found.append(self.template.column(name, rows[:, record_framing.HEADER_BYTES : -4]))
        return np.concatenate(found) if found else np.zeros(0, np.int64)
