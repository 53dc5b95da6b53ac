"""Keras' stateless scope, which runs a step without changing a variable, and records its changes.

Private names, read in Keras 3.15.1: `StatelessScope.get_current_value` and `add_update`
(`keras/src/backend/common/stateless_scope.py`), which variables call for every read and assignment. Keras expects a
value for every variable of a model; regularizers fail otherwise. Variables made in a scope are listed per thread, and
`initialize_all_variables` gives them values.

In TensorFlow 2.21.0: `pywrap_tfe.TFE_Py_TapeVariableAccessed`, which lets the tapes of this thread watch a handle;
`_id` and `_unique_id`, by which tapes identify variables. Sharpness-aware minimization moves weights, takes a gradient
and moves them back: an assigned weight is a tensor here, and tapes are asked by handles.
"""

import contextlib
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import get_stateless_scope
from keras.src.backend.common.variables import initialize_all_variables
from tensorflow.python import pywrap_tfe

from tfdist.compat.keras import keras_variables, layer_methods


class AssignsWeights(Exception):  # noqa: N818 - not an error: the step is then run with variables of its own
    """A step assigns a weight, which from then on must be one by which gradients can be taken."""


class Updates(keras.StatelessScope):
    """A scope in which no gradient goes through a variable to what was assigned to it, as outside of any scope."""

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        super().add_update((variable, tf.stop_gradient(value)))


class CapturedUpdates(Updates):
    """A scope in which given variables have given values and assignments are kept for later.

    Some variables can have a stand-in, a real variable that lives as long as the step and changes at once.
    """

    def __init__(self, values: list[tuple[Any, Any]], weights: Iterable[Any] = ()) -> None:
        super().__init__(values, collect_losses=True, initialize_variables=False)
        #: variables that were assigned by other code than an optimizer's update, in the order of the first assignment
        self.assigned: list[Any] = []
        #: the number of updates, counted from the first, whose results were read
        self.needed = 0
        #: the values that assignments added to the stand-ins, by the identity of the Keras variable
        self.added: dict[int, tf.Tensor] = {}
        #: stand-ins, by the identity of the Keras variable
        self.stand_ins: dict[int, tf.Variable] = {}
        self._weights = {id(weight) for weight in weights}
        self._changed_by: dict[int, int] = {}
        self._updating = False

    def stand_in_for(self, variables: Iterable[Any], create: Callable[[Any, tf.Tensor], tf.Variable]) -> None:
        """Make a stand-in for each Keras variable that has none, with its value in the scope."""
        for variable in variables:
            if id(variable) not in self.stand_ins:
                own, value = keras_variables.value_of(variable), self.present_value(variable)
                self.stand_ins[id(variable)] = create(own, tf.convert_to_tensor(value))

    @contextlib.contextmanager
    def updating(self) -> Iterator[None]:
        """Take what is read and assigned inside for that of an optimizer's update."""
        self._updating = True
        try:
            yield
        finally:
            self._updating = False

    def changed(self, variables: Iterable[Any], update: int) -> None:
        """Note that an update changes these variables, where the step is computed or later."""
        for variable in variables:
            self._changed_by[id(variable)] = update

    def present_value(self, variable: Any) -> Any:
        """Return a variable's value in the scope, without noting that it was read."""
        value = self.stand_ins.get(id(variable))
        value = super().get_current_value(variable) if value is None else value
        return keras_variables.value_of(variable) if value is None else value

    def get_current_value(self, variable: Any) -> Any:
        """Return the result of reading the variable."""
        if not self._updating:
            self.needed = max(self.needed, self._changed_by.get(id(variable), 0))
        value = self.present_value(variable)
        return _watched(value) if variable.trainable else value

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        stand_in = self.stand_ins.get(id(variable))
        if stand_in is None and id(variable) in self._weights:
            raise AssignsWeights
        if not self._updating and not any(variable is known for known in self.assigned):
            self.assigned.append(variable)
        if stand_in is None:
            super().add_update(update)
            return
        if not self._updating and stand_in.dtype.is_floating:
            self.added[id(variable)] = value - stand_in + self.added.get(id(variable), 0)
        stand_in.assign(tf.cast(value, stand_in.dtype))


def made_variables() -> bool:
    """Return whether Keras variables were made in a scope of this thread that have no value of their own yet."""
    return bool(global_state.get_global_attribute("uninitialized_variables"))


def initialise_made() -> None:
    """Give the variables that were made in a scope their first values; to be called outside of it."""
    initialize_all_variables()


def table_on_servers(layer: keras.layers.Embedding) -> Any:
    """Return the variable in which an embedding looks up rows; None if it does more, or the scope has another value."""
    table, scope = layer_methods.embeddings_of(layer), get_stateless_scope()
    if table is None or scope is None or scope.get_current_value(vars(layer)["_embeddings"]) is table:
        return table
    return None


class FollowedUpdates(CapturedUpdates):
    """A scope that tells of each assignment of some variables, and takes the value that it is answered."""

    def __init__(
        self, values: list[tuple[Any, Any]], followed: Container[int], follow: Callable[[Any, Any, Any], Any]
    ) -> None:
        super().__init__(values)
        self._followed = followed
        self._follow = follow

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        if id(variable) in self._followed:
            value = self._follow(variable, self.present_value(variable), value)
        super().add_update((variable, value))


class _Weight:
    """The variable that a tensor stands for, as tapes see it."""

    trainable = True

    def __init__(self, value: tf.Tensor) -> None:
        self.handle = value
        self._id = id(value)
        self._unique_id = f"assigned_weight_{id(value)}"


def _watched(value: Any) -> Any:
    """Return a weight's value, known to the tapes of this thread where it is a tensor of a graph."""
    if not isinstance(value, tf.Tensor) or not hasattr(value, "graph"):
        return value
    value.handle = value
    pywrap_tfe.TFE_Py_TapeVariableAccessed(_Weight(value))
    return value
