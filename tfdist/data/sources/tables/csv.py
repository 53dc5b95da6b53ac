"""CSV files as sources, through pyarrow: the first block of a file sets the column types, and later rows must fit.

No type loses a digit:

    -3, 17                              int64, or uint64 where one is larger than that
    007, 0x1f, more digits than uint64  text
    1.5, 2e-3                           float32 where that holds all digits of all values, else float64
    1.5 among whole numbers too large   text
    2020-01-01, 2020-01-01 10:30:00     int64, counted as `tfdist.data.sources.tables.arrow_units` says
    true, false                         bool
"""

import contextlib
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tfdist.data.format.schema import TEXT, Feature, Schema, fits_float32, with_rounding
from tfdist.data.sources import compressed_files, source_files
from tfdist.data.sources.protocol import BLOCK_BYTES, Options
from tfdist.data.sources.tables import arrow_table, arrow_types, arrow_units
from tfdist.errors import ConfigError

_WHOLE = r"^\s*[+-]?[0-9]+\s*$"
_PADDED = r"^\s*[+-]?0[0-9xX]"  # "007", "0x1f": a number would lose its first digits
_EXACT = 1 << 53  # whole numbers that every float64 holds
# pyarrow's list, without those that spell a float: "nan" is a value
_NULLS = ["", "#N/A", "#N/A N/A", "#NA", "N/A", "NA", "NULL", "null", "n/a"]
# a field with a decimal comma, and what separates it from another one
_DECIMAL = re.compile(r"(?<![^;\t|])[-+]?[0-9]+,[0-9]+([;\t|])|([;\t|])[-+]?[0-9]+,[0-9]+(?![^;\t|])")
_TOLD = f"Types follow from the first {BLOCK_BYTES >> 20} MiB of the file"


def number(kind: Any, texts: Any) -> Feature:
    """Return the feature for a column of numbers."""
    import pyarrow.compute as compute

    texts = texts.drop_null()
    if compute.any(compute.match_substring_regex(texts, _PADDED)).as_py():
        return Feature(TEXT)
    if arrow_types.arrow().types.is_integer(kind):
        return Feature("int64")
    is_whole = compute.match_substring_regex(texts, _WHOLE)
    whole = [int(text) for text in set(texts.filter(is_whole).to_pylist())]
    if compute.all(is_whole).as_py():
        low, high = min(whole), max(whole)
        if low >= -(1 << 63) and high < 1 << 63:
            return Feature("int64")
        return Feature("uint64" if low >= 0 and high < 1 << 64 else TEXT)
    if any(abs(value) > _EXACT and float(value) != value for value in whole):
        return Feature(TEXT)
    values = compute.cast(compute.utf8_trim_whitespace(texts), arrow_types.arrow().float64()).to_numpy(
        zero_copy_only=False
    )
    return Feature("float32" if fits_float32(values).all() else "float64")


def open_csv(path: str, schema: Schema | None, options: Options) -> arrow_table.Table:
    """Open a CSV file (TSV by its extension) as a source; the first line has the names of columns."""
    pyarrow = arrow_types.arrow()
    with _opened(path, None, options.delimiter) as reader:
        columns = _names(reader, path)
        types = reader.schema
        if not any(batch.num_rows for batch in _batches(reader, path)):
            raise ConfigError(f"{path} has a header and no rows; at least one is needed.", path=path)
    if options.delimiter is None and len(columns) == 1 and (other := re.search(r"[;\t|,]", columns[0])):
        raise _delimited(path, columns[0], other[0])
    if schema is None and "" in columns:
        raise ConfigError(
            f"column {columns.index('') + 1} of {path} has no name. Give it one, or pass a schema of the others. Of a "
            "table of pandas it is the index, which to_csv(index=False) leaves out.",
            path=path,
        )
    found = schema
    if found is None:
        arrow_table.same_columns(Schema({name: Feature(TEXT) for name in columns}), columns, path)
        kinds = {name: types.field(name).type for name in columns}
        is_number = (pyarrow.types.is_integer, pyarrow.types.is_floating)
        numbers = [name for name, kind in kinds.items() if any(check(kind) for check in is_number)]
        texts = _texts(path, numbers, options)  # a number does not keep its spelling
        found = Schema({name: _feature(name, kind, texts.get(name), path) for name, kind in kinds.items()})
    # the types that are read, not those that pyarrow has for the text
    read = [(name, _type(found[name]) if name in found else pyarrow.string()) for name in columns]
    table = arrow_table.columns_of(pyarrow.schema(read), found, path, options)
    identity = source_files.identity("csv", [path])
    if options.delimiter is not None:
        identity["delimiter"] = options.delimiter
    rows = functools.partial(_read, path, table.schema, list(table.paths), options.delimiter)
    # decimal digits are read as float64, and what float32 loses of them was looked at
    rounding = replace(table, schema=with_rounding(table.schema) or table.schema)
    return arrow_table.Table(rounding, lambda start, stop: (0, rows()), columns, identity, schema=table.schema)


def _names(reader: Any, path: str) -> list[str]:
    try:
        return list(reader.schema.names)
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the first line of {path}, with the names of the columns, is no UTF-8: {error}. Save the file as UTF-8: "
            "`iconv -f latin1 -t utf-8 FILE > ANOTHER`, if it is in Latin-1.",
            path=path,
        ) from error


def _read(path: str, schema: Schema, names: Iterable[str], delimiter: str | None) -> Iterator[Any]:
    """Yield record batches of a file; digits that float32 loses are refused unless a user asked for float32."""
    narrow = [name for name in names if schema[name].dtype == "float32" and not schema[name].may_round]
    at = 0
    with _opened(path, {name: _type(schema[name]) for name in names}, delimiter) as reader:
        for batch in _batches(reader, path):
            for name in narrow if batch.num_rows else ():
                _check_narrow(name, batch.column(name), at, path)
            yield batch
            at += batch.num_rows


def _check_narrow(name: str, array: Any, start: int, path: str) -> None:
    values = array.to_numpy(zero_copy_only=False)  # NaN where it is null
    fits = fits_float32(values)
    if not fits.all():
        row = int(np.argmin(fits))
        raise ConfigError(
            f"Example {start + row} of {path}: column {name!r} is {float(values[row])!r}, of which float32 loses "
            f"digits. {_TOLD}; pass a schema with float64 for this column, or with float32 to round it.",
            name=name,
            received=float(values[row]),
            path=path,
        )


def _feature(name: str, kind: Any, texts: Any, path: str) -> Feature:
    if arrow_types.arrow().types.is_null(kind):
        raise arrow_table.UntoldError(name, path, f"the first {BLOCK_BYTES >> 20} MiB")
    return arrow_table.feature_of_type(name, kind, path) if texts is None else number(kind, texts)


def _texts(path: str, names: list[str], options: Options) -> dict[str, Any]:
    """Return the first values of some columns as text, as the file spells them."""
    if not names:
        return {}
    kinds = dict.fromkeys(names, arrow_types.arrow().string())
    with _opened(path, kinds, options.delimiter, texts_null=True) as reader:
        first = next((batch for batch in _batches(reader, path) if batch.num_rows), None)
        return {} if first is None else {name: first.column(name) for name in names}


def _type(feature: Feature) -> Any:
    """Return the type that pyarrow reads without loss; `column` converts it into the feature's dtype."""
    pyarrow = arrow_types.arrow()
    if feature.shape:
        raise ConfigError(
            f"the schema has a feature of shape {feature.shape}; a column of a CSV file has single values."
        )
    if feature.dtype == TEXT:
        return pyarrow.binary()
    if (counted := arrow_units.type_of(feature.unit)) is not None:
        return counted
    kind = np.dtype(feature.dtype).kind
    wide = {"f": pyarrow.float64(), "b": pyarrow.bool_(), "i": pyarrow.int64(), "u": pyarrow.uint64()}
    return wide[kind]


def _batches(reader: Any, path: str) -> Iterator[Any]:
    while True:
        try:
            yield reader.read_next_batch()
        except StopIteration:
            return
        except arrow_types.arrow().ArrowInvalid as error:
            raise _refused(str(error), path, reader.schema.names) from error


def _delimited(path: str, text: str, other: str) -> ConfigError:
    return ConfigError(
        f"{path} has one column, {text!r}; it looks as if {other!r} separated several. Pass delimiter={other!r} "
        "(--delimiter), or the right one.",
        name="delimiter",
        received=other,
        path=path,
    )


def _refused(message: str, path: str, names: list[str]) -> ConfigError:
    """Return pyarrow's message with example and column; pyarrow counts rows from 1, header included."""
    one = re.search(r"Expected 1 columns, got [0-9]+: (.*)", message)
    if one and (decimal := _DECIMAL.search(one[1])):  # other commas are of a text without quotes
        return _delimited(path, one[1], decimal[1] or decimal[2])
    row = re.search(r"Row #(\d+)", message)
    column = re.search(r"column #(\d+)", message)
    where = f"Example {int(row[1]) - 2} of {path}" if row else path
    if column:
        where += f": column {names[int(column[1])]!r}"
    return ConfigError(
        f"{where}: {re.sub(r'^.*?(Row #[0-9]+: |error: )', '', message)}. {_TOLD}; correct the row, or pass a schema "
        "with a type that fits all rows (float32, string).",
        path=path,
    )


@contextlib.contextmanager
def _opened(
    path: str, kinds: dict[str, Any] | None, delimiter: str | None, *, texts_null: bool = False
) -> Iterator[Any]:
    pyarrow = arrow_types.arrow()
    from pyarrow import csv

    plain = path.removesuffix(".gz")
    with contextlib.ExitStack() as stack:
        file: Any = stack.enter_context(source_files.opened(path))
        if plain != path:
            file = stack.enter_context(compressed_files.unpacked(path, file))
        options = csv.ConvertOptions(null_values=_NULLS, column_types=kinds, strings_can_be_null=texts_null)
        if kinds:
            options.include_columns = list(kinds)
        try:
            reader = csv.open_csv(
                file,
                read_options=csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False),
                parse_options=csv.ParseOptions(
                    delimiter=delimiter or ("\t" if plain.lower().endswith(".tsv") else ","), newlines_in_values=True
                ),
                convert_options=options,
            )
        except (pyarrow.ArrowInvalid, pyarrow.ArrowKeyError) as error:
            message = str(error)
            if "Empty CSV" in message:
                raise ConfigError(
                    f"{path} is empty; it must have a line with its columns' names, and rows.", path=path
                ) from error
            raise _refused(message, path, list(kinds or ())) from error
        yield stack.enter_context(reader)
