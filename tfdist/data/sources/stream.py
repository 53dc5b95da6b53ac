"""Examples that come one by one: from a generator, an iterable, a list, or a function that returns an iterator."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.data.format.schema import Schema
from tfdist.data.sources.protocol import (
    BLOCK_BYTES,
    BLOCK_EXAMPLES,
    Block,
    bytes_per_example,
    examples_per_block,
    weight,
)
from tfdist.data.sources.stored_columns import block, inferred_feature, named
from tfdist.errors import ConfigError, ConfigTypeError, UnsupportedError, fields_of

_NOTHING = object()
_SAMPLE = 256  # examples that tell a schema


def open_stream(examples: Any, schema: Schema | None = None) -> "Stream | Listed":
    """Return a source of examples that come one by one; without a schema, the first 256 are read now."""
    if isinstance(examples, Sequence) and not isinstance(examples, (str, bytes)):
        if not examples:
            raise ConfigError("the list of examples is empty; at least one is needed.", name="examples", received="[]")
        iterator = iter(examples)
        return Listed(schema or _schema(_sample(next(iterator), iterator)[0]), examples)
    if not callable(examples) and iter(examples) is examples:
        make, iterator = None, iter(examples)
    else:
        make = examples if callable(examples) else lambda: examples
        iterator = _iterator(make)
    first = next(iterator, _NOTHING)
    if first is _NOTHING:
        raise ConfigError(
            "the stream of examples ended before the first one; at least one is needed. A generator that was read "
            "before is empty: pass the function that makes it.",
            name="examples",
        )
    if schema is not None:
        return Stream(schema, chain([first], iterator), make)
    seen, rest = _sample(first, iterator)
    return Stream(_schema(seen), chain(seen, rest), make)


class Stream:
    """Examples that are read from the beginning: from an iterator once, from an iterable any number of times."""

    seekable = False
    identifies = False
    sizes: NDArray[np.int64] | None = None
    count: int | None = None

    def __init__(self, schema: Schema, begun: Iterator[Any], make: Callable[[], Iterable[Any]] | None) -> None:
        self.schema, self._make = schema, make
        self._begun: Iterator[Any] | None = begun
        self.identity: dict[str, Any] = {"kind": "stream"}

    def blocks(self, start: int, stop: int | None) -> Iterator[Block]:
        """Yield blocks; examples before ``start`` are read and dropped."""
        iterator = self._next_reading()
        rows, is_fixed, index = _rows(self.schema), self.schema.is_fixed, 0
        for _ in range(start):
            if next(iterator, _NOTHING) is _NOTHING:
                return
            index += 1
        held: list[Any] = []
        held_bytes = 0
        for example in iterator if stop is None or index < stop else ():
            held.append(example)
            held_bytes += 0 if is_fixed else weight_of(example)
            is_last = stop is not None and index + len(held) >= stop
            if is_last or len(held) >= rows or held_bytes >= BLOCK_BYTES:
                yield block(self.schema, held, index)
                index, held, held_bytes = index + len(held), [], 0
            if is_last:
                return
        if held:
            yield block(self.schema, held, index)

    def _next_reading(self) -> Iterator[Any]:
        if self._begun is not None:
            iterator, self._begun = self._begun, None
            return iterator
        if self._make is None:
            raise UnsupportedError(
                "these examples were read already, and an iterator gives them once. Pass a list, or the function that "
                "makes the iterator.",
                name="examples",
            )
        return _iterator(self._make)


class Listed:
    """Examples in a list, which can be read from anywhere."""

    seekable = True
    identifies = False
    sizes: NDArray[np.int64] | None = None

    def __init__(self, schema: Schema, examples: Sequence[Any]) -> None:
        self.schema, self._examples = schema, examples
        self._first = 0  # the number of the first example in the list
        self.count: int | None = len(examples)
        if not schema.is_fixed:
            self.sizes = np.fromiter(map(weight_of, examples), np.int64, len(examples))
        self.identity: dict[str, Any] = {"kind": "list", "count": len(examples)}

    def blocks(self, start: int, stop: int | None) -> Iterator[Block]:
        end = self._first + len(self._examples)
        end, step = end if stop is None else min(stop, end), _rows(self.schema)
        for first in range(start, end, step):
            rows = slice(first - self._first, min(first + step, end) - self._first)
            yield block(self.schema, self._examples[rows], first)

    def part(self, start: int, stop: int) -> "Listed":
        """Return a source with a list of these examples alone."""
        found, rows = copy.copy(self), slice(start - self._first, stop - self._first)
        found._first, found._examples = start, self._examples[rows]
        found.sizes = None if self.sizes is None else self.sizes[rows]
        return found


def is_table(value: Any) -> bool:
    """Return whether a value is a table: it has columns with names, by a protocol that libraries share.

    A single column also offers Arrow's stream, but is not a table.
    """
    if isinstance(value, type):
        return False
    if hasattr(value, "__dataframe__"):
        return True
    offers = hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__")
    return offers and any(hasattr(value, name) for name in ("columns", "column_names", "schema"))


def weight_of(example: Any) -> int:
    """Estimate the size of an example in bytes; 0 for other values."""
    return sum(map(weight, _parts(example).values()))


def _parts(example: Any) -> Mapping[str, Any]:
    """Return an example with names; other values get no names, and their reader reports them."""
    try:
        return named(example)
    except ConfigError:
        return {}


def _rows(schema: Schema) -> int:
    return examples_per_block(bytes_per_example(schema), BLOCK_EXAMPLES)


def _iterator(make: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    made = make()
    try:
        return iter(made)
    except TypeError:
        raise ConfigTypeError(
            f"the function returned {validation.shown(made)}; it must return an iterator of examples.",
            name="examples",
            received=validation.shown(made),
        ) from None


def _sample(first: Any, iterator: Iterator[Any]) -> tuple[list[Any], Iterator[Any]]:
    """Return the first examples and an iterator of all others; errors of reading are raised when they are reached."""
    seen, held = [first], weight_of(first)
    while len(seen) < _SAMPLE and held < BLOCK_BYTES:
        try:
            example = next(iterator, _NOTHING)
        except Exception as error:  # noqa: BLE001 - whatever a generator raises
            return seen, _failing(error)
        if example is _NOTHING:
            break
        seen.append(example)
        held += weight_of(example)
    return seen, iterator


def _failing(error: Exception) -> Iterator[Any]:
    yield from ()
    raise error


def _schema(examples: Sequence[Any]) -> Schema:
    first = examples[0]
    if isinstance(first, (str, bytes)):
        required = (
            "a mapping of names to values. (Iterating over a table gives the names of its columns: pass the table.)"
        )
        raise validation.mismatch("the first example", first, required, name="examples", kind=ConfigTypeError)
    if is_table(first):
        raise ConfigTypeError(
            f"the first example is a {type(first).__module__}.{type(first).__name__}, which has many; pass one table "
            "(pyarrow.Table.from_batches makes one of several), or its rows as mappings of names to values.",
            name="examples",
            received=type(first).__name__,
        )
    rows = [named(first), *map(_parts, examples[1:])]
    try:
        return Schema({name: inferred_feature(name, (row[name] for row in rows if name in row)) for name in rows[0]})
    except ConfigError as error:
        raise type(error)(f"Example 0: {error}", **fields_of(error)) from error
