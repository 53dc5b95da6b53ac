"""Arrays that travel from one worker to all others, whatever their dtypes: as bytes, by the workers' sums."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfdist.collectives.workers.worker_processes import Workers

_Arrays = Mapping[str, NDArray[Any]]


def from_worker(index: int, workers: Workers, arrays: _Arrays, note: Any) -> tuple[dict[str, NDArray[Any]], Any]:
    """Return what one worker gives, on every worker; all must call it."""
    head, content = b"", np.empty(0, np.uint8)
    if workers.index == index:
        about = [(name, array.dtype.name, array.shape) for name, array in arrays.items()]
        head = json.dumps([note, about]).encode()
        flat = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays.values()]
        content = np.concatenate([content, *flat])
    note, about = json.loads(_bytes_from(index, np.frombuffer(head, np.uint8), workers).tobytes())
    content = _bytes_from(index, content, workers)
    found, at = {}, 0
    for name, dtype, shape in about:
        kind = tf.as_dtype(dtype).as_numpy_dtype
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize
        found[name] = content[at : at + size].view(kind).reshape(shape)
        at += size
    return found, note


def _bytes_from(index: int, mine: NDArray[np.uint8], workers: Workers) -> NDArray[np.uint8]:
    size = int(workers.gather([mine.size])[index, 0])
    words = np.zeros(-(-size // 4), np.int32)
    if workers.index == index:
        words.view(np.uint8)[:size] = mine
    return np.asarray(workers.from_worker(index, tf.constant(words))).view(np.uint8)[:size]
