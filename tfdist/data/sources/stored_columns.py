"""The conversion of values into columns that can be stored, which every source uses, and common dtypes of sources.

A value is kept or refused, never changed: an integer goes into a float feature if that float equals it, a float never
into an integer feature. A float goes into a narrower one that equals it; a float of Python, which has no dtype, also
where float32 keeps all of its digits. A feature that a user asked for may round, but not to infinity.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.data.format.schema import TEXT, Feature, Schema, as_array, encodings_of, feature_of, fits_float32
from tfdist.data.sources.protocol import Block
from tfdist.errors import ConfigError, ConfigTypeError

_BYTES = (bytes, bytearray, memoryview)
NAMES = ("input", "label", "weight")  # of what has no names: x, (x, y) and (x, y, weight)


def named(element: Any) -> Mapping[str, Any]:
    """Return an element with names: a mapping unchanged, x as "input", (x, y[, weight]) as "input", "label", "weight".

    A part of a tuple that is a mapping brings its own names.
    """
    if isinstance(element, Mapping):
        return element
    if not isinstance(element, tuple):
        return {NAMES[0]: element}
    if not 1 <= len(element) <= len(NAMES):
        raise ConfigError(
            f"an element has {len(element)} parts; it must be a mapping of names to values, or (x, y), or "
            "(x, y, weight).",
            name="examples",
            received=len(element),
        )
    found: dict[str, Any] = {}
    for name, part in zip(NAMES, element, strict=False):
        parts = part if isinstance(part, Mapping) else {name: part}
        if twice := found.keys() & parts.keys():
            raise ConfigError(
                f"feature {min(twice)!r} is there twice in one element; give each its own name.", name=min(twice)
            )
        found.update(parts)
    return found


def block(schema: Schema, examples: Sequence[Any], start: int = 0) -> Block:
    """Return examples, which are mappings of names to values, as columns."""
    names = dict.fromkeys(schema).keys()  # a dict compares them ten times faster than a Mapping
    rows: list[Mapping[str, Any]] = []
    for index, example in enumerate(examples, start):
        row = example
        if not isinstance(example, Mapping):
            if not isinstance(example, tuple) and tuple(names) != NAMES[:1]:
                raise ConfigTypeError(
                    f"Example {index} is {validation.shown(example)} ({type(example).__name__}); it must be a mapping "
                    f"of {_listed(names)} to values.",
                    name="examples",
                    received=validation.shown(example),
                )
            row = named(example)
        if row.keys() != names:
            _refuse_names(names, row, index)
        rows.append(row)
    return {name: column(name, schema[name], [row[name] for row in rows], start) for name in schema}


def column(name: str, feature: Feature, values: Any, start: int = 0, origin: str = "") -> Any:
    """Return the values of one feature as a column of a `Block`."""
    if feature.dtype == TEXT:
        rows = values.tolist() if isinstance(values, np.ndarray) and values.ndim == 1 else values
        if feature.shape == ():
            return _texts(name, feature, rows, start, origin)
        return [_text_array(name, feature, row, i, origin) for i, row in enumerate(rows, start)]
    if None in feature.shape:
        return _lists(name, feature, values, start, origin)
    array = values if isinstance(values, np.ndarray) and values.dtype.kind != "O" else _stacked(values)
    if array is None or array.shape[1:] != feature.shape or is_masked(array):
        shape = [dim or 0 for dim in feature.shape]
        result = np.empty((len(values), *shape), feature.dtype)
        for i, value in enumerate(values):
            result[i] = _array(name, feature, value, start + i, origin)
        return result
    result, wrong = cast(array, feature, of_python=type(values[0]) is float)
    if wrong is not None and wrong.any():
        first = int(np.flatnonzero(wrong.reshape(len(array), -1).any(axis=1))[0])
        _refuse(name, feature, values[first], start + first, origin)
    return np.ascontiguousarray(result)


def cast(
    array: NDArray[Any], feature: Feature, *, of_python: bool = False
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Cast an array to a feature's dtype; return it with a mask of the values that the dtype cannot hold, or None."""
    target, kind = np.dtype(feature.dtype), array.dtype.kind
    if array.dtype.newbyteorder("=") == target or (array.size == 0 and kind in "biuf"):
        return array.astype(target, copy=False), None
    if kind not in "biuf" or (kind == "f" and target.kind != "f"):
        return np.zeros(array.shape, target), np.ones(array.shape, np.bool_)
    with np.errstate(all="ignore"):
        result = array.astype(target)
        if kind == "f":
            return result, _rounded(array, result, feature, of_python=of_python)
        if target.kind == "f" and kind == "b":
            return result, None
        if target.kind == "f":
            # converting a float beyond the range of the integers back gives results that depend on the processor
            low, high = _range(array.dtype)
            inside = np.isfinite(result) & (result >= float(low)) & (result < float(high + 1))
            return result, ~inside | (np.where(inside, result, 0).astype(array.dtype) != array)
        low, high = _range(target)
        return result, (array < low) | (array > high) if kind != "b" else None


def is_masked(value: Any) -> bool:
    """Return whether a value is a masked array that hides some of its values."""
    return isinstance(value, np.ma.MaskedArray) and bool(np.ma.is_masked(value))


def text(value: Any) -> bytes | None:
    """Return text as UTF-8, and bytes unchanged; None for anything else, and for text that UTF-8 cannot hold."""
    try:
        if isinstance(value, str):
            return value.encode()
    except UnicodeEncodeError:
        return None
    if isinstance(value, _BYTES):
        return bytes(value)
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return text(value.item())
    return text(value.numpy()) if hasattr(value, "numpy") else None  # an eager tensor


def _range(target: np.dtype[Any]) -> tuple[int, int]:
    if target.kind == "b":
        return 0, 1
    info = np.iinfo(target)
    return int(info.min), int(info.max)


def _rounded(
    array: NDArray[Any], result: NDArray[Any], feature: Feature, *, of_python: bool
) -> NDArray[np.bool_] | None:
    """Return a mask of the floats that another float dtype changes but must not; None if it changes none."""
    if feature.may_round:
        return np.isfinite(array) & ~np.isfinite(result)
    if np.can_cast(array.dtype, result.dtype):
        return None
    changed = np.asarray((result != array) & ~np.isnan(array))
    if of_python and feature.dtype == "float32" and changed.any():
        changed[changed] = ~fits_float32(array[changed])
    return changed


def _stacked(values: Any) -> NDArray[Any] | None:
    """Return the values as one array if they are all of one type, so that no value changes; else None."""
    types = set(map(type, values))
    if len(types) != 1:
        return None
    kind = types.pop()
    if kind is np.ndarray:
        alike = len({(value.dtype, value.shape) for value in values}) == 1
        return np.stack(values) if alike else None
    if not issubclass(kind, (bool, int, float, np.number, np.bool_)):
        return None
    try:
        array = np.array(values)
    except OverflowError:
        return None
    # integers that no integer dtype holds together come back as floats or objects
    return None if issubclass(kind, int) and array.dtype.kind not in "biu" else array


def _array(name: str, feature: Feature, value: Any, index: int, origin: str) -> NDArray[Any]:
    try:
        array = as_array(value)
    except (TypeError, ValueError):  # rows of different lengths
        _refuse(name, feature, value, index, origin)
    is_list = None in feature.shape
    if is_masked(value) or (array.ndim != 1 if is_list else array.shape != feature.shape):
        _refuse(name, feature, value, index, origin)
    result, wrong = cast(array, feature, of_python=not hasattr(value, "dtype"))
    if wrong is not None and np.any(wrong):
        _refuse(name, feature, value, index, origin)
    return result


def _lists(name: str, feature: Feature, values: Any, start: int, origin: str) -> list[NDArray[Any]]:
    types = {(value.dtype, value.ndim) if type(value) is np.ndarray else None for value in values}
    if len(types) == 1 and None not in types and next(iter(types))[1] == 1:  # type: ignore[index]
        whole, wrong = cast(np.concatenate(list(values)), feature)
        if wrong is None or not wrong.any():
            ends = np.cumsum([len(value) for value in values]).tolist()
            return [whole[end - len(value) : end] for value, end in zip(values, ends, strict=True)]
    return [_array(name, feature, value, i, origin) for i, value in enumerate(values, start)]


def _texts(name: str, feature: Feature, values: Any, start: int, origin: str) -> list[bytes]:
    types = set(map(type, values))
    if types == {bytes}:
        return list(values)
    found = []
    for index, value in enumerate(values, start):
        as_bytes = text(value)
        if as_bytes is None:
            _refuse(name, feature, value, index, origin)
        found.append(as_bytes)
    return found


def _text_array(name: str, feature: Feature, value: Any, index: int, origin: str) -> NDArray[np.object_]:
    if isinstance(value, (str, *_BYTES)):
        _refuse(name, feature, value, index, origin)
    array = np.asarray(value) if hasattr(value, "dtype") else _objects(value)
    if array.ndim != 1 if None in feature.shape else array.shape != feature.shape:
        _refuse(name, feature, value, index, origin)
    result = np.empty(array.shape, object)
    flat = [text(item) for item in array.ravel().tolist()]
    if None in flat:
        _refuse(name, feature, value, index, origin)
    result.ravel()[:] = flat
    return result


def _objects(value: Any) -> NDArray[np.object_]:
    """Return nested lists as an array of their items; NumPy would strip trailing NULs from fixed-length bytes."""
    try:
        return np.array(value, dtype=object)
    except ValueError:
        return np.array(None, dtype=object)


def _refuse_names(names: Iterable[str], row: Mapping[str, Any], index: int) -> NoReturn:
    missing = [name for name in names if name not in row]
    extra = [name for name in row if name not in set(names)]
    said = [f"lacks {_listed(missing)}"] if missing else []
    said += [f"has {_listed(extra)} besides"] if extra else []
    raise ConfigError(
        f"Example {index} {' and '.join(said)}; every example must have the features {_listed(names)} and no others. "
        "Leave out what is not in all of them, give it a value where it is missing, or pass another schema.",
        name=", ".join([*missing, *extra]),
    )


def _refuse(name: str, feature: Feature, value: Any, index: int, origin: str) -> NoReturn:
    raise ConfigError(
        f"Example {index}{origin}: feature {name!r} is {_described(value)}; it must be {_required(feature)}."
        f"{_hint(feature, value)}",
        name=name,
        received=validation.shown(value),
        path=origin.removeprefix(" of ") or None,
    )


def _described(value: Any) -> str:
    shown = validation.shown(value.item() if isinstance(value, np.generic) else value)
    if hasattr(value, "dtype"):
        shown = " ".join(shown.split())  # an array's takes several lines
    if getattr(value, "shape", ()) != ():
        return f"{shown} ({type(value).__name__} of {value.dtype}, shape {tuple(value.shape)})"
    return f"{shown} ({getattr(value, 'dtype', type(value).__name__)})"


def _required(feature: Feature) -> str:
    what = "text or bytes" if feature.dtype == TEXT else feature.dtype
    if None in feature.shape:
        what = f"a list of {what}"
    elif feature.shape:
        what = f"an array of {what} of shape {feature.shape}"
    elif feature.dtype != TEXT:
        what = f"one {what}"
    if feature.dtype != TEXT and np.dtype(feature.dtype).kind in "iu":
        what += ", from {} to {}".format(*_range(np.dtype(feature.dtype)))
    return what


def _hint(feature: Feature, value: Any) -> str:
    if value is None:
        return " Give it a value, or leave the example out."
    if is_masked(value):
        return " Give the masked values one with .filled(value)."
    if isinstance(value, str):
        return " UTF-8 cannot hold it; pass its bytes." if feature.dtype == TEXT and feature.shape == () else ""
    if feature.dtype == TEXT:
        return ""
    try:
        array = np.asarray(value)
    except ValueError:
        return " Its rows have different lengths."
    if None not in feature.shape and array.shape != feature.shape:
        if len(array.shape) == len(feature.shape) == 1:
            return " Pass a schema with the shape (None,) when lengths differ."
        return " Make all examples of one shape first."
    if array.dtype.kind == "f" and np.dtype(feature.dtype).kind in "iu":
        return " Round it, or pass a schema with float32."
    if np.dtype(feature.dtype).kind == "f" and array.dtype.kind in "iu":
        return " This float cannot hold the integer exactly; cast it, or pass a schema with float64 or int64."
    if array.dtype.kind == "f" and np.dtype(feature.dtype).kind == "f" and not feature.may_round:
        return (
            f" {feature.dtype} was told from what came before, and loses digits of this {array.dtype}. Pass a schema "
            f"with {array.dtype}, or with {feature.dtype} to round."
        )
    return ""


def _listed(names: Iterable[str]) -> str:
    shown = [repr(name) for name in names]
    return ", ".join(shown[:20]) + (f" and {len(shown) - 20} more" if len(shown) > 20 else "")


def numbers_of(own: Sequence[str], names: Sequence[str], feature: str, where: str) -> NDArray[np.int64]:
    """Return the numbers that these classes have among all; the first one, where a name is there twice."""
    numbers = {name: number for number, name in reversed(list(enumerate(names)))}
    for name in own:
        if name not in numbers:
            listed = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
            raise ConfigError(
                f"{where} has the class {name!r} of {feature!r}, which is none of the {len(names)} known ones "
                f"({listed}). Classes are matched by their names: rename it, leave it out, or write with a schema "
                "that has it, such as that of the examples to learn from.",
                name=feature,
                received=name,
                path=where,
            )
    return np.array([numbers[name] for name in own], np.int64)


def widest(features: Sequence[Feature]) -> Feature:
    """Return the first feature with the narrowest dtype that holds all of its kind, integers or floats."""
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
    """Return the first schema, each feature with a dtype that holds the values of all schemas."""
    return Schema({name: widest([each[name] for each in schemas if name in each]) for name in schemas[0]})


def inferred_feature(name: str, values: Iterable[Any]) -> Feature:
    """Return the feature that values imply; `column` refuses values that do not fit."""
    distinct: dict[Any, Feature] = {}
    empty: Feature | None = None  # a list that shows no type
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
        if dtype is None and found.shape == (0,):
            empty = found
        else:
            distinct.setdefault(dtype or found.dtype, found)
    return widest(list(distinct.values())) if distinct or empty is None else empty


def _kind(feature: Feature) -> str:
    kind = "" if feature.dtype == TEXT else np.dtype(feature.dtype).kind
    return "iu" if kind in ("i", "u") else kind if kind == "f" else ""
