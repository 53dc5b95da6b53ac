"""The schema of an example: its features, their encoding in a tf.train.Example, and the layout that follows.

A feature is stored in one of four encodings:

    float   float_list; float32 alone
    int64   int64_list; bool and integers. A single value takes a fixed number of bytes: see `example.py`
    bytes   bytes_list; text and bytes
    raw     bytes_list with one value, the array's bytes in row-major, little-endian order; any numeric dtype.
            `tf.io.decode_raw` reads it

The layout says how records are read:

    fixed     all records have one length and each value its place: NumPy reads whole batches, nothing is parsed
    extent    the index knows where bytes and texts are, and has the few other values: nothing is parsed
    generic   the index knows where records begin: `tf.io.parse_example` parses whole batches
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.errors import ConfigError, ConfigTypeError, fields_of

_FIRST = 100
_SHORT = 6  # digits that every float32 holds
_POWERS = np.array([float(f"1e{place}") for place in range(23)])  # those that a float64 is
ENCODINGS = ("float", "int64", "bytes", "raw")
TEXT = "string"
_INTEGERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64")
DTYPES = (*_INTEGERS, *_FLOATS, TEXT)
MOST_FEATURES = 10_000
MOST_ELEMENTS = 1 << 40
MOST_DIMENSIONS = 32
FIXED, EXTENT, GENERIC = "fixed", "extent", "generic"
LAYOUTS = (FIXED, EXTENT, GENERIC)

# An index is loaded whole: it may have this much of each example besides its place.
_MOST_INDEXED_BYTES = 64


def fits_float32(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return a mask of the values that keep all their decimal digits as float32."""
    with np.errstate(all="ignore"):
        narrow = values.astype(np.float32)
        good = (narrow == values) | np.isnan(values)
        size = np.where(good, 1.0, np.abs(values))
        # most values have few digits: a whole number below 2**53 times or by an exact power of ten, so rounded once
        places = _SHORT - 1 - np.floor(np.log10(size))
        inside = np.abs(places) < len(_POWERS)
        power = _POWERS[np.where(inside, np.abs(places), 0).astype(int)]
        whole = np.rint(np.where(places > 0, size * power, size / power))
        short = inside & (np.where(places > 0, whole / power, whole * power) == size)
    normal = np.finfo(np.float32)
    good |= short & (size >= float(normal.tiny)) & (size <= float(normal.max))
    rest = np.flatnonzero(~good)
    good[rest] = narrow[rest].astype(str).astype(np.float64) == values[rest]
    rest = np.flatnonzero(~good & np.isfinite(narrow))
    for place, value in zip(rest.tolist(), values[rest].tolist(), strict=True):
        digits = len(repr(value).partition("e")[0].replace(".", "").lstrip("-0").rstrip("0"))
        good[place] = float(f"{float(narrow[place]):.{digits}g}") == value
    return good


def all_fit_float32(values: NDArray[np.float64]) -> bool:
    """Return whether all values keep all their digits as float32; the first ones mostly show those that do not."""
    flat = values.reshape(-1)
    return bool(fits_float32(flat[:_FIRST]).all() and fits_float32(flat[_FIRST:]).all())


@dataclass(frozen=True)
class Feature:
    """One feature of an example.

    Args:
        dtype: the name of a NumPy dtype: bool, (u)int8 to (u)int64, float16, float32, float64; or "string" for bytes
            and text (which is kept as UTF-8).
        shape: the shape of the feature in one example. ``(None,)`` is a list of any length.
        encoding: the encoding, one of `ENCODINGS`. Default: bytes for "string", float for float32, int64 for one bool
            or integer and for lists of any length, raw for other arrays.
        is_image: whether the bytes are an encoded picture (JPEG, PNG, ...).
        names: the names of an integer feature's classes, from class 0 on.
        unit: the unit of its numbers, if it is known: "us since 1970-01-01 UTC", "1e-2" (hundredths), or any text.
            Columns of dates, times and decimals are converted to it by `data.sources.tables.arrow_units`.
        may_round: whether a user asked for this dtype, so that floats that do not fit exactly are rounded.

    Raises:
        ConfigError: the dtype is unknown, or cannot be stored in this shape or encoding.

    Example:
        >>> Feature("float32", (40,)).encoding
        'float'
    """

    dtype: str
    shape: tuple[int | None, ...] = ()
    encoding: str = ""
    is_image: bool = False
    names: tuple[str, ...] = field(default=(), repr=False)
    unit: str = field(default="", repr=False)
    may_round: bool = field(default=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        dtype = self.dtype if self.dtype == TEXT else _dtype_name(self.dtype)
        validation.one_of("dtype", dtype, DTYPES)
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "shape", _shape(self.shape))
        object.__setattr__(self, "encoding", self.encoding or _default_encoding(dtype, self.shape))
        object.__setattr__(self, "names", tuple(validation.text("names", name) for name in self.names))
        validation.one_of("encoding", self.encoding, encodings_of(dtype))
        validation.boolean("is_image", self.is_image)
        if self.unit:
            validation.text("unit", self.unit)

    @property
    def size(self) -> int | None:
        """The number of values in an example; None if examples differ."""
        return None if None in self.shape else int(np.prod([dim or 0 for dim in self.shape], dtype=object))

    @property
    def is_fixed(self) -> bool:
        """Whether the feature takes the same number of bytes in every example."""
        if self.size is None or self.dtype == TEXT:
            return False
        return self.encoding in ("float", "raw") or self.shape == ()

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that `from_json` reads."""
        found: dict[str, Any] = {"dtype": self.dtype, "shape": list(self.shape), "encoding": self.encoding}
        if self.is_image:
            found["is_image"] = True
        if self.names:
            found["names"] = list(self.names)
        if self.unit:
            found["unit"] = self.unit
        return found

    @classmethod
    def from_json(cls, name: str, value: Any) -> "Feature":
        """Return the feature that `to_json` described; the input is not trusted, so it is checked.

        Args:
            name: the name of the feature, for errors.
            value: the result of `to_json`, or a value that a user wrote.

        Raises:
            ConfigError: it is not one.
        """
        known = {"dtype", "shape", "encoding", "is_image", "names", "unit"}
        if not isinstance(value, dict) or not {"dtype", "shape"} <= set(value) <= known:
            raise ConfigError(f"feature {name!r} is {validation.shown(value)}; it must have dtype and shape.")
        if not isinstance(value["shape"], list) or not isinstance(value.get("names", []), list):
            raise ConfigError(f"feature {name!r} is {validation.shown(value)}; its shape and names must be lists.")
        try:
            return cls(
                validation.text("dtype", value["dtype"]),
                tuple(value["shape"]),
                validation.text("encoding", value["encoding"]) if "encoding" in value else "",
                value.get("is_image", False),
                tuple(value.get("names", [])),
                validation.text("unit", value["unit"]) if "unit" in value else "",
            )
        except ConfigError as error:
            raise ConfigError(f"feature {name!r}: {error}", **fields_of(error)) from error


class Schema(Mapping[str, Feature]):
    """Features by name; examples store them in the order of their names' UTF-8 bytes, as TensorFlow's writer does.

    Args:
        features: a `Feature` for each name.

    Raises:
        ConfigError: there is no feature, or a name is empty.

    Example:
        >>> schema = Schema({"image": Feature("uint8", (8, 8)), "label": Feature("int64")})
        >>> schema["image"].encoding, schema["label"].encoding, schema.is_fixed
        ('raw', 'int64', True)
    """

    def __init__(self, features: Mapping[str, Feature]) -> None:
        if not isinstance(features, Mapping):
            raise ConfigTypeError(f"schema is {validation.shown(features)}; it must map names to tfdist.data.Feature.")
        if not 1 <= len(features) <= MOST_FEATURES:
            raise ConfigError(f"schema has {len(features)} features; it must have 1 to {MOST_FEATURES}.")
        for name, feature in features.items():
            validation.text("a feature's name", name)
            try:
                name.encode()
            except UnicodeEncodeError:  # half of a pair of surrogates, which JSON can spell
                raise ConfigError(
                    f"a feature's name is {name!a}; it must be text that UTF-8 can encode.",
                    name="a feature's name",
                    received=name,
                ) from None
            if not isinstance(feature, Feature):
                raise ConfigTypeError(
                    f"feature {name!r} is {validation.shown(feature)}; it must be a tfdist.data.Feature.",
                    name=name,
                    received=validation.shown(feature),
                )
        self._features = {name: features[name] for name in sorted(features, key=str.encode)}

    def __getitem__(self, name: str) -> Feature:
        return self._features[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._features)

    def __len__(self) -> int:
        return len(self._features)

    def __repr__(self) -> str:
        return f"Schema({self._features!r})"

    @property
    def is_fixed(self) -> bool:
        """Whether every example takes the same number of bytes."""
        return all(feature.is_fixed for feature in self.values())

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that `from_json` reads."""
        return {name: feature.to_json() for name, feature in self.items()}

    @classmethod
    def from_json(cls, value: Any) -> "Schema":
        """Return the schema that `to_json` described; the input is not trusted, so it is checked.

        Raises:
            ConfigError: it is not one.
        """
        if not isinstance(value, dict):
            raise ConfigError(f"schema is {validation.shown(value)}; it must be an object of features.")
        return cls({name: Feature.from_json(name, feature) for name, feature in value.items()})


def with_rounding(schema: Any) -> Schema | None:
    """Return a user's schema so that values that do not fit into its float features are rounded."""
    if schema is None:
        return None
    return Schema({name: replace(feature, may_round=True) for name, feature in Schema(schema).items()})


def as_array(value: Any) -> NDArray[Any]:
    """Return a value as an array: of objects where NumPy would make of integers floats that do not equal them."""
    array = np.asarray(value)
    # smaller integers are exact, and objects take 50 times as long
    if array.dtype == np.float64 and isinstance(value, (list, tuple)) and (np.abs(array) >= 2**53).any():
        exact = np.array(value, object)
        return exact if ((exact != array) & ~np.isnan(array)).any() else array
    return array


def feature_of(name: str, value: Any) -> Feature:
    if isinstance(value, (bytes, bytearray, memoryview, str)):
        return Feature(TEXT)
    try:
        array = as_array(value)
    except ValueError:  # lists of several lengths in a list
        array = np.array(None)
    if array.dtype == np.float64 and not hasattr(value, "dtype") and all_fit_float32(array):
        array = array.astype(np.float32)
    if array.dtype.kind in "SUO" and all(isinstance(item, (bytes, str)) for item in array.flat):
        return Feature(TEXT, array.shape)
    if array.dtype.kind == "O" or _dtype_name(array.dtype) not in DTYPES:
        raise ConfigError(
            f"feature {name!r} is {validation.shown(value)} ({type(value).__name__}, dtype {array.dtype}); it must be "
            f"bytes, text, a number, or an array of one of {', '.join(DTYPES[:-1])}.",
            name=name,
            received=validation.shown(value),
        )
    return Feature(_dtype_name(array.dtype), array.shape)


def _dtype_name(dtype: Any) -> str:
    if isinstance(dtype, str):  # NumPy understands many more, some at length
        return dtype
    try:
        return np.dtype(dtype).name
    except TypeError:
        return str(dtype)


def _shape(shape: Any) -> tuple[int | None, ...]:
    if not isinstance(shape, (tuple, list)):
        raise ConfigTypeError(f"shape is {validation.shown(shape)}; it must be a tuple of integers, such as (8, 8).")
    checked = tuple(None if dim is None else validation.integer("shape", dim, minimum=0) for dim in shape)
    if len(checked) > MOST_DIMENSIONS:
        raise ConfigError(f"shape has {len(checked)} dimensions; it may have {MOST_DIMENSIONS}.")
    if None in checked and checked != (None,):
        raise ConfigError(
            f"shape is {checked}; only a list, (None,), may have any length. Store an array of another size flat, with "
            "its shape as a feature of its own."
        )
    if np.prod([dim or 1 for dim in checked], dtype=object) > MOST_ELEMENTS:
        raise ConfigError(f"shape is {checked}; an example may have {MOST_ELEMENTS} values.")
    return checked


def _default_encoding(dtype: str, shape: tuple[int | None, ...]) -> str:
    if dtype == TEXT:
        return "bytes"
    if dtype == "float32":
        return "float"
    if dtype in _INTEGERS and dtype != "uint64" and (shape == () or None in shape):
        return "int64"
    return "raw"


def encodings_of(dtype: str) -> list[str]:
    if dtype == TEXT:
        return ["bytes"]
    found = ["raw"]
    if dtype == "float32":
        found.append("float")
    if dtype in _INTEGERS and dtype != "uint64":
        found.append("int64")
    return found


def layout_of(schema: Schema) -> str:
    if schema.is_fixed:
        return FIXED
    rest = [feature for feature in schema.values() if not feature.is_fixed]
    texts = all(feature.encoding == "bytes" and feature.shape == () for feature in rest)
    fixed = [feature for feature in schema.values() if feature.is_fixed]
    indexed = sum((feature.size or 0) * np.dtype(feature.dtype).itemsize for feature in fixed)
    return EXTENT if texts and 16 * len(rest) + indexed <= _MOST_INDEXED_BYTES else GENERIC


def label_of(schema: Schema, label: str | None) -> str | None:
    """Return the name of the feature to learn: by default "label", or None if there is no such feature."""
    if label is None:
        return "label" if "label" in schema else None
    if label not in schema:
        names = ", ".join(map(repr, schema))
        raise ConfigError(
            f"label is {label!r}; it must be one of the features, which are {names}.", name="label", received=label
        )
    return label


def indexed_values(schema: Schema, layout: str) -> list[str]:
    """Return the features whose values the index has: all fixed ones, or the single integers."""
    if layout == FIXED:
        return []
    fixed = [name for name, feature in schema.items() if feature.is_fixed]
    if layout == EXTENT:
        return fixed
    return [name for name in fixed if schema[name].encoding == "int64" and schema[name].shape == ()]


def texts_of(schema: Schema, layout: str) -> list[str]:
    """Return the features whose place in the payload the index has."""
    return [name for name, feature in schema.items() if not feature.is_fixed] if layout == EXTENT else []


def layouts(schema: Schema) -> list[str]:
    """Return the layouts that examples of a schema may have, the best first.

    Only records of tfdist have the fixed layout: other writers give integers as few bytes as each needs.
    """
    best = layout_of(schema)
    return [best] if best == GENERIC else [best, GENERIC]
