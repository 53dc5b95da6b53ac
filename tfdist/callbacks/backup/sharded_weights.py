"""Weights that are cut over a mesh: each worker saves its part under a name that has its bounds.

An array is named after the whole's shape, the part's bounds and the variable, as in
``cut/4,6/0:4,3:6/variable/dense/kernel``. One pair of bounds is of the flattened whole; a pair after an @, as in
``0:4,3:6@0:6``, of the flattened part. So parts make a whole wherever they were cut, and a training resumes with
another mesh, other layouts, another number of workers, or on one device.
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from tfdist.callbacks.backup.state_names import variables_of
from tfdist.compat.tensorflow import tensor_arrays as tf_arrays
from tfdist.compat.tensorflow.meshes import sharded_variable
from tfdist.errors import ConfigError

_Array = NDArray[Any]
_KIND = "cut"


class Cuts:
    """This worker's parts of a model's variables."""

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._keys: list[str] = []
        self._hold: Callable[[], list[_Array]] | None = None

    @property
    def exist(self) -> bool:
        """Variables may be cut; the same on all workers, also before there are any."""
        return bool(getattr(self._model.distribute_strategy, "cuts_weights", False))

    @property
    def names(self) -> set[str]:
        """The names of the variables that are cut."""
        return set(variables_of(self._model).cut)

    def capture(self) -> dict[str, _Array]:
        """The parts that no worker before this one has."""
        if not self.exist:
            return {}
        if self._hold is None:
            own = {}
            for name, variable in variables_of(self._model).cut.items():
                for sharding, part in sharded_variable.parts_of(variable):
                    if sharding.is_first:
                        own[key(name, sharding.shape, sharding.bounds, sharding.elements)] = part
            self._keys = list(own)
            self._hold = tf_arrays.holder(list(own.values()))
        return dict(zip(self._keys, self._hold(), strict=True))


def key(
    name: str,
    shape: tuple[int, ...],
    bounds: tuple[tuple[int, int], ...],
    elements: tuple[int, int] | None = None,
) -> str:
    """The name of a part, as in ``cut/4,6/0:4,3:6@6:12/slot``."""
    edges = ",".join(f"{begin}:{end}" for begin, end in bounds)
    edges += "" if elements is None else f"@{elements[0]}:{elements[1]}"
    return f"{_KIND}/{','.join(map(str, shape))}/{edges}/{name}"


def joined(arrays: Mapping[str, _Array], *, source: str) -> tuple[dict[str, _Array], dict[str, _Array]]:
    """The whole variables by name, and all other arrays."""
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
    """Put a part in its place in a whole; False if it does not fit."""
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
