"""One dtype for values of several: the narrowest that holds all of them, as long as nothing has been written.

Example:
    >>> widest([Feature("float32"), Feature("float64"), Feature("float32")]).dtype
    'float64'
    >>> widest([Feature("uint8", (3,)), Feature("int64", (3,)), Feature("float32")]).dtype
    'int64'
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfdist.data.format.schema import TEXT, Feature, Schema, encodings_of, feature_of
from tfdist.errors import ConfigError


def widest(features: Sequence[Feature]) -> Feature:
    """Return the first feature, with the narrowest dtype that holds those of all.

    Integers become no floats, and floats no integers: what is of another kind than the first is left out.
    """
    first = features[0]
    kind = _kind(first)
    if not kind:
        return first
    dtype = np.result_type(*(feature.dtype for feature in features if _kind(feature) == kind))
    if dtype.name == first.dtype or dtype.kind not in kind:  # int64 and uint64 have no integer for both
        return first
    encoding = first.encoding if first.encoding in encodings_of(dtype.name) else ""
    return replace(first, dtype=dtype.name, encoding=encoding)


def widened(schemas: Sequence[Schema]) -> Schema:
    """Return the first schema, each feature with the dtype that holds those of all."""
    return Schema({name: widest([each[name] for each in schemas if name in each]) for name in schemas[0]})


def told(name: str, values: Iterable[Any]) -> Feature:
    """Return the feature that values are; those that cannot be told are left for `columns.column` to refuse."""
    distinct: dict[Any, Feature] = {}
    for value in values:
        dtype = value.dtype if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind != "O" else None
        if dtype in distinct:
            continue
        try:
            found = feature_of(name, value)
        except (ConfigError, TypeError, ValueError):
            if not distinct:
                raise
            continue
        distinct.setdefault(dtype or found.dtype, found)
    return widest(list(distinct.values()))


def _kind(feature: Feature) -> str:
    kind = "" if feature.dtype == TEXT else np.dtype(feature.dtype).kind
    return "iu" if kind in ("i", "u") else kind if kind == "f" else ""
