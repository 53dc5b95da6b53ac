"""Columns of Arrow -> features, and record batches -> blocks of a source."""

import copy
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tfdist.data.format.schema import TEXT, Feature, Schema
from tfdist.data.sources import source_files
from tfdist.data.sources.protocol import EVERY, INSIDE, Block, Options, spelled
from tfdist.data.sources.stored_columns import column
from tfdist.data.sources.tables import arrow_types, arrow_units
from tfdist.data.sources.tables.arrow_types import (
    arrow,
    borrowed,
    innermost,
    is_list,
    is_text,
    nulls_of,
    plain,
    tail,
    unwrapped,
    values_of,
)
from tfdist.errors import ConfigError, fields_of

_FIRST_ROWS = 64
Read = Callable[[int, int | None], tuple[int, Iterator[Any]]]
_FLOATS = {"halffloat": "float16", "float": "float32", "double": "float64"}  # Arrow's names; others are NumPy's


@dataclass(frozen=True)
class Columns:
    """The mapping of a table's columns to features.

    `paths`: feature -> its column, and the fields of structs that lead to it. `fills`: feature -> the value that
    replaces null; with `INSIDE` behind its name, a null in its lists. `masks`: a mask -> the feature whose nulls it
    marks. `where`: the table, for messages.
    """

    schema: Schema
    paths: Mapping[str, tuple[str, ...]]
    fills: Mapping[str, Any]
    masks: Mapping[str, str]
    where: str

    @property
    def identity(self) -> dict[str, Any]:
        """JSON that differs when something else replaces null; empty where nothing does."""
        fills = {name: repr(value) for name, value in self.fills.items()}
        return {"nulls": fills, "null_masks": sorted(self.masks)} if fills else {}

    @property
    def read(self) -> list[str]:
        return list(dict.fromkeys(path[0] for path in self.paths.values()))

    def block(self, batch: Any, start: int) -> Block:
        arrays = {name: self.array(batch, name) for name in self.paths}
        found: Block = {}
        for name, feature in self.schema.items():
            if name in self.masks:
                found[name] = nulls_of(arrays[self.masks[name]])
            else:
                found[name] = self.column(name, feature, arrays[name], start)
        return found

    def array(self, batch: Any, name: str) -> Any:
        """The values of a feature in a record batch."""
        return _at(batch, self.paths[name])

    def column(self, name: str, feature: Feature, array: Any, start: int) -> Any:
        array = unwrapped(array)
        nulls = nulls_of(array) if array.null_count else None
        if nulls is None:
            return self._whole(name, feature, array, start)
        if name not in self.fills:
            _refuse_null(name, start + int(np.argmax(nulls)), self.where, "null")
        filled = column(name, feature, [self.fills[name]], start)
        if nulls.all():
            return np.repeat(filled, len(nulls), axis=0) if isinstance(filled, np.ndarray) else filled * len(nulls)
        whole = self._whole(name, feature, borrowed(array, nulls), start)
        if isinstance(whole, np.ndarray):
            whole = whole if whole.flags.writeable else whole.copy()
            whole[nulls] = filled[0]
        else:
            for row in np.flatnonzero(nulls).tolist():
                whole[row] = filled[0]
        return whole

    def _whole(self, name: str, feature: Feature, array: Any, start: int) -> Any:
        try:
            values = _values(feature, array, self.fills.get(name + INSIDE))
        except _InnerNullError as error:
            _refuse_null(name, start + error.place, self.where, "a list with a null")
        except arrow_types.MisfitError as error:
            raise ConfigError(
                f"Example {start + error.place} of {self.where}: column {name!r} has {error.what}; every matrix must "
                f"have the shape {feature.shape}. Give all lists one length, or leave the row out; or store the values "
                "flat, with their numbers as features of their own.",
                name=name,
                received=error.what,
            ) from error
        except arrow_units.MisfitError as error:
            raise ConfigError(
                f"Example {start + error.place} of {self.where}: column {name!r} is "
                f"{_shown(array, error.place)}, {error.why}. Pass a schema with a unit that all values have "
                f"({arrow_units.unit_of(innermost(array.type)) or 'none'}, say), or with string.",
                name=name,
                received=_shown(array, error.place),
            ) from error
        return column(name, feature, values, start, f" of {self.where}")


class Table:
    """A `Source` of the rows of a table, whatever yields its record batches; pickled with ``read``.

    ``read`` takes start and stop, and returns record batches and the number of their first row, which may be before
    start. ``columns`` are all that the table has. ``part`` returns what reads some of the rows, of a table in memory.
    """

    sizes: NDArray[np.int64] | None = None

    def __init__(
        self,
        found: Columns,
        read: "Read",
        columns: Sequence[str],
        identity: dict[str, Any],
        *,
        count: int | None = None,
        seekable: bool = False,
        schema: Schema | None = None,
        part: Callable[[int, int], "Read"] | None = None,
    ) -> None:
        self._part = part
        self._found, self._read, self.schema, self.columns = found, read, schema or found.schema, list(columns)
        self.count, self.seekable = count, seekable
        self.identity = {**identity, **found.identity}
        self.identifies = source_files.are_stamped(identity)

    def blocks(self, start: int, stop: int | None) -> Iterator[Block]:
        at, batches = self._read(start, stop)
        for batch in batches:
            first, last = max(start - at, 0), batch.num_rows if stop is None else min(stop - at, batch.num_rows)
            if first < last:
                yield self._found.block(batch.slice(first, last - first), at + first)
            at += batch.num_rows
            if stop is not None and at >= stop:
                return

    def part(self, start: int, stop: int) -> "Table":
        """Return a source of these rows alone if the table is in memory."""
        if self._part is None:
            return self
        found = copy.copy(self)
        found._read, found._part = self._part(start, stop), None
        return found


class UntoldError(ConfigError):
    """A column has no value that tells its type. Another file may have one."""

    def __init__(self, name: str, where: str, rows: str) -> None:
        super().__init__(
            f"column {name!r} of {where} has no value in {rows}, so nothing tells its type. Pass a schema that says it "
            f"(tfdist.data.Feature('float32'), say) and nulls={{{name!r}: ...}} for what replaces null, or a schema "
            "without the column.",
            name=name,
        )


def columns_of(
    table: Any, schema: Schema | None, where: str, options: Options, first: Callable[[], Any] | None = None
) -> Columns:
    flat = [
        found for name, kind in zip(table.names, table.types, strict=True) for found in _flattened((name,), kind, where)
    ]
    names = [".".join(path) for path, _ in flat]
    kinds = {".".join(path): kind for path, kind in flat}
    masked = {f"{name}_is_null": name for name in options.null_masks}
    if schema is not None:
        masks = {mask: name for mask, name in masked.items() if name in schema}
        wanted = Schema({name: feature for name, feature in schema.items() if name not in masks})
    else:
        found = {}
        for path, kind in flat:  # the first value tells the shape of lists in lists that their type does not say
            is_untold = first is not None and arrow_types.is_untold(kind)
            shape = arrow_types.first_shape(_at(first(), path)) if first is not None and is_untold else None
            found[".".join(path)] = feature_of_type(".".join(path), kind, where, shape)
        masks, wanted = masked, Schema(found)
    same_columns(wanted, names, where)
    wanted = Schema({name: _with_unit(feature, kinds[name]) for name, feature in wanted.items()})
    _check_nulls(options, wanted, names, where)
    if clash := masks.keys() & kinds.keys():
        raise ConfigError(f"{where} has the column {min(clash)!r}, which null_masks would make; rename it.")
    fills = _fills(options, wanted)
    fills |= {name: _nothing(wanted[name]) for name in masks.values() if name not in fills}
    full = Schema({**wanted, **{mask: Feature("bool") for mask in masks}})
    paths = {".".join(path): path for path, _ in flat if ".".join(path) in wanted}
    return Columns(full, paths, fills, masks, where)


def first_rows(rows: Any) -> Any:
    """The first rows of a `pyarrow.Table` that has some, as a record batch."""
    return next(batch for batch in rows.to_batches() if batch.num_rows).slice(0, _FIRST_ROWS)


def batches_of(rows: Any, step: int, start: int, stop: int | None) -> tuple[int, Iterator[Any]]:
    """Return the first row and the batches that `Table` reads of a `pyarrow.Table`, ``step`` rows at a time."""
    length = None if stop is None else max(0, stop - start)
    return start, iter(rows.slice(start, length).to_batches(max_chunksize=step))


def part_of_rows(rows: Any, step: int, first: int, last: int) -> Read:
    """Return what reads some rows of a `pyarrow.Table` like `batches_of`; a pickle of it has these rows alone."""
    ipc, sink = arrow().ipc, arrow().BufferOutputStream()
    with ipc.new_stream(sink, rows.schema) as stream:  # a pickle of a slice would have all of the table
        stream.write_table(rows.slice(first, last - first))
    return functools.partial(_batches_from, ipc.open_stream(sink.getvalue()).read_all(), step, first)


def _batches_from(rows: Any, step: int, first: int, start: int, stop: int | None) -> tuple[int, Iterator[Any]]:
    at, batches = batches_of(rows, step, start - first, None if stop is None else stop - first)
    return at + first, batches


def feature_of_type(name: str, kind: Any, where: str, matrix: tuple[int, ...] | None = None) -> Feature:
    """The feature that a column of this Arrow type is."""
    types = arrow().types
    inner, shape = plain(kind), list[int | None](tail(kind) if matrix is None else matrix)
    for _ in shape:
        inner = plain(inner.value_type)
    if not shape and is_list(inner):
        shape.append(None)
        inner = plain(inner.value_type)
    if is_text(inner) or (types.is_decimal(inner) and inner.precision > arrow_units.DIGITS):
        return Feature(TEXT, tuple(shape))
    if types.is_boolean(inner) or types.is_integer(inner) or types.is_floating(inner):
        return Feature(_FLOATS.get(str(inner), str(inner)), tuple(shape))
    if arrow_units.is_counted(inner) and not types.is_interval(inner):
        return Feature("int64", tuple(shape), unit=arrow_units.unit_of(inner))
    if types.is_null(inner):
        raise UntoldError(name, where, "any row")
    raise ConfigError(
        f"column {name!r} of {where} is {kind}; it must be bool, a number, a date, a time, text, bytes, or a list of "
        "these. Convert it, or pass a schema without it.",
        name=name,
        received=str(kind),
    )


def _at(batch: Any, path: Sequence[str]) -> Any:
    """A column of a record batch, or the field of a struct in it."""
    name, *fields = path
    array = batch.column(name)
    for field in fields:
        kind = array.type
        array = array.flatten()[kind.get_field_index(field)]  # null where the struct is
    return array


def same_columns(schema: Schema, names: Sequence[str], where: str) -> None:
    """Check that a table has every column of the schema, and no name twice."""
    counts = Counter(names)
    twice = sorted(name for name, count in counts.items() if count > 1)
    missing = [name for name in schema if name not in counts]
    if twice:
        raise ConfigError(
            f"{where} has the column {twice[0]!r} {counts[twice[0]]} times; give each its own name.", name=twice[0]
        )
    if missing:
        raise ConfigError(
            f"{where} has no column {missing[0]!r}; it has {', '.join(map(repr, names))}. All files of a source, and "
            "its schema, must have the same columns.",
            name=missing[0],
        )


def _flattened(path: tuple[str, ...], kind: Any, where: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not arrow().types.is_struct(kind):
        yield path, kind
        return
    if not kind.num_fields:
        raise ConfigError(f"column {'.'.join(path)!r} of {where} is a struct without fields; take it out.")
    for field in kind:
        yield from _flattened((*path, field.name), field.type, where)


def _with_unit(feature: Feature, kind: Any) -> Feature:
    """A feature with the column's unit, unless a schema asks for another one."""
    inner = innermost(kind)
    if feature.unit or feature.dtype == TEXT or not arrow_units.is_counted(inner):
        return feature
    if arrow().types.is_decimal(inner) and np.dtype(feature.dtype).kind == "f":
        return feature
    return replace(feature, unit=arrow_units.unit_of(inner))


def _check_nulls(options: Options, wanted: Schema, names: Sequence[str], where: str) -> None:
    inside = {name + INSIDE for name in names if name not in wanted or wanted[name].shape} - set(names)
    for argument, known in (("nulls", {*names, *inside, EVERY}), ("null_masks", {*names, EVERY})):
        if unknown := [name for name in getattr(options, argument) if name not in known]:
            raise ConfigError(
                f"{argument} names the column {unknown[0]!r}; {where} has {', '.join(map(repr, wanted))}. In nulls, "
                f"{INSIDE} behind the name of a column of lists means the nulls in them.",
                name=argument,
                received=unknown[0],
            )
    if EVERY in options.null_masks:
        raise ConfigError("null_masks must name its columns one by one.", name="null_masks", received=EVERY)


def _fills(options: Options, wanted: Schema) -> dict[str, Any]:
    """Return the value that replaces null in each column; one for all columns applies to those that can hold it."""
    found: dict[str, Any] = {}
    for name, feature in wanted.items():
        if not {name, EVERY} & options.nulls.keys():
            continue
        value = spelled(feature, options.nulls.get(name, options.nulls.get(EVERY)))
        try:
            column(name, feature, [value])
        except ConfigError as error:
            if name in options.nulls:
                raise ConfigError(f"nulls: {error}", **fields_of(error)) from error
        else:
            found[name] = value
    for name, feature in wanted.items():
        if feature.shape and name + INSIDE in options.nulls:
            leaf = replace(feature, shape=())
            value = spelled(leaf, options.nulls[name + INSIDE])
            try:
                found[name + INSIDE] = column(name, leaf, [value])[0]
            except ConfigError as error:
                raise ConfigError(f"nulls: {error}", **fields_of(error)) from error
    return found


def _nothing(feature: Feature) -> Any:
    """Return the value that replaces null in a feature that has a mask."""
    if feature.dtype == TEXT:
        return b"" if feature.shape == () else np.full([dim or 0 for dim in feature.shape], b"", object)
    return np.zeros([dim or 0 for dim in feature.shape], feature.dtype)[()]


class _InnerNullError(Exception):
    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place


def _values(feature: Feature, array: Any, fill: Any = None) -> Any:
    """The rows of an array without nulls as `column` takes them; `fill` replaces nulls in lists."""
    types = arrow().types
    array = unwrapped(array)
    if arrow_types.is_matrix(array.type) and len(feature.shape) > 1:
        return _matrices(feature, array, fill)
    if is_list(array.type):
        return _lists(feature, array, fill)
    if arrow_units.is_counted(array.type):
        if feature.dtype == TEXT:
            return array.cast(arrow().string()).to_pylist()
        if types.is_decimal(array.type) and np.dtype(feature.dtype).kind == "f" and not feature.unit:
            return array.cast(arrow().float64()).to_numpy(zero_copy_only=False)
        return arrow_units.counted(array, feature.unit)
    if is_text(array.type):
        is_string = types.is_string(array.type) or types.is_large_string(array.type)
        return (array.cast(arrow().large_binary()) if is_string else array).to_pylist()
    return array.to_numpy(zero_copy_only=False)


def _matrices(feature: Feature, array: Any, fill: Any) -> Any:
    shape = tuple(dim or 0 for dim in feature.shape)
    try:
        return _leaves(feature, arrow_types.flattened(array, shape), fill).reshape(len(array), *shape)
    except (_InnerNullError, arrow_units.MisfitError) as error:
        error.place //= math.prod(shape)
        raise


def _lists(feature: Feature, array: Any, fill: Any) -> Any:
    types = arrow().types
    is_fixed = types.is_fixed_size_list(array.type)
    inner = unwrapped(array.flatten())
    if is_fixed:
        ends = np.arange(1, len(array) + 1) * array.type.list_size
    else:
        ends = np.cumsum(array.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64))
    try:
        flat = _leaves(feature, inner, fill)
    except (_InnerNullError, arrow_units.MisfitError) as error:
        error.place = int(np.searchsorted(ends, error.place, side="right"))
        raise
    if is_fixed:
        return flat.reshape(len(array), array.type.list_size, *tail(inner.type))
    return [flat[begin:end] for begin, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)]


def _leaves(feature: Feature, array: Any, fill: Any) -> NDArray[Any]:
    """The values of lists, one after the other."""
    if not array.null_count:
        return values_of(_values(feature, array))
    nulls = nulls_of(array)
    if fill is None or innermost(array.type) != plain(array.type):
        raise _InnerNullError(int(np.argmax(nulls)))
    if nulls.all():
        return values_of([fill] * len(nulls)) if feature.dtype == TEXT else np.full(len(nulls), fill)
    return arrow_types.leaves_of(_values(feature, borrowed(array, nulls)), nulls, fill)


def _shown(array: Any, row: int) -> str:
    # not as Python's value, which nanoseconds have none of
    return " ".join(array.slice(row, 1).to_string().split()).removeprefix("[ ").removesuffix(" ]")


def _refuse_null(name: str, row: int, where: str, what: str) -> NoReturn:
    way = (
        f"Fill it: nulls={{{name!r}: ...}} (--null {name}=...), and null_masks=[{name!r}] (--null-mask "
        f"{name}) keeps where it was; or leave these rows out."
        if what == "null"
        else f"Fill it: nulls={{{name + INSIDE!r}: ...}} (--null '{name}{INSIDE}=...'); or leave these rows out."
    )
    raise ConfigError(
        f"Example {row} of {where}: column {name!r} is {what}; every example has a value for every feature. {way}",
        name=name,
        received=what,
    )
