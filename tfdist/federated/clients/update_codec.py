"""Compression of clients' updates by the codecs that compress gradients.

Arrays with two or more axes travel together as one row of numbers, encoded by the client and decoded by the server.
Biases, scales and statistics have few numbers, and travel whole.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfdist.compression import Codec, ErrorFeedback, RowCodec, Whole, one_way
from tfdist.compression.codecs.casting import Rounded
from tfdist.compression.registry import codec_of
from tfdist.errors import ConfigError
from tfdist.federated.algorithms.algorithm import WEIGHTS
from tfdist.federated.client_update import Arrays

ROW = "encoded"  # the name of the row in a message
MEMORY = "memory/row"  # what was left out of a client's updates, in its state


class UpdateCodec:
    """An encoder of updates with these arrays; without compression, nothing changes.

    ``has_memory``: whether a client keeps what its updates left out, and adds it to the next one. ``shown``: the name
    of the codec in messages; None without compression.
    """

    def __init__(self, compression: str | Codec | None, like: Arrays) -> None:
        codec = codec_of("none" if compression is None else compression)
        self.has_memory = isinstance(codec, ErrorFeedback)
        self.shown = None if compression in (None, "none") else codec.shown
        self._codec = codec.codec if isinstance(codec, ErrorFeedback) else codec
        goes = isinstance(self._codec, RowCodec | Whole) or _only_rounds(self._codec)
        if not goes or codec.start_after:
            what = "start_after counts updates of gradients" if goes else f"{codec.shown} needs the answers of others"
            raise ConfigError(
                f"compression is {compression!r}; a client's update goes one way, and {what}. Take "
                '"float16", "bfloat16", "qsgd", "natural", "terngrad", "signsgd" or "topk".',
                name="compression",
                received=compression,
            )
        self._shapes = {
            name: array.shape
            for name, array in like.items()
            if name.startswith(WEIGHTS) and array.ndim > 1 and not isinstance(self._codec, Whole)
        }
        self._whole = {name: array for name, array in like.items() if name not in self._shapes}
        self._spec = tf.TensorSpec([sum(map(math.prod, self._shapes.values()))], tf.float32)

    def encode(self, arrays: Arrays, state: Arrays) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
        """Return the arrays that a client sends, and those that it keeps of its update in addition to its state."""
        if not self._shapes:
            return dict(arrays), {}
        row = np.concatenate([arrays[name].reshape(-1).astype(np.float32, copy=False) for name in self._shapes])
        if self.has_memory and MEMORY in state:
            row = row + state[MEMORY]
        sent = one_way.sent(self._codec, tf.constant(row))
        words = sent.numpy() if sent.dtype != tf.bfloat16 else tf.bitcast(sent, tf.uint16).numpy()
        kept = {}
        if self.has_memory:
            left = row - one_way.received(self._codec, sent, self._spec).numpy()
            kept[MEMORY] = np.where(np.isfinite(left), left, np.float32(0))
        return {ROW: words, **{name: arrays[name] for name in self._whole}}, kept

    def decode(self, sent: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Return the update that a client has sent; raise ConfigError if it cannot be an update."""
        if not self._shapes:
            return dict(sent)
        words = sent.get(ROW)
        wanted = self._wire()
        if not isinstance(words, np.ndarray) or (words.shape, words.dtype) != wanted:
            got = f"{words.dtype} {words.shape}" if isinstance(words, np.ndarray) else type(words).__name__
            raise ConfigError(
                f"an encoded update is {got}; the round's is {wanted[1]} {wanted[0]}. Server and client must run the "
                "same application.",
                name=ROW,
                received=got,
            )
        wire = tf.constant(words)
        if _only_rounds(self._codec):
            wire = tf.bitcast(wire, self._codec.wire_dtype)  # type: ignore[attr-defined]
        try:
            row = one_way.received(self._codec, wire, self._spec).numpy()
        except tf.errors.InvalidArgumentError as error:  # places beyond the row
            raise ConfigError("an encoded update cannot be decoded.", name=ROW, received="words") from error
        found = {name: array for name, array in sent.items() if name != ROW}
        ends = np.cumsum([math.prod(shape) for shape in self._shapes.values()])[:-1]
        for (name, shape), part in zip(self._shapes.items(), np.split(row, ends), strict=True):
            found[name] = part.reshape(shape)
        return found

    @property
    def compresses(self) -> bool:
        return not isinstance(self._codec, Whole)

    @property
    def sent_bytes(self) -> int:
        """The bytes of an update, without headers."""
        whole = sum(array.size * max(array.itemsize, 4) for array in self._whole.values())  # changes are wide
        if not self._shapes:
            return whole
        shape, dtype = self._wire()
        return whole + math.prod(shape) * dtype.itemsize

    def _wire(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return the shape and dtype of an encoded row."""
        elements = int(self._spec.shape[0])
        if _only_rounds(self._codec):
            is_half = self._codec.wire_dtype == tf.float16  # type: ignore[attr-defined]
            return (elements,), np.dtype(np.float16 if is_half else np.uint16)
        assert isinstance(self._codec, RowCodec)
        return one_way.wire_shape(self._codec, elements), np.dtype(np.int32)


def _only_rounds(codec: Codec) -> bool:
    return isinstance(codec, Rounded) and isinstance(codec.codec, Whole)
