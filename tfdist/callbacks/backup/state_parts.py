"""The parts of a training's state that differ between workers: state of replicas, and weights cut over a mesh.

State of which every replica or worker has its own is restored on any number of them. Its arrays are named after shard
and variable, as in ``replica/3/variable/dense/kernel/sum``, so that names are different in all parts.

A part of a cut weight is named after the whole's shape, the part's bounds and the variable, as in
``cut/4,6/0:4,3:6/variable/dense/kernel``. A single pair of bounds applies to the flattened whole; a pair after an @, as
in ``0:4,3:6@0:6``, to the flattened part. So parts make a whole wherever they were cut, and a training resumes with
another mesh, other layouts, another number of workers, or on one device.
"""

import logging
from collections.abc import Collection, Mapping
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from tfdist.callbacks.backup.state_names import Held, variables_of
from tfdist.checkpoint.checkpoint_manifest import Manifest
from tfdist.checkpoint.state_resizing import DOES, ShardedState, resharded
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compat.tensorflow import tensor_arrays
from tfdist.compat.tensorflow.meshes import sharded_variable
from tfdist.errors import ConfigError
from tfdist.validation import counted

_logger = logging.getLogger("tfdist")
_Array = NDArray[Any]
CUT = "cut"  # the key of a state that says that variables are in parts, which only all workers' parts together have
COUNTS = "shards"  # the key of a state that says how many replicas and workers there were; older ones have none
_KIND = "cut"


class Shards:
    """This worker's part of the state that is in shards."""

    def __init__(self, model: keras.Model, workers: Workers) -> None:
        self._model = model
        self._workers = workers
        self._held = Held(model, self._own)
        self._counts: dict[str, int] = {}

    @property
    def exist(self) -> bool:
        """Whether this training has state in shards; the same on all workers, also before it has variables."""
        return bool(variables_of(self._model).sharded)

    @property
    def names(self) -> set[str]:
        """The names of the variables that are in shards."""
        return {name for _, name, _ in self._variables()}

    def counts(self) -> dict[str, int]:
        """Return the number of shards by axis, which is saved with the state."""
        if not self._counts:
            found = [len(self._indices(state, one)) for state, _, one in self._variables() if state.axis == "replica"]
            local = max(found, default=_local_replicas(self._model, self._workers))
            self._counts = {"replica": self._workers.count * local, "worker": self._workers.count}
        return self._counts

    def capture(self) -> dict[str, _Array]:
        return self._held.capture()

    def _own(self) -> dict[str, Any]:
        found = {}
        for state, name, variable in self._variables():
            for index, copy in zip(self._indices(state, variable), tf_strategies.copies(variable.value), strict=False):
                found[_key(state, index, name)] = copy
        return found

    def needed(self, manifest: Manifest) -> Collection[int]:
        """Return the indices of the workers whose parts of a checkpoint this worker needs."""
        counts = {"replica": self._workers.count * _local_replicas(self._model, self._workers)}
        same = manifest.parts == self._workers.count and not manifest.state.get(CUT)
        same = same and manifest.state.get(COUNTS, {}).get("replica") == counts["replica"]
        return (self._workers.index,) if same else range(manifest.parts)

    def restore(
        self,
        counts: Mapping[str, int],
        arrays: Mapping[str, _Array],
        *,
        source: str,
        only: Mapping[str, keras.Variable] | None = None,
        tell: bool = True,
    ) -> None:
        """Restore the state of this worker's shards, or only of the variables that are named."""
        among = None if only is None else {id(variable) for variable in only.values()}
        _require_same(self.names, {key.split("/", 2)[2] for key in arrays}, source)
        told = set()
        for state, name, variable in self._variables():
            if among is not None and id(variable) not in among:
                continue
            old, own = counts[state.axis], self._indices(state, variable)
            total = len(own) * self._workers.count
            strategy = self._model.distribute_strategy
            # on a mesh it may belong to this process's part of a weight, which is another on another mesh
            if old != total and getattr(strategy, "cuts_weights", False) and hasattr(strategy, "mesh"):
                raise ConfigError(
                    f"the backup in {source} is of {counted(old, state.axis)}, and there are {total} now; "
                    f"{state.name} of sharded weights resume with as many places of the mesh as before. Make as many, "
                    "or begin anew in another backup_dir."
                )
            copies = tf_strategies.copies(variable.value)
            found = {}
            for index in own:
                value = _value(state, name, arrays, index=index, old=old, now=total, source=source)
                if state.rule == "owned" and 0 in variable.shape:
                    value = np.zeros(variable.shape, value.dtype)  # another's
                if tuple(value.shape) != tuple(variable.shape):
                    raise ConfigError(
                        f"the backup in {source} has {state.name} of another shape: {name} has {list(value.shape)} "
                        f"for shard {index} of {total}, and {list(variable.shape)} in this model. Train with the model "
                        "and the strategy that it was made with, or begin anew in another backup_dir."
                    )
                found[index] = tensor_arrays.as_dtype(value, variable.dtype)
            for place, copy in enumerate(copies):
                copy.assign(found[own[min(place, len(own) - 1)]])
            if tell and old != total and state not in told and self._workers.is_chief:
                told.add(state)
                _logger.warning(
                    "The backup (%s) is of %s, and there %s %d now; %s: %s.",
                    source,
                    counted(old, state.axis),
                    "is" if total == 1 else "are",
                    total,
                    state.name,
                    DOES[state.rule],
                )

    def tell_of_the_first(self, *, source: str) -> None:
        """Warn about a backup of an earlier version that kept only the shards of the first replica, if they matter."""
        variables = [variable for _, _, variable in self._variables()]
        if (
            self._workers.is_chief
            and self.counts()["replica"] > 1
            and any(np.any(tensor_arrays.held(tf_strategies.primary(one.value))) for one in variables)
        ):
            _logger.warning(
                "The backup (%s) was written by an earlier version of tfdist, which kept of %s what the first replica "
                "had: it is used for all, so the next update is computed from fewer examples.",
                source,
                ", ".join(state.name for state in variables_of(self._model).sharded),
            )

    def _variables(self) -> list[tuple[ShardedState, str, keras.Variable]]:
        return variables_of(self._model).in_shards

    def _indices(self, state: ShardedState, variable: keras.Variable) -> range:
        """Return this worker's indices among all shards."""
        count = 1 if state.axis == "worker" else len(tf_strategies.copies(variable.value))
        return range(self._workers.index * count, (self._workers.index + 1) * count)


def _require_same(ours: set[str], saved: set[str], source: str) -> None:
    if ours == saved:
        return
    name = min(ours ^ saved)
    has = "the model has it, the backup has not" if name in ours else "the backup has it, the model has not"
    raise ConfigError(
        f"the backup in {source} is of another model: of {name} every replica or worker has its own, and {has}. Train "
        "with the model and the optimizer that it was made with, or begin anew in another backup_dir."
    )


def _key(state: ShardedState, index: int, name: str) -> str:
    return f"{state.axis}/{index}/{name}"


def _value(
    state: ShardedState, name: str, arrays: Mapping[str, _Array], *, index: int, old: int, now: int, source: str
) -> _Array:
    keys = [_key(state, shard, name) for shard in ([index] if old == now else range(old))]
    if missing := [key for key in keys if key not in arrays]:
        raise ConfigError(
            f"the backup in {source} has no {missing[0]}, of {counted(old, state.axis)}. It is another program's; "
            "begin anew in another backup_dir."
        )
    if old == now:
        return arrays[keys[0]]
    try:
        return resharded(state.rule, [arrays[key] for key in keys], index=index, count=now)
    except ConfigError as error:
        raise ConfigError(
            f"the backup in {source} is of {counted(old, state.axis)}, and now there would be {now}; "
            f"{state.name}: {error}"
        ) from error


def _local_replicas(model: keras.Model, workers: Workers) -> int:
    strategy = model.distribute_strategy
    if hasattr(strategy, "mesh"):  # of which some have the same examples
        return len(strategy.extended.worker_devices)
    return 1 if strategy is None else max(1, tf_strategies.replica_count(strategy) // workers.count)


class Cuts:
    """This worker's parts of a model's variables."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._held = Held(model, self._own)

    @property
    def exist(self) -> bool:
        """Whether variables may be cut; the same on all workers, also before there are any."""
        return bool(getattr(self._model.distribute_strategy, "cuts_weights", False))

    @property
    def names(self) -> set[str]:
        """The names of the variables that are cut."""
        return set(variables_of(self._model).cut)

    def capture(self) -> dict[str, _Array]:
        """Return the parts that no worker before this one has."""
        return self._held.capture() if self.exist else {}

    def _own(self) -> dict[str, Any]:
        own = {}
        for name, variable in variables_of(self._model).cut.items():
            for sharding, part in sharded_variable.parts_of(variable):
                if sharding.is_first:
                    own[key(name, sharding.shape, sharding.bounds, sharding.elements)] = part
        return own


def key(
    name: str, shape: tuple[int, ...], bounds: tuple[tuple[int, int], ...], elements: tuple[int, int] | None = None
) -> str:
    """Return the name of a part, as in ``cut/4,6/0:4,3:6@6:12/slot``."""
    edges = ",".join(f"{begin}:{end}" for begin, end in bounds)
    edges += "" if elements is None else f"@{elements[0]}:{elements[1]}"
    return f"{_KIND}/{','.join(map(str, shape))}/{edges}/{name}"


def joined(arrays: Mapping[str, _Array], *, source: str) -> tuple[dict[str, _Array], dict[str, _Array]]:
    """Join the parts; return the whole variables by name, and all other arrays."""
    parts: dict[str, list[tuple[str, str, _Array]]] = {}
    rest = {}
    for full, array in arrays.items():
        kind, _, tail = full.partition("/")
        if kind != _KIND:
            rest[full] = array
            continue
        shape, edges, name = tail.split("/", 2)
        parts.setdefault(name, []).append((shape, edges, array))
    return {name: _joined(name, found, source) for name, found in parts.items()}, rest


def _joined(name: str, parts: list[tuple[str, str, _Array]], source: str) -> _Array:
    shape = tuple(int(size) for size in parts[0][0].split(","))
    whole = np.empty(shape, parts[0][2].dtype)
    filled = 0
    for own, edges, array in parts:
        if own != parts[0][0] or not _put(array, whole, edges):
            raise ConfigError(f"the backup in {source} has a part of {name} that does not fit the others.")
        filled += array.size
    if filled != whole.size:
        raise ConfigError(
            f"the backup in {source} has {filled} of the {whole.size} elements of {name}. Begin anew in another "
            "backup_dir."
        )
    return whole


def _put(part: _Array, whole: _Array, edges: str) -> bool:
    """Put a part in its place in a whole; return False if it does not fit."""
    bounds, _, elements = edges.partition("@")
    place, stretch = _slices(bounds), _slices(elements)
    into = whole if stretch or len(place) > 1 else whole.reshape(-1)
    if len(place) != into.ndim:
        return False
    within = into[place]
    if (within.flat[stretch[0]] if stretch else within).shape != part.shape:
        return False
    if stretch:
        within.flat[stretch[0]] = part
    else:
        within[...] = part
    return True


def _slices(edges: str) -> tuple[slice, ...]:
    return tuple(slice(*map(int, edge.split(":"))) for edge in edges.split(",") if edge)
