"""The values of a training: weights, optimizer slots and states of every replica of a process.

A name is a kind, a slash, and a path that does not depend on other objects of the process.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfdist.callbacks.backup.state_names import METRIC, Variables
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compat.tensorflow.meshes import sharded_variable
from tfdist.gradients.sharding import slot_saving

LOG, STATE, SLOT, WEIGHT, PREDICTION = "log", "state", "slot", "weight", "prediction"

Values = Mapping[str, Sequence[NDArray[Any]]]


def kinds(
    variables: Variables, *, weights: Sequence[Any], slots: Sequence[Any], seeds: Sequence[Any]
) -> dict[str, keras.Variable]:
    """Return variables by their kinds and paths, without metrics, seeds and memories of each replica."""
    trained, of_optimizers, random = ({id(one) for one in group} for group in (weights, slots, seeds))
    alone = {id(one) for _, _, one in variables.in_shards} - of_optimizers  # memories of each replica
    found = {}
    for name, one in variables.all.items():
        kind, _, path = name.partition("/")
        if kind == METRIC or id(one) in random | alone:
            continue
        what = WEIGHT if id(one) in trained else SLOT if id(one) in of_optimizers else STATE
        found[f"{what}/{path}"] = one
    return found


def read(named: Mapping[str, keras.Variable], strategy: Any) -> dict[str, list[NDArray[Any]]]:
    """Return the value of each variable on each replica, or the whole of one in parts, by a call on every worker."""
    return {name: _copies(named[name], strategy) for name in sorted(named)}


def _copies(variable: keras.Variable, strategy: Any) -> list[NDArray[Any]]:
    if slot_saving.part_of(variable) is not None:
        return [np.asarray(strategy.whole_value(variable))]
    if sharded_variable.sharding_of(variable) is not None:
        return [np.asarray(keras.ops.convert_to_numpy(variable))]
    return [np.asarray(copy) for copy in tf_strategies.values_of_copies(variable.value)]


def assign(named: Mapping[str, keras.Variable], values: Values) -> None:
    """Assign values from another run to variables, on one device."""
    for name, variable in named.items():
        if name in values and tuple(values[name][0].shape) == tuple(variable.shape):
            variable.assign(tf.cast(values[name][0], variable.dtype))


def logged(logs: Any) -> Iterator[tuple[str, list[NDArray[Any]]]]:
    """Yield the numbers that a step has logged, by name, from any nest."""
    for path, value in keras.tree.flatten_with_path(logs):
        if isinstance(value, (int, float, np.ndarray, np.generic, tf.Tensor, tf.Variable)):
            name = "/".join(map(str, path)) or "result"
            yield f"{LOG}/{name}", [np.asarray(value)]
