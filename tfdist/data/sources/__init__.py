"""Sources of examples: arrays, streams, `tf.data`, files and folders, behind one protocol."""

import os
from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np

from tfdist import validation
from tfdist.data.format.schema import Schema, label_of
from tfdist.data.sources.array_source import open_arrays
from tfdist.data.sources.protocol import Block, Options, Source
from tfdist.data.sources.stream import is_table, open_stream
from tfdist.data.sources.tables.memory_tables import is_of_ray, open_ray, open_table
from tfdist.errors import ConfigError, ConfigTypeError

__all__ = ["Block", "Options", "Source", "open_source", "paths_of", "splits_of"]


def open_source(
    examples: Any,
    *,
    schema: Any = None,
    label: str | None = None,
    split: str | None = None,
    options: Options | None = None,
) -> Source:
    wanted = schema if schema is None or isinstance(schema, Schema) else Schema(schema)
    source = _open(examples, wanted, split, Options() if options is None else options)
    if label is not None:
        label_of(source.schema, validation.text("label", label))
    return source


def _open(examples: Any, schema: Schema | None, split: str | None, options: Options) -> Source:
    if all(hasattr(examples, name) for name in ("identity", "blocks", "seekable", "schema")):
        return cast(Source, examples)
    paths = paths_of(examples)
    if paths:
        from tfdist.data.sources.paths import open_paths

        return open_paths(paths, schema, split=split, options=options)
    if split is not None:
        raise ConfigError(f"split is {split!r}; it chooses one of a folder's, and examples is no path.")
    if options.delimiter is not None:
        raise ConfigError(
            f"delimiter is {options.delimiter!r}; it is for CSV files, and examples is no path.",
            name="delimiter",
            received=options.delimiter,
        )
    if is_of_ray(examples):
        return open_ray(examples, schema, options)
    if is_table(examples):
        return open_table(examples, schema, options)
    if options.of_tables:
        raise ConfigError(
            "nulls and null_masks are for tables (CSV, Parquet, Arrow, tables in memory); leave them out.", name="nulls"
        )
    if hasattr(examples, "element_spec"):
        from tfdist.data.sources.dataset_source import open_dataset

        return open_dataset(examples, schema)
    if isinstance(examples, (Mapping, np.ndarray, tuple)):
        return open_arrays(examples, schema)
    if isinstance(examples, Iterable) or callable(examples):
        return open_stream(examples, schema)
    raise ConfigTypeError(
        f"examples is {validation.shown(examples)} ({type(examples).__name__}); it must be arrays, an iterable of "
        "mappings, a tf.data.Dataset, or a path. See tfdist.data.write.",
        name="examples",
        received=validation.shown(examples),
    )


def paths_of(examples: Any) -> list[str | os.PathLike[str]]:
    """The paths that examples are; none where they are something else."""
    if _is_path(examples):
        return [examples]
    if isinstance(examples, (list, tuple)) and all(map(_is_path, examples)):
        return list(examples)
    return []


def splits_of(examples: Any) -> list[str]:
    """The splits of a folder, train first; none where examples are something else, or one set of examples."""
    paths = paths_of(examples)
    if len(paths) != 1:
        return []
    from tfdist.data.sources import paths as of_paths

    return of_paths.splits_of(paths[0])


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike))
