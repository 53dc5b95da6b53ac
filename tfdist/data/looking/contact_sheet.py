"""Pictures of examples side by side in one picture, each with its number and label. Pillow draws it."""

import io
import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfdist.data.looking.shown_values import pixels
from tfdist.errors import ConfigError, MissingDependencyError
from tfdist.planner.plot_style import save

_CELL = 128  # pixels of the longer side
_CAPTION = 16
_GAP = 6
_MOST_COLUMNS = 10
_MOST_LETTERS = 20
#: pictures of a sheet: more would take gigabytes
MOST = 1000


class Drawn(NamedTuple):
    """A picture of a contact sheet: encoded bytes or an array, and the text below it."""

    picture: Any
    caption: str


def write_sheet(drawn: Sequence[Drawn], path: str | os.PathLike[str]) -> int:
    """Write a contact sheet, and return the number of pictures that could not be decoded."""
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise MissingDependencyError(
            f"A contact sheet needs Pillow ({error}). Install it: pip install pillow"
        ) from error
    if len(drawn) > MOST:
        raise ConfigError(
            f"a contact sheet of {len(drawn)} pictures was asked for; one has at most {MOST}. Ask for several.",
            name="count",
            received=len(drawn),
        )
    columns = min(_MOST_COLUMNS, math.ceil(math.sqrt(len(drawn))))
    rows = -(-len(drawn) // columns)
    step = _CELL + _GAP, _CELL + _CAPTION + _GAP
    sheet = Image.new("RGB", (columns * step[0] + _GAP, rows * step[1] + _GAP), "white")
    pen, failed = ImageDraw.Draw(sheet), 0
    for place, (picture, caption) in enumerate(drawn):
        left, top = _GAP + place % columns * step[0], _GAP + place // columns * step[1]
        image = _image(picture)
        if image is None:
            failed += 1
            pen.rectangle((left, top, left + _CELL, top + _CELL), outline="red")
            pen.text((left + 4, top + 4), "cannot be decoded", fill="red")
        else:
            sheet.paste(image, (left + (_CELL - image.width) // 2, top + (_CELL - image.height) // 2))
        shown = caption if len(caption) <= _MOST_LETTERS else caption[: _MOST_LETTERS - 3] + "..."
        pen.text((left, top + _CELL + 2), shown.encode("latin-1", "replace").decode("latin-1"), fill="black")
    save(sheet.save, path)
    return failed


def _image(picture: Any) -> Any:
    """Return a picture scaled into a cell; None if it cannot be decoded."""
    from PIL import Image

    if isinstance(picture, bytes):
        try:
            found: Any = Image.open(io.BytesIO(picture))
            found.draft("RGB", (_CELL, _CELL))  # of a large JPEG, a smaller one is decoded
            found.load()
        except Exception:  # noqa: BLE001 - what Pillow raises about a broken picture is not documented
            return None
        if found.mode.startswith(("I", "F")):  # 16 or 32 bits: Pillow would cut them off
            found = Image.fromarray(grey_values(np.asarray(found)))
        elif found.mode in ("RGBA", "LA", "PA") or "transparency" in found.info:
            found = Image.alpha_composite(Image.new("RGBA", found.size, "white"), found.convert("RGBA"))
    else:
        array = pixels(np.asarray(picture))
        if array is None or not array.size:
            return None
        found = Image.fromarray(grey_values(array[..., 0] if array.shape[2:] == (1,) else array))
    found = found.convert("RGB")
    scale = _CELL / max(found.size)
    size = max(1, round(found.width * scale)), max(1, round(found.height * scale))
    return found.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.BOX)


def grey_values(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return numbers as grey values: bytes unchanged, numbers from 0 to 1 times 255, others scaled to their range."""
    if array.dtype == np.uint8 and array.max() > 1:
        return np.ascontiguousarray(array)
    values = array.astype(np.float64)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    values = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    elif low == high:
        low -= 1.0
    return np.ascontiguousarray(np.round((values - low) / (high - low) * 255), np.uint8)
