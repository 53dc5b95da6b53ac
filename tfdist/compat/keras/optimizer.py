"""Keras' optimizers, with the reduction taken out of the middle of `apply`.

Private names, read in Keras 3.15.1 (`keras/src/backend/tensorflow/optimizer.py`, `base_optimizer.py`):

- `_all_reduce_sum_gradients`: Keras reduces after it has clipped, decayed and unscaled, and has no switch
- `_clip_gradients`, `_backend_apply_gradients`: clip by norms of what they receive, and know the variables
- `_overwrite_model_variables_with_average_value`: updates through the strategy inside a condition
- `_model_variables_moving_average`: the averages of weights that `use_ema` asks for
- `_exclude_from_weight_decay`, `_exclude_from_weight_decay_pattern`: what is not decayed
- `_track_variable`: saves a variable of another object with the optimizer
- `_distribution_strategy`: the strategy in whose scope the optimizer was created
- `_var_to_optimizer_idx`: which optimizer of a `MultiOptimizer` has a variable

Of TensorFlow 2.21.0: `merge_call_interim`, through which optimizers reach a strategy, except in replicas' merge calls.

Horovod's `DistributedOptimizer` (0.28.1) makes a class at run time, recognized by its module `horovod._keras`.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from keras import name_scope
from keras.optimizers import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    Ftrl,
    Lion,
    LossScaleOptimizer,
    MultiOptimizer,
    Nadam,
    Optimizer,
    RMSprop,
)
from tensorflow.python.distribute import merge_call_interim

from tfdist.compat import planted
from tfdist.compat.keras import called_updates, fused_updates, keras_frames, keras_variables
from tfdist.errors import ConfigError

# Their updates of an element look at no other one; AdamW's is Adam's. Those of others may take norms of a variable.
_ELEMENTWISE = (SGD, Adadelta, Adagrad, Adam, Adamax, Ftrl, Lion, Nadam, RMSprop)

# the modules of optimizers whose updates are known
_KNOWN = ("keras.src.", "tfdist.")


def creating_variable() -> Optimizer | None:
    """Return the Keras optimizer that the variable which is being created belongs to, or None."""
    creator = keras_variables.creator()
    return creator if isinstance(creator, Optimizer) else None


def tell_of_lone_update(strategy: Any) -> None:
    """Tell a strategy of an optimizer that updates a variable outside of replicas and of their merge calls."""
    modules = [frame.f_globals.get("__name__") for frame in keras_frames.frames(2, 8)]
    optimizer = keras_frames.innermost(Optimizer, 8)
    if optimizer is not None and merge_call_interim.__name__ in modules:
        strategy.on_lone_update(optimizer)


def require_scope_of_slots(strategy: tf.distribute.Strategy) -> None:
    """Raise if an optimizer makes its slots outside of the scope of a strategy, as loops of one's own let it do."""
    optimizer = keras_frames.innermost(Optimizer, 4)
    if optimizer is not None and tf.distribute.get_strategy() is not strategy:
        raise ConfigError(
            f"the optimizer {optimizer.name!r} makes its variables in a loop outside of strategy.run() and of the "
            f"scope of {type(strategy).__name__}. Let model.fit() train. Or call "
            "optimizer.build(model.trainable_variables) under `with strategy.scope():`, and let strategy.run() call "
            "the step, so that gradients are added up over replicas.",
            name=optimizer.name,
        )


def created_under(optimizer: Optimizer) -> tf.distribute.Strategy:
    return optimizer._distribution_strategy


def inner_optimizers(optimizer: Optimizer) -> list[Optimizer]:
    """Return the optimizers to which one passes gradients: the one that loss scaling wraps, or a `MultiOptimizer`'s."""
    if isinstance(optimizer, MultiOptimizer):
        return list(optimizer.optimizers)
    inner = getattr(optimizer, "inner_optimizer", None)
    return [] if inner is None else [inner]


def wrapped(optimizer: Optimizer) -> list[Optimizer]:
    return list(chain(optimizer))[1:]


def chain(optimizer: Optimizer | None) -> Iterator[Optimizer]:
    if optimizer is not None:
        yield optimizer
        for inner in inner_optimizers(optimizer):
            yield from chain(inner)


def updating(optimizer: Optimizer | None) -> list[Optimizer]:
    return [one for one in chain(optimizer) if not inner_optimizers(one)]


def averages_of(optimizer: Optimizer) -> list[Any]:
    """Return the moving averages of weights that an optimizer keeps; none before it is built."""
    kept = vars(optimizer).get("_model_variables_moving_average") or [] if getattr(optimizer, "use_ema", False) else []
    return [average for average in kept if average is not None]


def with_averages(optimizer: Optimizer, variables: Iterable[Any]) -> list[tuple[Any, Any]]:
    """Return those of some variables that have a moving average, each with its own.

    They may be fewer than the variables of the optimizer, because layers were frozen since. Keras pairs them in order.
    """
    known = zip(optimizer._trainable_variables, optimizer._model_variables_moving_average, strict=True)
    averages = {id(variable): average for variable, average in known}
    pairs = [(variable, averages.get(id(variable))) for variable in variables]
    return [(variable, average) for variable, average in pairs if average is not None]


def clips(optimizer: Optimizer | None) -> bool:
    limits = ("clipnorm", "clipvalue", "global_clipnorm")
    return any(getattr(one, name, None) is not None for one in chain(optimizer) for name in limits)


def of_whole_variables(optimizer: Optimizer) -> str | None:
    """Return the name of an optimizer, itself or wrapped, that may look at whole variables, or a `MultiOptimizer`."""
    if any(isinstance(one, MultiOptimizer) for one in chain(optimizer)):
        return MultiOptimizer.__name__
    unknown = [one for one in updating(optimizer) if not updates_elements(one)]
    return type(unknown[0]).__name__ if unknown else None


def updates_elements(optimizer: Optimizer) -> bool:
    """Return whether it is known that an optimizer's update of an element looks at no other one."""
    return any(type(optimizer).update_step is known.update_step for known in _ELEMENTWISE)


def takes_gradients_as_they_come(optimizer: Optimizer) -> bool:
    """Return whether an optimizer hands each gradient to its variable's update and looks at it nowhere else."""
    looks = clips(optimizer) or optimizer.gradient_accumulation_steps or optimizer.loss_scale_factor is not None
    return not (inner_optimizers(optimizer) or looks or _sees_all_gradients(optimizer))


def is_horovods(optimizer: Any) -> bool:
    return type(optimizer).__module__.split(".")[0] == "horovod"


def override(
    optimizer: Optimizer,
    *,
    apply: Callable[..., Any] | None = None,
    apply_pairs: Callable[..., Any] | None = None,
    scale_loss: Callable[..., Any] | None = None,
) -> None:
    """Give one optimizer object, and those that it wraps, its own `apply` and `scale_loss` without Keras' reduction.

    ``apply_pairs`` takes the place of an `apply_gradients` that is none of Keras' own.
    """
    own = vars(optimizer)
    if apply_pairs is not None and type(optimizer).apply_gradients is not Optimizer.apply_gradients:
        own["apply_gradients"] = planted.in_place_of(type(optimizer).apply_gradients, apply_pairs)
    if apply is not None:
        own["apply"] = planted.in_place_of(type(optimizer).apply, apply)
    if scale_loss is not None:
        own["scale_loss"] = planted.in_place_of(type(optimizer).scale_loss, scale_loss)
    own["_all_reduce_sum_gradients"] = list
    # one that updates parts of variables has its own
    own.setdefault("_overwrite_model_variables_with_average_value", lambda variables: _overwrite(optimizer, variables))
    fused_updates.let_update_in_one_pass(optimizer)
    called_updates.let_call_updates(optimizer)
    for inner in inner_optimizers(optimizer):
        override(inner)
    if isinstance(optimizer, MultiOptimizer) and not optimizer.built:
        own["build"] = functools.partial(_build, optimizer)


def has_own_updates(optimizer: Optimizer) -> bool:
    """Return whether an optimizer, itself or wrapped, is of a class that is neither Keras' nor tfdist's."""
    return any(not type(one).__module__.startswith(_KNOWN) for one in chain(optimizer))


def _sees_all_gradients(optimizer: Optimizer) -> bool:
    """Return whether a user's class has a method of its own that is given all gradients of an update."""
    methods = [getattr(type(one), name) for one in chain(optimizer) for name in ("apply", "apply_gradients")]
    return any(not str(getattr(method, "__module__", "")).startswith(_KNOWN) for method in methods)


def own_clip(optimizer: Optimizer, gradients: list[Any]) -> list[Any]:
    kind: Any = type(optimizer)
    return list(kind._clip_gradients(optimizer, gradients))


@contextlib.contextmanager
def looking_at_parts(
    optimizer: Optimizer, *, clipped: Callable[[Any, list[Any], Any], list[Any]], are_finite: Callable[[list[Any]], Any]
) -> Iterator[None]:
    """Replace clipping and checks of an optimizer and those it wraps; skip variables without elements here."""
    every = list(chain(optimizer))
    for one in every:
        own = vars(one)
        own["_backend_apply_gradients"] = functools.partial(_apply_clipped, one, clipped)
        if hasattr(one, "check_finite"):
            own["check_finite"] = are_finite
        if hasattr(type(one), "clipped"):  # tfdist's own, which clips before it hands on
            own["clipped"] = functools.partial(clipped, one)
    try:
        yield
    finally:
        for one in every:
            for name in ("_backend_apply_gradients", "check_finite", "clipped"):
                vars(one).pop(name, None)


def _apply_clipped(optimizer: Optimizer, clipped: Any, gradients: list[Any], variables: list[Any]) -> None:
    own = vars(optimizer)
    changed = {"_clip_gradients": lambda given: clipped(optimizer, given, variables)}
    if "_distributed_tf_update_step" not in own:  # the replicas of a stage have updates of their own
        changed["_distributed_tf_update_step"] = functools.partial(_update_what_is_here, optimizer)
    own.update(changed)
    try:
        type(optimizer)._backend_apply_gradients(optimizer, gradients, variables)
    finally:
        for name in changed:
            del own[name]


def _update_what_is_here(optimizer: Optimizer, strategy: Any, pairs: list[tuple[Any, Any]], rate: Any) -> None:
    here = [(gradient, variable) for gradient, variable in pairs if variable.shape.num_elements()]
    type(optimizer)._distributed_tf_update_step(optimizer, strategy, here, rate)


def _build(optimizer: MultiOptimizer, variables: list[Any]) -> None:
    """Build an optimizer that may learn only now to which others it hands gradients on."""
    type(optimizer).build(optimizer, variables)
    for inner in inner_optimizers(optimizer):
        override(inner)


def _overwrite(optimizer: Optimizer, variables: list[Any]) -> None:
    """Assign each variable its moving average: every replica its own copy, all of them equal."""
    for variable, average in with_averages(optimizer, variables):
        variable.assign(average)


def hands_on(kind: type) -> bool:
    """Return whether optimizers of a class hand gradients on to others."""
    return issubclass(kind, (LossScaleOptimizer, MultiOptimizer))


def build(optimizer: Optimizer, variables: Iterable[Any]) -> None:
    """Build an optimizer for variables, as its first `apply` does; again does nothing."""
    if not optimizer.built:
        with name_scope(optimizer.name, caller=optimizer):
            optimizer.build(list(variables))
        optimizer.built = True


def known_variables(optimizer: Optimizer) -> list[Any]:
    return list(optimizer._trainable_variables)


def variables_of_updates(optimizer: Optimizer) -> list[Any]:
    """Return the variables of an optimizer, and of the one that it wraps, that an update may change."""
    rates = [vars(one).get("_learning_rate") for one in chain(optimizer)]
    return [variable for variable in optimizer.variables if not any(variable is rate for rate in rates)]


def not_decayed(optimizer: Optimizer) -> tuple[list[str], bool]:
    """Return the patterns given to `exclude_from_weight_decay`, and whether variables were given to it."""
    own = vars(optimizer)
    pattern = own.get("_exclude_from_weight_decay_pattern")
    return [] if pattern is None else [pattern.pattern], bool(own.get("_exclude_from_weight_decay"))


def track(optimizer: Optimizer, variables: list[Any]) -> None:
    """Make variables that something else has created an optimizer's own, which it saves with the others."""
    for variable in variables:
        optimizer._track_variable(variable)


def index_of(optimizer: Optimizer, variable: Any) -> int:
    return int(optimizer._get_variable_index(variable))


@contextlib.contextmanager
def rate_multiplied(optimizer: Optimizer, factor: tf.Tensor | None) -> Iterator[None]:
    """Let one optimizer, or those that it hands gradients on to, take a multiple of their learning rates inside."""
    if factor is None:
        yield
        return
    multiplied = updating(optimizer)
    for one in multiplied:
        vars(one)["_get_current_learning_rate"] = functools.partial(_multiplied_rate, one, factor)
    try:
        yield
    finally:
        for one in multiplied:
            del vars(one)["_get_current_learning_rate"]


def _multiplied_rate(optimizer: Optimizer, factor: tf.Tensor) -> tf.Tensor:
    rate = type(optimizer)._get_current_learning_rate(optimizer)
    return tf.cast(rate, tf.float32) * tf.cast(factor, tf.float32)


def moved(optimizer: Optimizer, variable: Any, former: tf.Variable) -> list[Any]:
    """Let one optimizer know a Keras variable whose TensorFlow variable is another now; return the variable's slots."""
    known = [one for one in chain(optimizer) if one._var_key(former) in one._trainable_variables_indices]
    for one in known:
        position = one._trainable_variables_indices.pop(one._var_key(former))
        one._trainable_variables_indices[one._var_key(variable)] = position
        if isinstance(one, MultiOptimizer):
            one._var_to_optimizer_idx[one._var_key(variable)] = one._var_to_optimizer_idx.pop(one._var_key(former))
    if not known:
        return []
    prefix = f"{variable.path.replace('/', '_')}_"  # Keras names slots after what they belong to
    return [slot for slot in optimizer.variables if slot.name.startswith(prefix) and slot.shape == variable.shape]


def bind_slots(optimizer: Optimizer, partitioned: Mapping[int, list[Any]]) -> None:
    """Let one optimizer know the parts of its partitioned variables as the variables that they are parts of."""
    for one in chain(optimizer):
        for position, parts in partitioned.items():
            for part in parts:
                one._trainable_variables_indices[one._var_key(part)] = position


def learning_rate_variables(optimizer: Optimizer | None) -> list[Any]:
    """Return the Keras variables that hold learning rates; those that a schedule or a function gives are not there."""
    rates = [getattr(one, "_learning_rate", None) for one in updating(optimizer)]
    return [rate for rate in rates if hasattr(rate, "assign")]


def has_other_learning_rates(optimizer: Optimizer) -> bool:
    """Return whether a schedule or a function gives a learning rate."""
    return len(learning_rate_variables(optimizer)) < len(updating(optimizer))
