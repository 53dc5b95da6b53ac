"""Keras' optimizers, each updating a part of every variable.

Private names, read in Keras 3.15.1 (`keras/src/backend/tensorflow/optimizer.py`, `base_optimizer.py`), because no
public method is between `apply` and `update_step`:

- `_clip_gradients`: clips by norms, which are sums over all parts
- `_apply_weight_decay`, `_use_weight_decay`: decay variables before the update
- `_distributed_tf_update_step`: loops over gradients and variables (Nadam has its own `_backend_update_step`)
- `_update_model_variables_moving_average`, `_overwrite_model_variables_with_average_value`,
  `_model_variables_moving_average`: the moving average of the weights, in parts too
- `_trainable_variables`, `_iterations`, `_learning_rate`, `_var_key`: its variables, and the key of one
- `_all_reduce_sum_gradients`: see `optimizer.py`
- `_trackable_children`: lets `tf.train.Checkpoint` reach one worker's part
- `_backend_apply_gradients`, `_backend_update_step`: only looked up, in case a class has its own
"""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import tensorflow as tf
from keras.optimizers import Optimizer
from keras.random import SeedGenerator
from keras.src.optimizers.base_optimizer import BaseOptimizer

from tfdist.compat.keras.optimizer import with_averages
from tfdist.errors import UnsupportedError

_MAKES_PARTS = "tfdist_makes_parts"


class Updates(Protocol):
    """Operations on the parts of one optimizer's variables."""

    def stand_ins(self, variables: Sequence[Any]) -> list[Any]:
        """Return stand-ins for an optimizer's variables, for which it builds its slots."""

    def made(self, slot: Any, stand_in: Any) -> None:
        """Record a slot that was made for a stand-in."""

    def built(self) -> None:
        """Record that all slots were made."""

    def clipped(self, grads: list[Any]) -> list[Any]:
        """Return clipped gradients of parts."""

    def decay(self, variables: Sequence[Any]) -> None:
        """Decay variables before their update, or with it."""

    def update(self, pairs: Sequence[tuple[Any, Any]], learning_rate: Any) -> None:
        """Update the parts of TensorFlow variables by their gradients, and give all workers the whole."""

    def readable(self, variables: Sequence[Any]) -> list[Any]:
        """Return the parts of variables, to be read."""

    def assign(self, variables: Sequence[Any], values: Sequence[Any]) -> None:
        """Assign values, of which each worker has its part, to variables."""


@contextlib.contextmanager
def making_parts(optimizer: Optimizer) -> Iterator[None]:
    """Say that an optimizer makes what follows from this worker's parts: others may make something else meanwhile."""
    vars(optimizer)[_MAKES_PARTS] = True
    try:
        yield
    finally:
        del vars(optimizer)[_MAKES_PARTS]


def makes_parts(optimizer: Optimizer) -> bool:
    """Return whether an optimizer is inside `making_parts`: then no worker waits for another's initial values."""
    return _MAKES_PARTS in vars(optimizer)


def let_update_parts(optimizer: Optimizer, updates: Updates) -> None:
    """Let one optimizer object, which is being made, have slots for parts of variables and update these alone."""
    own = vars(optimizer)
    own["build"] = functools.partial(_build, optimizer, updates)
    own["add_variable_from_reference"] = functools.partial(_add_slot, optimizer, updates)
    own["_clip_gradients"] = updates.clipped
    own["_trackable_children"] = functools.partial(_children, optimizer)
    if type(optimizer).finalize_variable_values is not Optimizer.finalize_variable_values:
        own["finalize_variable_values"] = functools.partial(_finalize, optimizer)
    let_update_stand_ins(optimizer, updates)


def let_update_stand_ins(optimizer: Optimizer, updates: Updates) -> None:
    """Let one optimizer object update parts of variables, where its slots are made as the variables are."""
    own = vars(optimizer)
    own["_apply_weight_decay"] = updates.decay
    own["_distributed_tf_update_step"] = lambda strategy, pairs, rate: updates.update(pairs, rate)
    own["_update_model_variables_moving_average"] = lambda variables: _average(optimizer, updates, variables)
    own["_overwrite_model_variables_with_average_value"] = lambda variables: _overwrite(optimizer, updates, variables)
    own["_all_reduce_sum_gradients"] = list


def _children(optimizer: Optimizer, save_type: str = "checkpoint", **kwargs: Any) -> Any:
    if save_type != "checkpoint":
        return type(optimizer)._trackable_children(optimizer, save_type, **kwargs)
    raise UnsupportedError(
        f"tf.train.Checkpoint reaches the optimizer {optimizer.name!r}, whose slots are sharded: it would write one "
        "worker's part of them, and give it to all. Give it the model's weights alone, or take model.save() or "
        "tfdist.callbacks.BackupAndRestore.",
        name=optimizer.name,
    )


def _build(optimizer: Optimizer, updates: Updates, variables: Sequence[Any]) -> None:
    if optimizer.built:
        return
    with making_parts(optimizer):
        type(optimizer).build(optimizer, updates.stand_ins(variables))
    vars(optimizer)["_trainable_variables"] = list(variables)
    updates.built()


def _add_slot(
    optimizer: Optimizer, updates: Updates, reference_variable: Any, name: Any = None, initializer: Any = "zeros"
) -> Any:
    # TensorFlow's own would put it on the device of the variable, which a stand-in is not; there is one device.
    slot = BaseOptimizer.add_variable_from_reference(optimizer, reference_variable, name=name, initializer=initializer)
    updates.made(slot, reference_variable)
    return slot


def _finalize(optimizer: Optimizer, variables: Sequence[Any]) -> None:
    """Finalize weights by a method of the user's, which fails where it uses a part as if it were whole."""
    try:
        type(optimizer).finalize_variable_values(optimizer, variables)
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        raise UnsupportedError(
            f"`finalize_variable_values` of the optimizer {type(optimizer).__name__!r} failed: {error} Slots and "
            "moving averages are this worker's parts, unlike the weights that it is given. Assign averages by "
            "super().finalize_variable_values(), which knows the parts, and change the weights afterwards; or take "
            "MultiWorkerMirroredStrategy without shard_optimizer.",
            name=type(optimizer).__name__,
            received="finalize_variable_values",
        ) from error


def _average(optimizer: Optimizer, updates: Updates, variables: Sequence[Any]) -> None:
    type(optimizer)._update_model_variables_moving_average(optimizer, updates.readable(variables))


def _overwrite(optimizer: Optimizer, updates: Updates, variables: Sequence[Any]) -> None:
    there = with_averages(optimizer, variables)
    updates.assign([one for one, _ in there], [average for _, average in there])


def averages(optimizer: Optimizer) -> tuple[list[Any], list[Any]]:
    """Return the variables of which an optimizer has moving averages, and these."""
    there = with_averages(optimizer, optimizer._trainable_variables)
    return [variable for variable, _ in there], [average for _, average in there]


def numbers_of(optimizer: Optimizer) -> list[Any]:
    """Return the variables without axes that an optimizer has made for itself: neither iterations nor its rate."""
    known = [optimizer._iterations, vars(optimizer).get("_learning_rate")]
    return [one for one in optimizer.variables if not len(one.shape) and not any(one is other for other in known)]


def key_of(optimizer: Optimizer, variable: Any) -> str:
    """Return what an optimizer knows a variable by, the same for all optimizers."""
    return str(optimizer._var_key(variable))


def decay(optimizer: Optimizer, part: Any) -> None:
    if optimizer.weight_decay is not None and optimizer._use_weight_decay(part):
        rate, factor = (tf.cast(value, part.dtype) for value in (optimizer.learning_rate, optimizer.weight_decay))
        part.assign_sub(part * factor * rate)


def decay_wholes(optimizer: Optimizer, variables: list[Any]) -> None:
    type(optimizer)._apply_weight_decay(optimizer, variables)


def update_whole(optimizer: Optimizer, pair: tuple[Any, Any], learning_rate: Any) -> None:
    strategy = tf.distribute.get_strategy()
    type(optimizer)._distributed_tf_update_step(optimizer, strategy, [pair], learning_rate)


def require_update_step_alone(optimizer: Optimizer, *, because: str, instead: str) -> None:
    """Raise if a class of one's own does more between `apply` and `update_step` than Keras' optimizers do."""
    if (changed := _changed_around_updates(optimizer)) is not None:
        raise UnsupportedError(
            f"the optimizer {type(optimizer).__name__!r} has a method `{changed}` of its own, which may look at "
            f"gradients of several variables together, and {because}. Let it clip by global_clipnorm=, clipnorm= or "
            f"clipvalue=, override `update_step` alone, or take {instead}.",
            name=type(optimizer).__name__,
            received=changed,
        )


def require_no_generator(optimizer: Optimizer, *, because: str, instead: str) -> None:
    """Raise if an optimizer of one's own draws from a generator, whose draws follow the order of all updates."""
    held = [name for name, one in vars(optimizer).items() if isinstance(one, SeedGenerator)]
    if held and is_of_ones_own(optimizer):
        what = f"keeps the generator of random numbers {held[0]!r}"
        raise refused_draws(optimizer, what, received=held[0], because=because, instead=instead)


def refused_draws(
    optimizer: Optimizer, what: str, *, because: str, instead: str, received: str | None = None
) -> UnsupportedError:
    """Return the error for an optimizer that draws random numbers where processes update weights of their own."""
    return UnsupportedError(
        f"the optimizer {type(optimizer).__name__!r} {what}: {because}. Draw by tf.random.stateless_normal or another "
        "stateless function, with a seed of optimizer.iterations and of a number for the variable, or take "
        f"{instead}.",
        name=type(optimizer).__name__,
        received=received,
    )


def _changed_around_updates(optimizer: Optimizer) -> str | None:
    """Return the name of a method between a step and `update_step` that is not Keras' or tfdist's, or None."""
    names = ("apply", "apply_gradients", "_backend_apply_gradients", "_backend_update_step", "_clip_gradients")
    known = next(one for one in type(optimizer).__mro__ if one.__module__.split(".")[0] in ("keras", "tfdist"))
    changed = (
        name for name in (*names, "_apply_weight_decay") if getattr(type(optimizer), name) is not getattr(known, name)
    )
    return next(changed, None)


def is_of_ones_own(optimizer: Optimizer) -> bool:
    return type(optimizer).__module__.split(".")[0] not in ("keras", "tfdist")
