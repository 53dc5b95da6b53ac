"""Where examples come from: arrays, streams, `tf.data`, files and folders, all behind one protocol.

Example:
    >>> import numpy as np
    >>> source = open_source({"x": np.zeros((5, 2), "float32"), "label": np.arange(5)}, label="label")
    >>> source.count, source.seekable, list(source.schema)
    (5, True, ['label', 'x'])
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np

from tfdist import validation
from tfdist.data.schema import Schema
from tfdist.data.sources.protocol import Block, Source
from tfdist.errors import ConfigError, ConfigTypeError

__all__ = ["Block", "Source", "open_source"]


def open_source(examples: Any, *, schema: Any = None, label: str | None = None) -> Source:
    """Return examples of any kind as a source.

    Args:
        examples: a mapping of names to arrays, examples first, or (x, y), or (x, y, weight) of arrays; an iterable of
            mappings of names to values, or a function that returns one; a finite `tf.data.Dataset` of single examples;
            a path, a URL, a wildcard or a list of them, to CSV, Parquet, HDF5, NumPy or TFRecord files, or to a folder
            with one folder of pictures per class; a `Source`.
        schema: a `Schema`, or a mapping of names to `Feature`. Default: it follows from the examples. Of tables
            and HDF5 files those columns are read that it names.
        label: the name of the feature by which examples are told apart; it must be there.

    Raises:
        ConfigError: there are no examples, or none that can be stored.
        ConfigTypeError: the examples are of no kind that is understood.
        MissingDependencyError: pyarrow, h5py or the driver of a URL is needed and not installed.
        StorageError: a file, or a store, cannot be read.
    """
    wanted = schema if schema is None or isinstance(schema, Schema) else Schema(schema)
    source = _open(examples, wanted)
    if label is not None and validation.text("label", label) not in source.schema:
        names = ", ".join(map(repr, source.schema))
        raise ConfigError(f"label is {label!r}; it must be one of the features, which are {names}.")
    return source


def _open(examples: Any, schema: Schema | None) -> Source:
    if all(hasattr(examples, name) for name in ("schema", "identity", "blocks", "seekable")):
        return cast(Source, examples)
    if _is_path(examples):
        from tfdist.data.sources.paths import open_paths

        return open_paths([examples], schema)
    if isinstance(examples, (list, tuple)) and examples and all(map(_is_path, examples)):
        from tfdist.data.sources.paths import open_paths

        return open_paths(examples, schema)
    if hasattr(examples, "element_spec"):
        from tfdist.data.sources.dataset import open_dataset

        return open_dataset(examples, schema)
    if isinstance(examples, (Mapping, np.ndarray, tuple)):
        from tfdist.data.sources.arrays import open_arrays

        return open_arrays(examples, schema)
    if isinstance(examples, Iterable) or callable(examples):
        from tfdist.data.sources.stream import open_stream

        return open_stream(examples, schema)
    raise ConfigTypeError(
        f"examples is {validation.shown(examples)} ({type(examples).__name__}); it must be arrays, an iterable of "
        "mappings, a tf.data.Dataset, or a path. See tfdist.data.write."
    )


def _is_path(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike))
