"""Check whether TensorFlow can decode pictures, in processes of their own.

In the calling process, TensorFlow would start before a strategy is made.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

from tfdist import validation
from tfdist.data.format.schema import Feature, Schema
from tfdist.errors import ConfigError
from tfdist.processes.pool.task_pool import TaskPool

#: the formats that `tf.io.decode_jpeg` reads in every version of TensorFlow; others have to be converted
KEPT = ("JPEG", "PNG", "GIF")
#: bytes of pictures; TensorFlow is loaded in about the time in which as many are decoded
WORTH_A_PROCESS = 256 << 20
_MOST_PROCESSES = 8  # processes
#: returns the problem of each picture, empty if there is none
Decode = Callable[[Sequence[bytes]], list[str]]


class Look(NamedTuple):
    """The result for a picture; `problem` is a predicate, empty for a good picture.

    `is_broken` blames its bytes and not its format; `content` is the picture as PNG where it was converted.
    """

    problem: str = ""
    is_broken: bool = False
    content: bytes | None = None


def format_of(content: bytes) -> str:
    """Return the picture format that the first bytes show; empty if they show none."""
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
    rows = [[value] if feature.shape == () else list(value) for value in values]
    return [[bytes(item) for item in row] for row in rows]


def look_at(contents: Sequence[bytes], convert: bool = False) -> list[Look]:
    """Decode pictures with TensorFlow in this process, which must have been started for this purpose."""
    return [_look(content, convert) for content in contents]


def _look(content: bytes, convert: bool) -> Look:
    kind = format_of(content)
    if not kind:
        return Look(f"is not a picture: it begins with {validation.shown(content[:12])}", is_broken=True)
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
    """Return the message of a TensorFlow error, without the names of ops."""
    lines = str(getattr(error, "message", None) or error).strip().splitlines() or [type(error).__name__]
    said = re.sub(r"\{\{[^}]*\}\}\}?", "", re.sub(r"\[(Op:|\[).*", "", lines[0])).strip(" .")
    return said or type(error).__name__


@cache
def _tensorflow() -> Any:
    """Import TensorFlow with its log silenced: problems of pictures are returned instead."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")  # pictures are decoded by processors
    return tf


@contextmanager
def decoding(schema: Schema, size: int) -> Iterator[Decode]:
    """Yield a function that decodes pictures in other processes, for any number of threads; `size` is the bytes in all.

    BMP and WebP count as good here.
    """
    if not any(feature.encoding == "bytes" for feature in schema.values()):
        raise ConfigError(
            f"decode is for pictures, and {', '.join(map(repr, schema))} hold none. Leave it out.",
            name="decode",
            received=True,
        )

    def decode(contents: Sequence[bytes]) -> list[str]:
        looks = pool.ask(look_at, list(contents), True)
        return [look.problem if look.is_broken else "" for look in looks]

    with TaskPool(max(1, min(_MOST_PROCESSES, len(os.sched_getaffinity(0)), size // WORTH_A_PROCESS))) as pool:
        yield decode
