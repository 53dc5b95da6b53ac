"""Sharded slots in files: saved whole, as one device has them, whatever part a worker holds.

Gathering needs every worker, so workers first meet by notes, which break nothing if a worker does not come.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.checkpoint.state_resizing import ShardedState
from tfdist.collectives import traced
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.errors import DeadlineError
from tfdist.gradients.sharding.variable_parts import Everywhere, Stretch

_ATTRIBUTE = "tfdist_part"
_PATIENCE_SECONDS = 60.0
_MOST_AXES = 8


def note_part(variable: keras.Variable, part: Any) -> None:
    """Record this worker's part of a variable: a `Part`, or "owned" if its size shows the owner."""
    vars(variable)[_ATTRIBUTE] = part


def part_of(variable: keras.Variable) -> Any:
    """Return the part that `note_part` recorded; None if every worker has the whole variable."""
    part = vars(variable).get(_ATTRIBUTE)
    return None if isinstance(part, Everywhere) else part


def states(name: str, variables: Sequence[keras.Variable]) -> list[ShardedState]:
    """Return the states that a backup keeps for each worker: the variables of which it has a part."""
    parts = {id(one): part_of(one) for one in variables}
    divided = [one for one in variables if isinstance(parts[id(one)], Stretch)]
    owned = [one for one in variables if parts[id(one)] is not None and not isinstance(parts[id(one)], Stretch)]
    return [
        ShardedState(name, divided, rule="concatenate", axis="worker"),
        ShardedState(name, owned, rule="owned", axis="worker"),
    ]


def whole_value(workers: Workers, variable: keras.Variable) -> Any:
    """Return a variable as one device has it, an array; every worker must call this."""
    part, own = part_of(variable), tf.convert_to_tensor(tf_strategies.primary(variable.value))
    if part is None:
        return own.numpy()
    with workers.waiting("the gathering of sharded slots"), tf.device("/device:CPU:0"):
        if isinstance(part, Stretch):
            rows = own if workers.count == 1 else workers.collective.all_gather(own, key=traced.EAGER)
            return rows.numpy().reshape(part.whole)
        shape = list(own.shape)
        table = workers.gather([len(shape), *shape, *[0] * (_MOST_AXES - len(shape))])
        shapes = [tuple(row[1 : 1 + row[0]].tolist()) for row in table]
        owner = next((index for index, one in enumerate(shapes) if math.prod(one)), 0)
        value = own if owner == workers.index else tf.zeros(shapes[owner], own.dtype)
        return workers.from_worker(owner, value).numpy()


@contextlib.contextmanager
def gathered(workers: Workers, optimizers: Sequence[Any], values: dict[int, Any]) -> Iterator[None]:
    """Hold the whole values of optimizers' variables, by their ids, during the block; every worker must enter it."""
    needed = {id(one): one for optimizer in optimizers for one in optimizer.variables if part_of(one) is not None}
    if needed:
        _require_all(workers)
    try:
        values.update({key: whole_value(workers, one) for key, one in needed.items()})
        yield
    finally:
        for key in needed:
            values.pop(key, None)


def save(optimizer: Any, hold: Callable[[Sequence[Any]], Any], values: dict[int, Any], store: Any) -> None:
    """Write an optimizer's variables to a saved model, as one device has them."""
    places = {str(place): id(one) for place, one in enumerate(optimizer.variables) if part_of(one) is not None}
    here = all(key in values for key in places.values())
    with contextlib.nullcontext() if here else hold([optimizer]):
        saved: dict[str, Any] = {}
        type(optimizer).save_own_variables(optimizer, saved)
        saved.update({place: values[key] for place, key in places.items()})
        for place, value in saved.items():
            store[place] = value


def load(optimizer: Any, store: Any) -> None:
    """Read this worker's parts of an optimizer's variables from a saved model."""
    type(optimizer).load_own_variables(optimizer, _PartsOfStore(optimizer, store))


class _PartsOfStore:
    """A view of a store of whole values that returns this worker's parts."""

    def __init__(self, optimizer: Any, store: Any) -> None:
        self._variables = optimizer.variables
        self._store = store

    def keys(self) -> list[str]:
        return list(self._store.keys())

    def __getitem__(self, name: str) -> Any:
        whole = self._store[name]
        place = int(name) if name.isdigit() else len(self._variables)
        part = part_of(self._variables[place]) if place < len(self._variables) else None
        return whole if part is None else _taken(part, self._variables[place], np.asarray(whole))


def _taken(part: Any, variable: keras.Variable, whole: Any) -> Any:
    if isinstance(part, Stretch):
        begin, end = part.bounds
        return whole.reshape(-1)[begin:end]
    return whole if math.prod(variable.shape) else np.zeros(variable.shape, whole.dtype)


def _require_all(workers: Workers) -> None:
    absent = workers.first_absent("tfdist/sharded", _PATIENCE_SECONDS)
    if absent is not None:
        raise DeadlineError(
            f"worker {workers.index} saves an optimizer whose slots are sharded, and worker {absent} has not come "
            f"within {_PATIENCE_SECONDS:.0f} s with its part. Call model.save() on every worker, not on the chief "
            "alone (the chief writes); a callback must save on all of them."
        )
