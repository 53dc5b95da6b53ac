"""Descriptions of an example's values, in a few words and as JSON. No TensorFlow."""

import math
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.format.picture_decoding import format_of
from tfdist.data.format.schema import TEXT, Feature

_MOST_VALUES = 8  # of an array that are shown one by one
_MOST_TEXT = 200  # characters on a terminal
_FIRST_BYTES = 16
_JPEG_SIZES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # markers that a picture's size follows


def described(feature: Feature, value: Any) -> dict[str, Any]:
    """Return a description of a value for programs; it fits into JSON."""
    if feature.dtype == TEXT:
        if feature.shape == ():
            return _bytes(bytes(value))
        items = np.asarray(value, object)
        texts = [_bytes(bytes(item)) for item in items.reshape(-1)[:_MOST_VALUES]]
        return {"dtype": TEXT, "shape": list(items.shape), "values": texts}
    array = np.asarray(value)
    found: dict[str, Any] = {"dtype": feature.dtype, "shape": list(array.shape)}
    if array.shape == ():
        found["value"] = plain(array.item())
        if (name := class_name(feature, array.item())) is not None:
            found["name"] = name
    else:
        there = array[~np.isnan(array)] if array.dtype.kind == "f" else array
        found["min"], found["max"] = (
            (plain(v.item()) for v in (there.min(), there.max())) if there.size else (None,) * 2
        )
        if array.size > there.size:
            found["nan"] = int(array.size - there.size)
        if array.size <= _MOST_VALUES:
            found["values"] = [plain(item) for item in array.reshape(-1).tolist()]
    if feature.unit:
        found["unit"] = feature.unit
    return found


def plain(value: Any) -> Any:
    """Return a number for JSON; NaN and infinite numbers become texts."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def class_name(feature: Feature, value: Any) -> str | None:
    """Return the name of a class; None if its feature has no names."""
    is_number = isinstance(value, (int, np.integer))
    return feature.names[int(value)] if is_number and 0 <= int(value) < len(feature.names) else None


def label_text(feature: Feature, value: Any) -> str:
    """Return a label in a word: its name, its text, or its numbers."""
    if feature.dtype == TEXT:
        items = [value] if feature.shape == () else list(np.asarray(value, object).reshape(-1))
        return ", ".join(bytes(item).decode(errors="replace") for item in items)
    numbers = np.asarray(value).reshape(-1).tolist()
    return ", ".join(class_name(feature, number) or f"{number:.6g}" for number in numbers)


def _bytes(content: bytes) -> dict[str, Any]:
    if kind := format_of(content):
        size = picture_size(content)
        return {"picture": kind, "bytes": len(content), **({"size": list(size)} if size else {})}
    try:
        return {"text": content.decode(), "bytes": len(content)}
    except UnicodeDecodeError:
        return {"bytes": len(content), "begins": content[:_FIRST_BYTES].hex()}


def sentence(found: dict[str, Any]) -> str:
    """Return a result of `described` as a line for a terminal."""
    if "picture" in found:
        size = f", {found['size'][0]} x {found['size'][1]}" if "size" in found else ""
        return f"{found['picture']}{size}, {found['bytes']} bytes"
    if "text" in found:
        text = found["text"]
        more = f" ... ({len(text)} characters)" if len(text) > _MOST_TEXT else ""
        return repr(text[:_MOST_TEXT]) + more
    if "begins" in found:
        return f"{found['bytes']} bytes, {found['begins']}{'...' * (found['bytes'] > _FIRST_BYTES)}"
    unit = f" {found['unit']}" if "unit" in found else ""
    if "value" in found:
        return _number(found["value"]) + unit + (f" ({found['name']})" if "name" in found else "")
    shape = str(tuple(found["shape"]))
    if found["dtype"] == TEXT:
        items = ", ".join(map(sentence, found["values"]))
        return f"{TEXT} {shape}: {items}{', ...' * (math.prod(found['shape']) > len(found['values']))}"
    if found["min"] is None:
        what = ": all NaN" if found.get("nan") else ""
        return f"{found['dtype']} {shape}{what}"
    nans = f", {found['nan']} NaN" if "nan" in found else ""
    values = ": " + ", ".join(map(_number, found["values"])) if "values" in found else ""
    return f"{found['dtype']} {shape}, {_number(found['min'])} to {_number(found['max'])}{unit}{nans}{values}"


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def picture_size(content: bytes) -> tuple[int, int] | None:
    """Return width and height from the first bytes of a PNG, GIF, BMP or JPEG; None if they do not have them."""
    try:
        kind = format_of(content)
        if kind == "PNG":
            return struct.unpack(">II", content[16:24])
        if kind == "GIF":
            return struct.unpack("<HH", content[6:10])
        if kind == "BMP":
            width, height = struct.unpack("<ii", content[18:26])
            return width, abs(height)
        place = 2
        while kind == "JPEG":
            _, marker, size = struct.unpack(">BBH", content[place : place + 4])
            if marker in _JPEG_SIZES:
                height, width = struct.unpack(">HH", content[place + 5 : place + 9])
                return width, height
            place += 2 + size
    except struct.error:
        pass
    return None


def is_picture(feature: Feature, value: Any) -> bool:
    """Return whether a value can be drawn: an encoded picture, or a 2-D array, perhaps with 1, 3 or 4 channels."""
    if feature.dtype == TEXT:
        return feature.shape == () and bool(feature.is_image or format_of(bytes(value)))
    return pixels(np.asarray(value)) is not None


def pixels(array: NDArray[Any]) -> NDArray[Any] | None:
    """Return a picture's array with its channels, if any, last; None if the array is not a picture."""
    if array.ndim == 3 and array.shape[-1] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        array = np.moveaxis(array, 0, -1)
    is_one = array.ndim == 2 or (array.ndim == 3 and array.shape[-1] in (1, 3, 4))
    return array if is_one and min(array.shape[:2]) > 1 else None
