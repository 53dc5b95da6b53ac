"""Infer the column types of a CSV file from the text of its first values without losing a digit.

-3, 17                              int64, or uint64 where one is larger than that
007, 0x1f, more digits than uint64  text
1.5, 2e-3                           float32 where that holds all digits of all values, else float64
1.5 among whole numbers too large   text
2020-01-01, 2020-01-01 10:30:00     int64, counted as `tfdist.data.sources.tables.arrow_units` says
true, false                         bool
"""

from typing import Any

from tfdist.data.format.kept_digits import fits_float32
from tfdist.data.format.schema import TEXT, Feature
from tfdist.data.sources.tables import arrow_types

_WHOLE = r"^\s*[+-]?[0-9]+\s*$"
_PADDED = r"^\s*[+-]?0[0-9xX]"  # "007", "0x1f": a number would lose what stands in front
_EXACT = 1 << 53  # whole numbers that every float64 holds


def is_number(kind: Any) -> bool:
    """Return whether pyarrow took the text of a column for numbers, so that its text has to be looked at."""
    types = arrow_types.arrow().types
    return bool(types.is_integer(kind) or types.is_floating(kind))


def number(kind: Any, texts: Any) -> Feature:
    """Return the feature that a column of numbers is.

    Example:
        >>> import pyarrow
        >>> number(pyarrow.float64(), pyarrow.array(["1.5", "0.1"])).dtype
        'float32'
        >>> number(pyarrow.float64(), pyarrow.array(["18446744073709551615"])).dtype
        'uint64'
        >>> number(pyarrow.float64(), pyarrow.array(["1700000000.125"])).dtype
        'float64'
    """
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
