"""Keras' stateless scope: running a step without changing a variable, and learning what it would have changed.

Private names, read in Keras 3.15.1: `StatelessScope.get_current_value` and `add_update`
(`keras/src/backend/common/stateless_scope.py`), which variables call for every read and assignment in the scope. Keras
expects every variable of a model to be given; regularisers fail on one that is not.
"""

from typing import Any

import keras

from tfdist.compat import tf_partitioned


class CapturedUpdates(keras.StatelessScope):
    """A scope in which given variables have given values, others their own, and assignments are kept for later.

    Args:
        values: pairs of a Keras variable and its value in the scope.
    """

    def __init__(self, values: list[tuple[Any, Any]]) -> None:
        super().__init__(values, collect_losses=True, initialize_variables=False)
        #: variables that were assigned, in the order of their first assignment
        self.assigned: list[Any] = []

    def get_current_value(self, variable: Any) -> Any:
        """Return what a read of the variable gives."""
        value = super().get_current_value(variable)
        return tf_partitioned.value_of(variable) if value is None else value

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Keep an assignment."""
        if not any(variable is update[0] for variable in self.assigned):
            self.assigned.append(update[0])
        super().add_update(update)
