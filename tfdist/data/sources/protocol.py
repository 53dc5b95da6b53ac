"""The `Source` protocol of what is written, the size of its blocks, several sources as one, and options of tables."""

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.data.format.schema import TEXT, Feature, Schema
from tfdist.errors import ConfigError, ConfigTypeError

#: A block of consecutive examples. Of a feature with a fixed shape: an array, examples first. Of text and bytes, and of
#: lists of any length: a list with one value (bytes or str, an array) per example.
Block = dict[str, Any]
BLOCK_BYTES = 4 << 20
BLOCK_EXAMPLES = 1024  # where every example costs Python's time anyway
MOST_EXAMPLES = 1 << 16
EVERY = "*"
INSIDE = "[]"  # behind the name of a list


class Source(Protocol):
    """Examples in an order.

    Attributes:
        schema: what each consists of; reading it may read the first example.
        count: how many there are, None if that is known only at the end.
        sizes: int64, ``[count]``: about how many bytes each takes, if they differ and it is known; else None.
        seekable: whether `blocks` may start anywhere at no cost, several times, and in another process (the source is
            pickled). Other sources are read once, from the beginning.
        identity: JSON that differs when the examples do, as far as that can be told without reading them all.
        identifies: whether that is certain. If not, finished shards are compared before an interrupted run resumes.
    """

    schema: Schema
    count: int | None
    sizes: NDArray[np.int64] | None
    seekable: bool
    identity: dict[str, Any]
    identifies: bool

    def blocks(self, start: int, stop: int | None) -> Iterator[Block]:
        """Yield the examples from ``start`` to ``stop`` (None: all that are left), in blocks of any size."""


def part_of(source: Source, start: int, stop: int) -> Source:
    """Return a source that gives these examples, with the numbers that they have, and is sent to another process.

    Of a source in memory only these examples are sent; one that is read from files is sent by their names.
    """
    part = getattr(source, "part", None)
    found: Source = source if part is None else part(start, stop)
    return found


def length(block: Block) -> int:
    return len(next(iter(block.values())))


def cut(blocks: Iterator[Block], start: int, stop: int | None) -> Iterator[Block]:
    """Yield the examples from ``start`` to ``stop`` out of blocks that begin with example 0."""
    at = 0
    for block in blocks:
        size = length(block)
        first, last = max(start - at, 0), size if stop is None else min(stop - at, size)
        if first < last:
            yield block if (first, last) == (0, size) else {name: column[first:last] for name, column in block.items()}
        at += size
        if stop is not None and at >= stop:
            return


def bytes_per_example(schema: Schema) -> int:
    """The bytes of an example, without those of text and lists of any length."""
    return sum(
        (feature.size or 0) * np.dtype(feature.dtype).itemsize for feature in schema.values() if feature.dtype != TEXT
    )


def examples_per_block(each: int, most: int = MOST_EXAMPLES) -> int:
    """Return the number of examples of ``each`` bytes in a block of `BLOCK_BYTES`: at least one, at most ``most``."""
    return max(1, min(most, BLOCK_BYTES // max(1, each)))


def weight(value: Any) -> int:
    """About how many bytes a value takes."""
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind != "O":
        return int(value.nbytes)
    if isinstance(value, (bytes, bytearray, str)):
        return len(value)
    try:
        return 8 + sum(map(weight, value)) if len(value) and hasattr(value[0], "__len__") else 8 * len(value)
    except (TypeError, KeyError):
        return 8


def chained(sources: Sequence[Source]) -> Source:
    return sources[0] if len(sources) == 1 else Chain(sources)


class Chain:
    """Several sources of one schema, one after the other; seekable when all of them are."""

    def __init__(self, sources: Sequence[Source]) -> None:
        counts = [source.count for source in sources]
        sizes = [source.sizes for source in sources]
        self._sources = list(sources)
        self.schema = sources[0].schema
        self.count: int | None = None if None in counts else sum(count or 0 for count in counts)
        known = [size for size in sizes if size is not None]
        self.sizes: NDArray[np.int64] | None = np.concatenate(known) if len(known) == len(sizes) else None
        self.seekable = all(source.seekable for source in sources)
        self.identity: dict[str, Any] = {"kind": "chain", "parts": [source.identity for source in sources]}
        self.identifies = all(source.identifies for source in sources)

    def blocks(self, start: int, stop: int | None) -> Iterator[Block]:
        if self.count is None:
            return cut((block for source in self._sources for block in source.blocks(0, None)), start, stop)
        return self._found(start, self.count if stop is None else stop)

    def _found(self, start: int, stop: int) -> Iterator[Block]:
        at = 0
        for source in self._sources:
            count = source.count or 0
            if at < stop and at + count > start:
                yield from source.blocks(max(start - at, 0), min(stop - at, count))
            at += count


@dataclass(frozen=True)
class Options:
    """The options of `tfdist.data.write` for tables."""

    nulls: Mapping[str, Any] = field(default_factory=dict)
    null_masks: Sequence[str] = ()
    delimiter: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.nulls, Mapping):
            raise validation.mismatch(
                "nulls", self.nulls, 'a mapping of columns to what replaces null: {"age": -1}.', kind=ConfigTypeError
            )
        if isinstance(self.null_masks, str) or not isinstance(self.null_masks, Sequence):
            raise validation.mismatch("null_masks", self.null_masks, "a list of columns.", kind=ConfigTypeError)
        for name in (*self.nulls, *self.null_masks):
            validation.text("a column's name", name)
        if self.delimiter is not None:
            delimiter = validation.text("delimiter", self.delimiter) if self.delimiter != "\t" else "\t"
            if len(delimiter.encode()) != 1 or delimiter in '"\r\n':
                raise ConfigError(
                    f"delimiter is {self.delimiter!r}; it must be one ASCII character that is no quote and no end of a "
                    "line.",
                    name="delimiter",
                    received=self.delimiter,
                )

    @property
    def of_tables(self) -> bool:
        """Whether an option is set that only tables have."""
        return bool(self.nulls or self.null_masks)

    def without(self, columns: Container[str]) -> "Options":
        """The options for the other columns."""
        nulls = {name: value for name, value in self.nulls.items() if name not in columns}
        return replace(self, nulls=nulls, null_masks=[name for name in self.null_masks if name not in columns])


def spelled(feature: Feature, value: Any) -> Any:
    """A value that may be text, as on a command line or in a folder's name, in the type of a feature.

    Text that is no number stays text, for `column` to refuse.
    """
    if feature.dtype == TEXT or not isinstance(value, str):
        return value
    try:
        if feature.shape:
            return json.loads(value)
        if feature.dtype == "bool" and value.lower() in ("true", "false"):
            return value.lower() == "true"
        return float(value) if feature.dtype.startswith("float") else int(value)
    except ValueError:
        return value
