"""Which saved state is restored: the newest that is sound, the same on all workers.

The chief decides. Workers that can read what it has chosen do so; else it hands out the bytes.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfdist.checkpoint.store import Checkpoint, Store
from tfdist.training.workers import Workers


@dataclass(frozen=True, kw_only=True)
class Found:
    """A state to go on from.

    Attributes:
        state: JSON.
        arrays: by name.
        source: where it came from, for messages.
    """

    state: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    source: str


def newest(stores: Sequence[tuple[str, Store]], workers: Workers) -> Found | None:
    """Return the newest sound state that the chief can read, on every worker; all must call it.

    Args:
        stores: names for messages and where to look; of equally new ones the first is taken.
        workers: who must agree.
    """
    mine = _newest_of(stores)
    if workers.count == 1:
        return None if mine is None else _found(*mine)
    number, mark = (0, 0) if mine is None else (mine[1].step + 1, int(mine[1].digest[:15], 16))
    seen = workers.gather([number, mark])
    if not seen[0, 0]:
        return None
    if (seen == seen[0]).all() and mine is not None:
        return _found(*mine)
    return _handed_out(None if mine is None or not workers.is_chief else _found(*mine), workers)


def _newest_of(stores: Sequence[tuple[str, Store]]) -> tuple[str, Checkpoint] | None:
    """Look into the stores in the order of what they say they have; the first that is sound is the newest."""
    known = [(peeked[0], -place, name, store) for place, (name, store) in enumerate(stores) if (peeked := store.peek())]
    best: tuple[str, Checkpoint] | None = None
    for step, _, name, store in sorted(known, key=lambda entry: entry[:2], reverse=True):
        if best is not None and best[1].step >= step:
            break
        checkpoint = store.newest()
        if checkpoint is not None and (best is None or checkpoint.step > best[1].step):
            best = name, checkpoint
    return best


def _found(source: str, checkpoint: Checkpoint) -> Found:
    return Found(state=dict(checkpoint.state), arrays=dict(checkpoint.arrays), source=source)


def _handed_out(found: Found | None, workers: Workers) -> Found:
    """Return what the chief has found, on every worker."""
    head, parts = b"", []
    if found is not None:
        about = [(name, array.dtype.name, array.shape) for name, array in found.arrays.items()]
        head = json.dumps([found.state, about, found.source]).encode()
        parts = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in found.arrays.values()]
    state, about, source = json.loads(_bytes_from_chief(np.frombuffer(head, np.uint8), workers).tobytes())
    content = _bytes_from_chief(np.concatenate([np.empty(0, np.uint8), *parts]), workers)
    arrays, at = {}, 0
    for name, dtype, shape in about:
        kind = tf.as_dtype(dtype).as_numpy_dtype
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize
        arrays[name] = content[at : at + size].view(kind).reshape(shape)
        at += size
    return Found(state=state, arrays=arrays, source=source)


def _bytes_from_chief(mine: NDArray[np.uint8], workers: Workers) -> NDArray[np.uint8]:
    size = int(workers.gather([mine.size])[0, 0])
    words = np.zeros(-(-size // 4), np.int32)
    if workers.is_chief:
        words.view(np.uint8)[:size] = mine
    return np.asarray(workers.from_chief(tf.constant(words))).view(np.uint8)[:size]
