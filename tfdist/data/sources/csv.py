"""CSV files through pyarrow: column types from the first block of the file, every later row checked against them.

Example:
    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "a.csv")
    ...     _ = path.write_text("x,name\\n1,a\\n2,b\\n")
    ...     source = open_csv(str(path))
    ...     print([(block["x"].tolist(), block["name"]) for block in source.blocks(0, None)])
    [([1, 2], [b'a', b'b'])]
"""

import contextlib
import gzip
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.schema import TEXT, Feature, Schema
from tfdist.data.sources import files, table
from tfdist.data.sources.blocks import BLOCK_BYTES, cut
from tfdist.data.sources.protocol import Block
from tfdist.errors import ConfigError

# as pyarrow has them, without those that spell a float: "nan" is a value
_NULLS = ["", "#N/A", "#N/A N/A", "#NA", "N/A", "NA", "NULL", "null", "n/a"]


def open_csv(path: str, schema: Schema | None = None) -> "Csv":
    """Return a CSV file (TSV where its name says so) with its columns' names in the first line as a source.

    Whole numbers become int64, others float32, true and false bool, everything else text.

    Args:
        path: a local path, or a URL for fsspec; ``.gz`` is decompressed.
        schema: the columns to read, and what they must be; else all of them.

    Raises:
        ConfigError: there is no row, a column is missing, or no type can be told.
        MissingDependencyError: pyarrow is not installed.
    """
    with _opened(path, None) as reader:
        kinds = dict(zip(reader.schema.names, reader.schema.types, strict=True))
        names = list(reader.schema.names)
        if not any(batch.num_rows for batch in _batches(reader, path)):
            raise ConfigError(f"{path} has a header and no rows; at least one is needed.")
    found = schema or Schema({name: _feature(name, kind, path) for name, kind in kinds.items()})
    table.same_columns(found, names, path)
    return Csv(path, found, names)


class Csv:
    """The rows of one file, read from its beginning.

    Attributes:
        columns: all that the file has.
    """

    seekable = False
    sizes: NDArray[np.int64] | None = None
    count: int | None = None

    def __init__(self, path: str, schema: Schema, columns: list[str]) -> None:
        self.schema, self.columns, self._path = schema, columns, path
        self.identity: dict[str, Any] = files.identity("csv", [path])
        self.identifies = files.are_stamped(self.identity)

    def blocks(self, start: int, stop: int | None) -> Iterator[Block]:
        """Yield the rows from ``start`` to ``stop``; those before are read and dropped."""
        return cut(self._read(), start, stop)

    def _read(self) -> Iterator[Block]:
        at = 0
        with _opened(self._path, {name: _type(feature) for name, feature in self.schema.items()}) as reader:
            for batch in _batches(reader, self._path):
                if batch.num_rows:
                    yield table.block(self.schema, batch, at, self._path)
                at += batch.num_rows


def _feature(name: str, kind: Any, path: str) -> Feature:
    types = table.arrow().types
    if types.is_null(kind):
        raise ConfigError(
            f"column {name!r} of {path} is empty in the first {BLOCK_BYTES >> 20} MiB, so nothing tells its type. Fill "
            "it, or pass a schema without it."
        )
    if types.is_floating(kind):
        return Feature("float32")  # as for a Python float: text does not say how exact it is
    return Feature(TEXT) if types.is_temporal(kind) else table.feature_of_type(name, kind, path)


def _type(feature: Feature) -> Any:
    """The type that pyarrow reads, of which nothing is lost; `column` makes the feature's dtype of it."""
    pyarrow = table.arrow()
    if feature.shape:
        raise ConfigError(
            f"the schema has a feature of shape {feature.shape}; a column of a CSV file has single values."
        )
    if feature.dtype == TEXT:
        return pyarrow.binary()
    kind = np.dtype(feature.dtype).kind
    wide = {"f": pyarrow.float64(), "b": pyarrow.bool_(), "i": pyarrow.int64(), "u": pyarrow.uint64()}
    return wide[kind]


def _batches(reader: Any, path: str) -> Iterator[Any]:
    while True:
        try:
            yield reader.read_next_batch()
        except StopIteration:
            return
        except table.arrow().ArrowInvalid as error:
            raise ConfigError(_said(str(error), path, reader.schema.names)) from error


def _said(message: str, path: str, names: list[str]) -> str:
    """What pyarrow says, by example and column; its rows count the header and begin at 1."""
    row = re.search(r"Row #(\d+)", message)
    column = re.search(r"column #(\d+)", message)
    where = f"Example {int(row[1]) - 2} of {path}" if row else path
    if column:
        where += f": column {names[int(column[1])]!r}"
    return (
        f"{where}: {re.sub(r'^.*?(Row #[0-9]+: |error: )', '', message)}. Types follow from the first "
        f"{BLOCK_BYTES >> 20} MiB of the file; correct the row, or pass a schema with a type that fits all rows "
        "(float32, string)."
    )


@contextlib.contextmanager
def _opened(path: str, kinds: dict[str, Any] | None) -> Iterator[Any]:
    pyarrow = table.arrow()
    from pyarrow import csv

    plain = path.removesuffix(".gz")
    with contextlib.ExitStack() as stack:
        file: Any = stack.enter_context(files.opened(path))
        if plain != path:
            file = stack.enter_context(gzip.GzipFile(fileobj=file))
        options = csv.ConvertOptions(null_values=_NULLS, column_types=kinds)
        if kinds:
            options.include_columns = list(kinds)
        try:
            reader = csv.open_csv(
                file,
                read_options=csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False),
                parse_options=csv.ParseOptions(
                    delimiter="\t" if plain.endswith(".tsv") else ",", newlines_in_values=True
                ),
                convert_options=options,
            )
        except (pyarrow.ArrowInvalid, pyarrow.ArrowKeyError) as error:
            message = str(error)
            if "Empty CSV" in message:
                raise ConfigError(f"{path} is empty; it must have a line with its columns' names, and rows.") from error
            raise ConfigError(_said(message, path, list(kinds or ()))) from error
        yield stack.enter_context(reader)
