"""Which saved state is restored: the newest that is sound, the same on all workers.

The chief decides, unless another host holds a newer state. Workers that can read what is chosen do so; else who has it
hands out the bytes.
"""

from collections.abc import Callable, Container, Mapping, Sequence
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
    held: Sequence[tuple[str, Store]],
    backup: tuple[str, Store],
    workers: Workers,
    *,
    needed: Callable[[Manifest], Container[int]],
    is_ours: Callable[[Mapping[str, Any]], bool],
) -> Found | None:
    """Return the newest sound state, on every worker; all must call it.

    It is the newest that the chief can read, unless another worker's host holds a newer one in memory: that of a chief
    whose host was lost.

    Args:
        held: names for messages and stores in memory, the own one first; of equally new ones the first is taken.
        backup: likewise, of the backups.
        workers: who must agree.
        needed: which workers' parts of a state this one goes on with; it looks at these alone.
        is_ours: whether a state is of the training that begins; of what is held, others are passed over.
    """
    own, others = held[:1], held[1:]
    copied = _newest_of(others, needed, is_ours)
    mine = _newer(_newest_of([*own, backup], needed), copied)
    if workers.count == 1:
        return None if mine is None else _found(*mine)
    offered = mine
    if not others or workers.is_chief:
        offered = None
    elif mine is not None and mine[0] == backup[0]:
        offered = _newer(_newest_of(own, needed, is_ours), copied)
    number, mark = (0, 0) if mine is None else (mine[1].step + 1, int(mine[1].digest[:15], 16))
    seen = workers.gather([number, mark, 0 if offered is None else offered[1].step + 1])
    giver = int(seen[:, 2].argmax())
    if seen[giver, 2] > seen[0, 0]:
        if workers.index == giver:
            offered = _newer(_newest_of(own, None, is_ours), _newest_of(others, None, is_ours))
        else:
            offered = None
        if int(workers.gather([offered is not None])[giver, 0]):  # every part of it is sound
            return _handed_out(None if offered is None else _found(*offered), workers, giver)
    if not seen[0, 0]:
        return None
    if (seen[:, :2] == seen[0, :2]).all() and mine is not None:
        return _found(*mine)
    # A worker does not see what the chief has found, or its part of it is damaged: now the chief looks at all parts.
    mine = _newer(_newest_of([*own, backup], None), _newest_of(others, None, is_ours)) if workers.is_chief else None
    if not int(workers.gather([mine is not None])[0, 0]):
        return None
    return _handed_out(None if mine is None else _found(*mine), workers, 0)


def _newer(one: tuple[str, Checkpoint] | None, other: tuple[str, Checkpoint] | None) -> tuple[str, Checkpoint] | None:
    """Return the newer of two; of equally new ones the first."""
    if one is None or other is None:
        return one or other
    return other if other[1].step > one[1].step else one


def _newest_of(
    stores: Sequence[tuple[str, Store]],
    needed: Callable[[Manifest], Container[int]] | None,
    is_ours: Callable[[Mapping[str, Any]], bool] = lambda state: True,
) -> tuple[str, Checkpoint] | None:
    """Look into the stores in the order of what they say they have; the first that is sound is the newest."""
    known = [(peeked[0], -place, name, store) for place, (name, store) in enumerate(stores) if (peeked := store.peek())]
    best: tuple[str, Checkpoint] | None = None
    for step, _, name, store in sorted(known, key=lambda entry: entry[:2], reverse=True):
        if best is not None and best[1].step >= step:
            break
        checkpoint = store.newest(needed)
        if checkpoint is None or not is_ours(checkpoint.state):
            continue
        if best is None or checkpoint.step > best[1].step:
            best = name, checkpoint
    return best


def _found(source: str, checkpoint: Checkpoint) -> Found:
    shards = {name: array for part in checkpoint.parts.values() for name, array in part.items()}
    return Found(state=dict(checkpoint.state), arrays=dict(checkpoint.arrays), shards=shards, source=source)


def _handed_out(found: Found | None, workers: Workers, giver: int) -> Found:
    """Return what one worker has found, on every worker."""
    arrays, note = dict[str, NDArray[Any]](), []
    if found is not None:
        arrays = {f"{_ARRAYS}{name}": array for name, array in found.arrays.items()}
        arrays |= {f"{_SHARDS}{name}": array for name, array in found.shards.items()}
        note = [found.state, found.source]
    arrays, (state, source) = carrying.from_worker(giver, workers, arrays, note)

    def of(kind: str) -> dict[str, NDArray[Any]]:
        return {name.removeprefix(kind): array for name, array in arrays.items() if name.startswith(kind)}

    return Found(state=state, arrays=of(_ARRAYS), shards=of(_SHARDS), source=source)
