"""Keras' optimizers: taking the reduction out of the middle of `apply`.

Private names, read in Keras 3.15.1 (`keras/src/backend/tensorflow/optimizer.py`, `base_optimizer.py`):

- `_all_reduce_sum_gradients`: Keras reduces after it has clipped, decayed and unscaled. It has no switch.
- `_overwrite_model_variables_with_average_value`: updates through the strategy from inside a condition.
- `global_state`'s stack of name scopes: which object is creating a variable.
- `_distribution_strategy`: the strategy in whose scope the optimizer was created.

Horovod's `DistributedOptimizer` (0.28.1) makes a class at run time; its module, `horovod._keras`, is all that tells it.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from keras.optimizers import SGD, Adadelta, Adagrad, Adam, Adamax, Ftrl, Lion, Nadam, RMSprop
from keras.src.backend.common import global_state
from keras.src.optimizers.base_optimizer import BaseOptimizer

# Their updates of an element look at no other one; AdamW's is Adam's. Those of others may take norms of a variable.
_ELEMENTWISE = (SGD, Adadelta, Adagrad, Adam, Adamax, Ftrl, Lion, Nadam, RMSprop)


def creating_variable() -> bool:
    """Return whether the variable that is being created belongs to a Keras optimizer.

    Keras keeps the objects that are creating variables on a stack of name scopes; `keras.src` is the only way to it.
    """
    stack = global_state.get_global_attribute("name_scope_stack", default=[])
    return bool(stack) and isinstance(stack[-1].caller, BaseOptimizer)


def created_under(optimizer: BaseOptimizer) -> tf.distribute.Strategy:
    """Return the strategy in whose scope the optimizer was created."""
    return optimizer._distribution_strategy


def inner_optimizer(optimizer: BaseOptimizer) -> BaseOptimizer | None:
    """Return what a wrapping optimizer (loss scaling) wraps, or None."""
    return getattr(optimizer, "inner_optimizer", None)


def _chain(optimizer: BaseOptimizer | None) -> Iterator[BaseOptimizer]:
    """Yield an optimizer, the one that it wraps, and so on."""
    while optimizer is not None:
        yield optimizer
        optimizer = inner_optimizer(optimizer)


def clips(optimizer: BaseOptimizer | None) -> bool:
    """Return whether an optimizer, or one that it wraps, clips gradients."""
    limits = ("clipnorm", "clipvalue", "global_clipnorm")
    return any(getattr(one, name, None) is not None for one in _chain(optimizer) for name in limits)


def adds_rows(optimizer: BaseOptimizer) -> bool:
    """Return whether it is all the same to an optimizer if rows of one index in a sparse gradient are added up before.

    To those that square gradients it is not: Keras squares each row as it comes.
    """
    *_, innermost = _chain(optimizer)
    return type(innermost) is SGD and not clips(optimizer)


def of_whole_variables(optimizer: BaseOptimizer) -> str | None:
    """Return the name of an optimizer, or of the one that it wraps, if its updates may look at a whole variable."""
    *_, innermost = _chain(optimizer)
    known = any(type(innermost).update_step is one.update_step for one in _ELEMENTWISE)
    return None if known else type(innermost).__name__


def takes_gradients_as_they_come(optimizer: BaseOptimizer) -> bool:
    """Return whether an optimizer hands each gradient to its variable's update and looks at it nowhere else."""
    looks = clips(optimizer) or optimizer.gradient_accumulation_steps or optimizer.loss_scale_factor is not None
    return inner_optimizer(optimizer) is None and not looks


def is_horovods(optimizer: Any) -> bool:
    """Return whether an optimizer is one that Horovod's `DistributedOptimizer` returned."""
    return type(optimizer).__module__.split(".")[0] == "horovod"


def override(
    optimizer: BaseOptimizer, *, apply: Callable[..., Any] | None = None, scale_loss: Callable[..., Any] | None = None
) -> None:
    """Give one optimizer object its own `apply` and `scale_loss`, and let it apply gradients as they come.

    The object's class, and every other optimizer, stay as they are.
    """
    own = vars(optimizer)
    if apply is not None:
        own["apply"] = apply
    if scale_loss is not None:
        own["scale_loss"] = scale_loss
    own["_all_reduce_sum_gradients"] = list
    own["_overwrite_model_variables_with_average_value"] = lambda variables: _overwrite(optimizer, variables)


def _overwrite(optimizer: BaseOptimizer, variables: list[Any]) -> None:
    """Assign each variable its moving average: every replica its own copy, all of them equal."""
    for variable, average in zip(variables, optimizer._model_variables_moving_average, strict=True):
        if average is not None:
            variable.assign(average)


def known_variables(optimizer: BaseOptimizer) -> list[Any]:
    """Return the variables that an optimizer was built for."""
    return list(optimizer._trainable_variables)


def index_of(optimizer: BaseOptimizer, variable: Any) -> int:
    """Return the position of a variable among those that an optimizer was built for."""
    return int(optimizer._get_variable_index(variable))


@contextlib.contextmanager
def rate_multiplied(optimizer: BaseOptimizer, factor: tf.Tensor | None) -> Iterator[None]:
    """Let one optimizer, or the one that it wraps, take a multiple of its learning rate inside."""
    if factor is None:
        yield
        return
    while inner_optimizer(optimizer) is not None:
        optimizer = inner_optimizer(optimizer)
    own = vars(optimizer)
    kind = type(optimizer)
    own["_get_current_learning_rate"] = lambda: (
        tf.cast(kind._get_current_learning_rate(optimizer), tf.float32) * tf.cast(factor, tf.float32)
    )
    try:
        yield
    finally:
        del own["_get_current_learning_rate"]


def moved(optimizer: BaseOptimizer, variable: Any, former: tf.Variable) -> list[Any]:
    """Let one optimizer know a Keras variable whose TensorFlow variable is another now; return the variable's slots.

    Args:
        optimizer: built or not.
        variable: the Keras variable.
        former: the TensorFlow variable that it had when the optimizer was built.
    """
    known = [one for one in _chain(optimizer) if one._var_key(former) in one._trainable_variables_indices]
    for one in known:
        position = one._trainable_variables_indices.pop(one._var_key(former))
        one._trainable_variables_indices[one._var_key(variable)] = position
    if not known:
        return []
    prefix = f"{variable.path.replace('/', '_')}_"  # Keras names slots after what they belong to
    return [slot for slot in optimizer.variables if slot.name.startswith(prefix) and slot.shape == variable.shape]


def bind_slots(optimizer: BaseOptimizer, partitioned: Mapping[int, list[Any]]) -> None:
    """Let one optimizer know the parts of its partitioned variables as the variables that they are parts of.

    Args:
        optimizer: a built optimizer.
        partitioned: parts (TensorFlow variables) by the position of their variable among the optimizer's.
    """
    for one in _chain(optimizer):
        for position, parts in partitioned.items():
            for part in parts:
                one._trainable_variables_indices[one._var_key(part)] = position


def learning_rate_variable(optimizer: BaseOptimizer | None) -> Any:
    """Return the Keras variable that holds the learning rate, or None where a schedule or a function gives it."""
    while optimizer is not None and inner_optimizer(optimizer) is not None:
        optimizer = inner_optimizer(optimizer)
    rate = getattr(optimizer, "_learning_rate", None)
    return rate if hasattr(rate, "assign") else None
