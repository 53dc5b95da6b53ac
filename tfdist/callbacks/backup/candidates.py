"""Which saved state is restored: the newest that is sound, the same on all workers.

The chief decides. Workers that can read what it has chosen do so; else it hands out the bytes.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from tfdist.callbacks.backup import carrying
from tfdist.checkpoint.manifest import Manifest
from tfdist.checkpoint.store import Checkpoint, Store
from tfdist.training.multi_worker.workers import Workers

_ARRAYS, _SHARDS = "arrays:", "shards:"  # what names begin with on their way


@dataclass(frozen=True, kw_only=True)
class Found:
    """A state to go on from.

    Attributes:
        state: JSON.
        arrays: by name.
        shards: what was asked for of the parts of workers, by name.
        source: where it came from, for messages.
    """

    state: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    shards: dict[str, NDArray[Any]]
    source: str


def newest(
    stores: Sequence[tuple[str, Store]], workers: Workers, *, needed: Callable[[Manifest], Container[int]]
) -> Found | None:
    """Return the newest sound state that the chief can read, on every worker; all must call it.

    Args:
        stores: names for messages and where to look; of equally new ones the first is taken.
        workers: who must agree.
        needed: which workers' parts of a state this one goes on with; it looks at these alone.
    """
    mine = _newest_of(stores, needed)
    if workers.count == 1:
        return None if mine is None else _found(*mine)
    number, mark = (0, 0) if mine is None else (mine[1].step + 1, int(mine[1].digest[:15], 16))
    seen = workers.gather([number, mark])
    if not seen[0, 0]:
        return None
    if (seen == seen[0]).all() and mine is not None:
        return _found(*mine)
    # A worker does not see what the chief has found, or its part of it is damaged: now the chief looks at all parts.
    mine = _newest_of(stores, None) if workers.is_chief else None
    if not int(workers.gather([mine is not None])[0, 0]):
        return None
    return _handed_out(None if mine is None else _found(*mine), workers)


def _newest_of(
    stores: Sequence[tuple[str, Store]], needed: Callable[[Manifest], Container[int]] | None
) -> tuple[str, Checkpoint] | None:
    """Look into the stores in the order of what they say they have; the first that is sound is the newest."""
    known = [(peeked[0], -place, name, store) for place, (name, store) in enumerate(stores) if (peeked := store.peek())]
    best: tuple[str, Checkpoint] | None = None
    for step, _, name, store in sorted(known, key=lambda entry: entry[:2], reverse=True):
        if best is not None and best[1].step >= step:
            break
        checkpoint = store.newest(needed)
        if checkpoint is not None and (best is None or checkpoint.step > best[1].step):
            best = name, checkpoint
    return best


def _found(source: str, checkpoint: Checkpoint) -> Found:
    shards = {name: array for part in checkpoint.parts.values() for name, array in part.items()}
    return Found(state=dict(checkpoint.state), arrays=dict(checkpoint.arrays), shards=shards, source=source)


def _handed_out(found: Found | None, workers: Workers) -> Found:
    """Return what the chief has found, on every worker."""
    arrays, note = dict[str, NDArray[Any]](), []
    if found is not None:
        arrays = {f"{_ARRAYS}{name}": array for name, array in found.arrays.items()}
        arrays |= {f"{_SHARDS}{name}": array for name, array in found.shards.items()}
        note = [found.state, found.source]
    arrays, (state, source) = carrying.from_worker(0, workers, arrays, note)

    def of(kind: str) -> dict[str, NDArray[Any]]:
        return {name.removeprefix(kind): array for name, array in arrays.items() if name.startswith(kind)}

    return Found(state=state, arrays=of(_ARRAYS), shards=of(_SHARDS), source=source)
