"""The choice of the saved state to restore: the newest sound one, the same on all workers.

The chief decides, unless another host holds a newer state. Workers read the chosen state if they can; else a worker
that has it sends the bytes.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from tfdist.callbacks.backup import joint_saving
from tfdist.checkpoint.checkpoint_manifest import Manifest
from tfdist.checkpoint.checkpoint_store import Checkpoint, Store
from tfdist.collectives.workers.worker_processes import Workers

_ARRAYS, _SHARDS = "arrays:", "shards:"  # what names begin with on their way

_Place = tuple[str, Store]  # the name is for messages
_Sound = tuple[str, Checkpoint]  # and the name of where it is
_Needed = Callable[[Manifest], Container[int]] | None


@dataclass(frozen=True, kw_only=True)
class Found:
    """A state to resume from: JSON, arrays, the requested parts of workers (`shards`), and its source for messages."""

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
    """Return the newest sound state, on every worker; all workers must call it.

    It is the newest state that the chief can read, unless the host of another worker holds a newer one in memory, which
    is so if the chief's host was lost.
    """
    places = _Places(own=held[:1], copies=held[1:], backup=backup, is_ours=is_ours)
    mine = places.newest(needed)
    if workers.count == 1:
        return None if mine is None else _found(*mine)
    offered = places.offered(mine, needed) if places.copies and not workers.is_chief else None
    number, mark = (0, 0) if mine is None else (mine[1].step + 1, int(mine[1].digest[:15], 16))
    seen = workers.gather([number, mark, 0 if offered is None else offered[1].step + 1])
    giver = int(seen[:, 2].argmax())
    if seen[giver, 2] > seen[0, 0]:
        found = _given(giver, workers, places.held)
        if found is not None:
            return found
    if not seen[0, 0]:
        return None
    if (seen[:, :2] == seen[0, :2]).all() and mine is not None:
        return _found(*mine)
    return _given(0, workers, places.newest)  # a worker does not see what the chief has, or its part is damaged


@dataclass(frozen=True, kw_only=True)
class _Places:
    """The places in which one worker looks for saved states; None for `needed` means the parts of all workers."""

    own: Sequence[_Place]
    copies: Sequence[_Place]
    backup: _Place
    is_ours: Callable[[Mapping[str, Any]], bool]

    def newest(self, needed: _Needed) -> _Sound | None:
        """Return the newest state that this worker can resume from by itself."""
        return _newer(_newest_of([*self.own, self.backup], needed), _newest_of(self.copies, needed, self.is_ours))

    def held(self, needed: _Needed) -> _Sound | None:
        """Return the newest state that is held in memory and belongs to this training."""
        return _newer(*(_newest_of(some, needed, self.is_ours) for some in (self.own, self.copies)))

    def offered(self, mine: _Sound | None, needed: _Needed) -> _Sound | None:
        """Return a state that this worker can give to others because the chief cannot see it."""
        return mine if mine is not None and mine[0] != self.backup[0] else self.held(needed)


def _newer(one: _Sound | None, other: _Sound | None) -> _Sound | None:
    """Return the newer of two states; of equally new ones the first."""
    if one is None or other is None:
        return one or other
    return other if other[1].step > one[1].step else one


def _newest_of(
    stores: Sequence[_Place], needed: _Needed, is_ours: Callable[[Mapping[str, Any]], bool] = lambda state: True
) -> _Sound | None:
    """Return the newest sound state in the stores, which are searched from the newest step on."""
    known = [(peeked[0], -place, name, store) for place, (name, store) in enumerate(stores) if (peeked := store.peek())]
    best: _Sound | None = None
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


def _given(giver: int, workers: Workers, newest_of: Callable[[_Needed], _Sound | None]) -> Found | None:
    """Return the state of one worker, on every worker; None if a part of it is not sound; all workers must call it."""
    sound = newest_of(None) if workers.index == giver else None
    if not int(workers.gather([sound is not None])[giver, 0]):
        return None
    arrays, note = dict[str, NDArray[Any]](), []
    if sound is not None:
        found = _found(*sound)
        arrays = {f"{_ARRAYS}{name}": array for name, array in found.arrays.items()}
        arrays |= {f"{_SHARDS}{name}": array for name, array in found.shards.items()}
        note = [found.state, found.source]
    arrays, (state, source) = joint_saving.from_worker(giver, workers, arrays, note)

    def of(kind: str) -> dict[str, NDArray[Any]]:
        return {name.removeprefix(kind): array for name, array in arrays.items() if name.startswith(kind)}

    return Found(state=state, arrays=of(_ARRAYS), shards=of(_SHARDS), source=source)
