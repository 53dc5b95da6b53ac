"""How much of a record's structure is known in advance, which decides how it is read.

fixed     all records have the same length and each value its place: NumPy reads whole batches, nothing is parsed
extent    the index knows where the bytes and texts of a record stand, and has its few other values: nothing is parsed
generic   the index knows where records begin: whole batches are parsed by `tf.io.parse_example`
"""

import numpy as np

from tfdist.data.format.schema import Schema

FIXED, EXTENT, GENERIC = "fixed", "extent", "generic"
LAYOUTS = (FIXED, EXTENT, GENERIC)

# An index is loaded whole: it may have this much of each example beside where it stands.
_MOST_INDEXED_BYTES = 64


def layout_of(schema: Schema) -> str:
    """Return the best layout for a schema.

    Example:
        >>> from tfdist.data.format.schema import Feature
        >>> layout_of(Schema({"image": Feature("string"), "label": Feature("int64")}))
        'extent'
    """
    if schema.is_fixed:
        return FIXED
    rest = [feature for feature in schema.values() if not feature.is_fixed]
    texts = all(feature.encoding == "bytes" and feature.shape == () for feature in rest)
    return EXTENT if texts and 16 * len(rest) + indexed_bytes(schema) <= _MOST_INDEXED_BYTES else GENERIC


def indexed_bytes(schema: Schema) -> int:
    """Return the bytes that the values of the fixed features of an example take."""
    fixed = [feature for feature in schema.values() if feature.is_fixed]
    return sum((feature.size or 0) * np.dtype(feature.dtype).itemsize for feature in fixed)


def indexed_values(schema: Schema, layout: str) -> list[str]:
    """Return the features whose values stand in the index: all that are fixed, or the single integers."""
    if layout == FIXED:
        return []
    fixed = [name for name, feature in schema.items() if feature.is_fixed]
    if layout == EXTENT:
        return fixed
    return [name for name in fixed if schema[name].encoding == "int64" and schema[name].shape == ()]


def layouts(schema: Schema) -> list[str]:
    """Return the layouts that examples of a schema may have, the best first.

    The fixed one takes records that tfdist wrote: other writers give integers as few bytes as each needs.
    """
    best = layout_of(schema)
    return [best] if best == GENERIC else [best, GENERIC]
