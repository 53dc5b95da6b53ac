"""Unique names for the state of a training, independent of other models of the process."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
from numpy.typing import NDArray

from tfdist.checkpoint.state_resizing import ShardedState
from tfdist.collectives.traced import relative_paths
from tfdist.compat.keras import keras_trainer, keras_variables
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.compat.tensorflow import tensor_arrays
from tfdist.compat.tensorflow.meshes import sharded_variable
from tfdist.training import local_steps

VARIABLE, METRIC = "variable", "metric"


@dataclass(frozen=True, kw_only=True)
class Variables:
    """The variables of a model, its optimizers and its strategy.

    `whole`: variables that are the same everywhere, and the metrics of the running epoch, by name. `cut`: variables of
    which each process has a part, by name. `in_shards`: variables of which every replica or worker has its own, with
    their state and name. `sharded`: the states of all such variables, also states without variables.
    """

    whole: dict[str, keras.Variable]
    cut: dict[str, keras.Variable]
    in_shards: list[tuple[ShardedState, str, keras.Variable]]
    sharded: list[ShardedState]

    @property
    def common(self) -> dict[str, keras.Variable]:
        """The variables that have a single value, whole or cut, by name."""
        return {**self.whole, **self.cut}

    @property
    def all(self) -> dict[str, keras.Variable]:
        return {**self.common, **{name: variable for _, name, variable in self.in_shards}}


class Held:
    """The present values of some of a model's variables, by name.

    To name variables takes long, so they are listed again only when the model or an optimizer has more of them: a
    second phase of training may use an optimizer for the first time.
    """

    def __init__(self, model: keras.Model, listed: Callable[[], Mapping[str, Any]]) -> None:
        self._model = model
        self._listed = listed
        self._count = -1
        self._names: list[str] = []
        self._hold: Callable[[], list[NDArray[Any]]] = list

    def capture(self) -> dict[str, NDArray[Any]]:
        count = keras_variables.count(self._model)
        if count != self._count:
            found = self._listed()
            self._count, self._names, self._hold = count, list(found), tensor_arrays.holder(list(found.values()))
        return dict(zip(self._names, self._hold(), strict=True))


def variables_of(model: keras.Model) -> Variables:
    """Return the variables that a model and its optimizers resume from, and the metrics of the running epoch."""
    states = [state for owner in _owners(model) for state in owner.sharded_state()]
    state_of = {id(variable): state for state in states for variable in state.variables}
    others = {id(variable): variable for state in states for variable in state.variables}
    every = {**{id(variable): variable for variable in keras_variables.persistent_variables(model)}, **others}
    every_named = named(VARIABLE, list(every.values()), [weight.path for weight in model.weights])
    common = {name: variable for name, variable in every_named.items() if id(variable) not in state_of}
    cut = {name: variable for name, variable in common.items() if sharded_variable.sharding_of(variable) is not None}
    whole = {name: variable for name, variable in common.items() if name not in cut}
    return Variables(
        whole={**whole, **metrics_of(model)},
        cut=cut,
        in_shards=[(state_of[id(v)], name, v) for name, v in every_named.items() if id(v) in state_of],
        sharded=states,
    )


def metrics_of(model: keras.Model) -> dict[str, keras.Variable]:
    found = {id(v): v for metric in keras_trainer.metrics(model) for v in metric.variables}
    return named(METRIC, list(found.values()), [])


def _owners(model: keras.Model) -> list[Any]:
    """Return the objects that have state in shards."""
    optimizers = {id(one): one for outer in keras_trainer.optimizers(model) for one in keras_optimizer.chain(outer)}
    found = [model, *optimizers.values(), model.distribute_strategy, local_steps.of(model)]
    return [owner for owner in found if callable(getattr(owner, "sharded_state", None))]


def named(kind: str, variables: Sequence[keras.Variable], weights: Sequence[str]) -> dict[str, keras.Variable]:
    """Map variables to distinct paths that do not depend on what else the process has made."""
    # Keras counts layers over the whole process, and has their numbers in the names of slots too.
    weight_of = {path.replace("/", "_"): path for path in reversed(weights)}

    def slot_path(path: str) -> str:
        """Return a slot's path with its weight's path: adam/dense_3_kernel_momentum -> adam/dense_3/kernel/momentum."""
        owner, _, last = path.rpartition("/")
        end = last.rfind("_")
        while end > 0:  # the longest name first: a weight's name may begin with another's
            if (weight := weight_of.get(last[:end])) is not None:
                return f"{owner}/{weight}/{last[end + 1 :]}"
            end = last.rfind("_", 0, end)
        return path

    paths = relative_paths([slot_path(variable.path) for variable in variables])
    seen: Counter[str] = Counter()
    found = {}
    for path, variable in zip(paths, variables, strict=True):
        seen[path] += 1
        number = f"#{seen[path]}" if seen[path] > 1 else ""
        found[f"{kind}/{path}{number}"] = variable
    return found
