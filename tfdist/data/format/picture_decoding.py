"""Check whether TensorFlow can decode an image.

TensorFlow decodes in processes of their own: it would start in the one that asks, where a strategy has to come first.
"""

import os
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from tfdist import validation
from tfdist.data.format.schema import Feature

#: what `tf.io.decode_jpeg` reads in every version of TensorFlow; others have to be converted
KEPT = ("JPEG", "PNG", "GIF")
#: bytes of pictures; TensorFlow is loaded in about the time in which as many are decoded
WORTH_A_PROCESS = 256 << 20


class Look(NamedTuple):
    """What a picture turned out to be.

    Attributes:
        problem: why it cannot be kept, a predicate; empty if it can.
        is_broken: whether its bytes are at fault, and not its format.
        content: the picture as PNG, where it was converted.
    """

    problem: str = ""
    is_broken: bool = False
    content: bytes | None = None


def format_of(content: bytes) -> str:
    """Return which picture format the bytes begin like, empty for none.

    Example:
        >>> format_of(bytes([0xFF, 0xD8, 0xFF, 0xE0])), format_of(b"text")
        ('JPEG', '')
    """
    if content.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if content.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    if content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        return "WebP"
    return "BMP" if content.startswith(b"BM") and len(content) > 26 else ""


def pictures_of(feature: Feature, values: Sequence[Any]) -> list[list[bytes]]:
    """Return the pictures of each example, from the values of a feature that has one or several."""
    rows = [[value] if feature.shape == () else list(value) for value in values]
    return [[bytes(item) for item in row] for row in rows]


def look_at(contents: Sequence[bytes], convert: bool = False) -> list[Look]:
    """Decode pictures by TensorFlow, here: this process is to be one that was started for it."""
    return [_look(content, convert) for content in contents]


def _look(content: bytes, convert: bool) -> Look:
    kind = format_of(content)
    if not kind:
        return Look(f"is no picture: it begins with {validation.shown(content[:12])}", is_broken=True)
    if kind not in KEPT and not convert:
        return Look(f"is a {kind} picture, and only {', '.join(KEPT)} can be read by every version of TensorFlow")
    tf = _tensorflow()
    try:
        if kind in KEPT:
            tf.io.decode_jpeg(content, channels=3)
            return Look()
        pixels = tf.io.decode_image(content, expand_animations=False)
        return Look(content=bytes(tf.io.encode_png(pixels).numpy()))
    except (tf.errors.OpError, ValueError) as error:
        return Look(f"cannot be decoded by TensorFlow {tf.__version__}: {cause_of(error)}", is_broken=True)


def cause_of(error: Exception) -> str:
    """Return what an error of TensorFlow says, without the names of its ops.

    Example:
        >>> cause_of(ValueError("{{node DecodeJpeg}} Invalid JPEG data [Op:DecodeJpeg] name:"))
        'Invalid JPEG data'
    """
    lines = str(getattr(error, "message", None) or error).strip().splitlines() or [type(error).__name__]
    said = re.sub(r"\{\{[^}]*\}\}\}?", "", re.sub(r"\[(Op:|\[).*", "", lines[0])).strip(" .")
    return said or type(error).__name__


@cache
def _tensorflow() -> Any:
    """Return TensorFlow, which has nothing to say in such a process: what is wrong with a picture is returned."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")  # pictures are decoded by processors
    return tf
