"""The TensorFlow variable behind a Keras variable, and facts about a variable that is being created.

Private names, read in Keras 3.15.1 (`keras/src/backend/common/variables.py`, `name_scope.py`): `Variable._value`;
`Variable._initialize_with_initializer`, whose frame alone has the shape and initializer of a new variable;
`current_path`, since TensorFlow's variables have no path; the name scopes in `global_state`, which name the creating
object; `in_symbolic_scope`; `Layer._non_trainable_variables` and `_seed_generators`, without those of inner layers.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import KerasVariable, global_state
from keras.src.backend.common.name_scope import current_path
from keras.src.backend.common.stateless_scope import get_stateless_scope, in_stateless_scope
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

from tfdist.compat.keras import keras_frames, keras_trainer

_FRAMES_TO_SEARCH = 40


def value_of(variable: Any) -> Any:
    """Return the TensorFlow variable behind a Keras variable, whatever scope is current."""
    return getattr(variable, "_value", variable)


def replace_value(variable: Any, value: tf.Variable) -> None:
    """Let a Keras variable stand for another TensorFlow variable of the same shape and dtype."""
    variable._value = value


def is_of_keras(thing: Any) -> bool:
    return type(thing).__module__.startswith("keras.src.")


def override_assign(variable: Any, assigned: Callable[[Any, Any], Any]) -> None:
    """Let each assignment to one Keras variable give it ``assigned(variable, value)``, once."""
    own = vars(variable)
    own.setdefault("assign", lambda value: type(variable).assign(variable, assigned(variable, value)))


def is_replaced(variable: Any) -> bool:
    """Return whether a Keras variable has another value in the stateless scope that is current."""
    return bool(in_stateless_scope()) and get_stateless_scope().get_current_value(variable) is not None


def creator() -> Any:
    stack = global_state.get_global_attribute("name_scope_stack", default=[])
    return stack[-1].caller if stack else None


def is_own_initializer(initializer: Any) -> bool:
    """Return whether an initializer is one of Keras' own, which depend on their configuration alone."""
    return type(initializer).__module__.startswith("keras.src.") and hasattr(initializer, "get_config")


def path_of_new_variable(name: str) -> str:
    """Return the path that Keras gives a variable of this name that is being created, such as ``dense/kernel``."""
    known = being_made()
    if known is not None and getattr(known[0], "path", None):
        return str(known[0].path)  # Keras may make a variable after it has left the scopes in which it was described
    return "/".join(filter(None, [current_path(), name]))


def being_made() -> tuple[Any, Any] | None:
    """Return the Keras variable that is being made and its initializer, if one is."""
    for frame in keras_frames.frames(2, _FRAMES_TO_SEARCH):
        if frame.f_code.co_name == "_initialize_with_initializer":
            maker, initializer = frame.f_locals.get("self"), frame.f_locals.get("initializer")
            if isinstance(maker, KerasVariable):
                return maker, initializer
    return None


def infers_shapes() -> bool:
    return bool(in_symbolic_scope())


def seed_generators(model: keras.Model) -> list[keras.random.SeedGenerator]:
    """Return every seed generator that the model's layers draw from."""
    found: list[keras.random.SeedGenerator] = []
    for layer in keras_trainer.layers(model):
        found.extend(layer._seed_generators)
    return found


def states(model: keras.Model) -> list[keras.Variable]:
    """Return the variables that layers may change by themselves in a training step, such as moving statistics.

    Frozen weights and the states of seed generators are not among them.
    """
    found: dict[int, keras.Variable] = {}
    for layer in keras_trainer.layers(model):
        found.update((id(variable), variable) for variable in layer._non_trainable_variables)
    return list(found.values())


def has_own_states(layer: keras.Layer) -> bool:
    """Return whether a layer is none of Keras' own, and has states itself."""
    return bool(layer._non_trainable_variables) and not is_of_keras(layer)


def states_of_users(model: keras.Model) -> set[int]:
    """Return the identities of those states that belong to a model or layers that are none of Keras' own."""
    own = [layer for layer in keras_trainer.layers(model) if has_own_states(layer)]
    return {id(variable) for layer in own for variable in layer._non_trainable_variables}


def persistent_variables(model: keras.Model) -> list[keras.Variable]:
    """Return the state of training: weights, the states of seed generators, and the optimizers' variables."""
    seeds = [generator.state for generator in seed_generators(model)]
    slots = [variable for optimizer in keras_trainer.optimizers(model) for variable in optimizer.variables]
    unique = {id(variable): variable for variable in [*model.weights, *seeds, *slots]}
    return list(unique.values())


def count(model: keras.Model) -> int:
    """Return how many variables the model and its optimizers have, in a fraction of a millisecond.

    Optimizers that only inner layers hold do not count: to find them takes long.
    """
    held = keras_trainer.optimizers(model, of_layers=False)
    return len(model.variables) + sum(len(optimizer.variables) for optimizer in held)
