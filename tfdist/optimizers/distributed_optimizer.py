"""A wrapper around an optimizer: accumulation, loss scaling, clipping, and the reduction of gradients."""

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from tfdist import validation
from tfdist.checkpoint.state_resizing import ShardedState
from tfdist.compat.keras import keras_trainer, sharded_optimizer
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compression import registry
from tfdist.compression.codec import Codec
from tfdist.compression.codecs.casting import Whole
from tfdist.errors import ConfigError, ConfigTypeError, UnsupportedError
from tfdist.gradients.reduction import norms, reducer, replica_sums
from tfdist.gradients.reduction.compressed_reducer import Compression
from tfdist.gradients.sharding import sharded_slots, slot_saving
from tfdist.optimizers.saved_state import SavedState
from tfdist.training import loss_scale
from tfdist.training.replica import batch_rows, current_step, replica_optimizers
from tfdist.training.strategy_mixin import KerasTraining

_HALF = ("float16", "bfloat16")
_SMALLEST_SCALE = 2.0**-126  # halved for long, a scale would become zero, and so stay
_KERAS_EXCLUDES = keras.optimizers.Optimizer.exclude_from_weight_decay
_NOT_SAVED = (
    "tfdist: variables were given to exclude_from_weight_decay() of %r. A saved model does not contain this choice, so "
    "they decay after loading: pass names, not_decayed=[...], instead."
)
_ACCUMULATED = "the accumulated gradients"
_CLIPS = ("clipnorm", "global_clipnorm", "clipvalue")


@keras.saving.register_keras_serializable("tfdist")
class DistributedOptimizer(keras.optimizers.LossScaleOptimizer, reducer.ReducesItself):
    """A wrapper around any Keras optimizer that sets what happens between the gradients and its update.

    With all defaults the numbers are those of ``inner``: in a tfdist scope every optimizer is right without this
    wrapper. The order is: accumulate, reduce over replicas, unscale, check, clip, apply. With k = ``accumulate_steps``,
    n_j examples in micro-batch j and g_j the mean gradient over them, every k-th step updates with

        g = sum_j n_j g_j / sum_j n_j

    the mean over all examples, as in one batch of k micro-batches, also if some are partial. In between,
    nothing is reduced and no weight changes. An update counts as one iteration, also for learning-rate schedules,
    weight decay and moving averages. An incomplete accumulation continues in the next epoch, and in the next `fit`.

    With a loss scale, gradients that are not finite on one replica are applied on none: the step is skipped everywhere,
    counted in ``skipped_steps``, and is no iteration. A dynamic scale starts at 2**15, is halved by each skipped step
    and doubled after ``growth_steps`` good ones in a row.

    Args:
        inner: a Keras optimizer, or its name.
        accumulate_steps: k, the number of micro-batches in an update; 1 or more.
        loss_scale: "dynamic", or a constant number. None is "dynamic" if the global policy is mixed_float16 when this
            optimizer is made, as in Keras' `compile`, and otherwise no scaling and no check.
        growth_steps: the number of good updates after which a dynamic scale is doubled.
        clipnorm: the largest norm of each gradient.
        global_clipnorm: the largest norm of all gradients together.
        clipvalue: the largest magnitude of an element. Set at most one of these three, and none in ``inner``.
        reduction: "mean", the mean over examples; "sum", the mean times the number of examples, whatever the number of
            replicas; "adasum", which adds what is orthogonal in the replicas' gradients and averages what is parallel.
            With one replica "adasum" is the mean.
        wire_dtype: the dtype to which gradients are rounded while they travel: None, "float16" or "bfloat16". They are
            divided by the number of examples first, so that their sum cannot overflow.
        compression: the name of a codec of `tfdist.compression`, such as "powersgd", "qsgd-8" or "topk", or a codec
            with options, such as ``PowerSGD(rank=4, start_after=100)``, for gradients of two axes or more. What a codec
            leaves out is remembered on each replica, saved with backups, and added to the next gradient. Clipping, the
            loss scale and the optimizer see what has arrived. docs/compression.md has the list, and says when it pays.
        not_decayed: regular expressions; a variable whose name matches one, such as "bias", is left out of the weight
            decay of ``inner``. Unlike its `exclude_from_weight_decay`, this is saved with the model.
        name: the name of the optimizer.

    Raises:
        ConfigError: a value is out of its range, two kinds of clipping are set, or ``inner`` accumulates or scales
            itself.
        UnsupportedError: in `fit`: "adasum" under parameter servers, where no worker has its gradient alone; or a
            strategy with several replicas that is not tfdist's.

    Example:
        >>> optimizer = DistributedOptimizer("sgd", accumulate_steps=4, global_clipnorm=1.0)
        >>> type(optimizer.inner_optimizer).__name__
        'SGD'

    Source: P. Micikevicius et al., "Mixed Precision Training", 2018 (loss scaling); S. Maleki et al., "Scaling
    Distributed Training with Adaptive Summation", 2020 (Adasum). Horovod's optimizer of this name sums the workers'
    means with ``op=Sum``; here a sum is over examples. docs/precision.md says what travels under each strategy.
    """

    def __init__(
        self,
        inner: Any,
        *,
        accumulate_steps: int = 1,
        loss_scale: str | float | None = None,
        growth_steps: int = 2000,
        clipnorm: float | None = None,
        global_clipnorm: float | None = None,
        clipvalue: float | None = None,
        reduction: str = "mean",
        wire_dtype: str | None = None,
        compression: str | Codec | dict[str, Any] | None = None,
        not_decayed: Sequence[str] = (),
        name: str | None = None,
    ) -> None:
        inner = _plain(inner)
        validation.integer("accumulate_steps", accumulate_steps, minimum=1)
        validation.integer("growth_steps", growth_steps, minimum=1)
        validation.one_of("reduction", reduction, reducer.KINDS)
        validation.one_of("wire_dtype", wire_dtype, (None, *_HALF))
        if loss_scale is None and keras.config.dtype_policy().name == "mixed_float16":
            loss_scale = "dynamic"
        if loss_scale not in (None, "dynamic"):
            validation.number("loss_scale", loss_scale, above=0, hint='Or pass "dynamic".')
        _require_one_clip(inner, clipnorm, global_clipnorm, clipvalue)
        _require_patterns(not_decayed, inner)
        initial = 2.0**15 if loss_scale == "dynamic" else float(loss_scale or 1.0)
        super().__init__(inner, initial_scale=initial, dynamic_growth_steps=growth_steps, name=name)
        self.accumulate_steps = accumulate_steps
        self.loss_scale = loss_scale
        self.clipnorm, self.global_clipnorm, self.clipvalue = clipnorm, global_clipnorm, clipvalue
        self.reduction = reduction
        self.wire_dtype = wire_dtype
        self.compression = _codec(compression, inner, reduction=reduction, wire_dtype=wire_dtype)
        if self.compression is not None:
            self.compression.prepare()
        self._reducer = reducer.OverReplicas(self.reduction_choices)
        if not_decayed:
            self.exclude_from_weight_decay(var_names=list(not_decayed))

    @property
    def reduction_choices(self) -> reducer.Choices:
        """The optimizer's settings for the reduction of gradients."""
        codec = self.compression
        if codec is None:
            return reducer.Choices(self.reduction, self.wire_dtype)
        return reducer.Choices(self.reduction, self.wire_dtype, Compression(codec, self._present_rate))

    def _present_rate(self) -> Any:
        return tf.convert_to_tensor(self.inner_optimizer.learning_rate)

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Leave variables out of the weight decay of the inner optimizer.

        Args:
            var_list: the variables; a saved model does not contain this choice.
            var_names: regular expressions for names of variables, as in ``not_decayed``.
        """
        self.inner_optimizer.exclude_from_weight_decay(var_list=var_list, var_names=var_names)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Make the variables of the inner optimizer, the loss scale, the counters, and the sums of micro-batches."""
        if self.built:
            return
        reducer.require_gradients(variables, "DistributedOptimizer only updates by gradients")
        _require_own_strategy()
        super().build(variables)
        keras_optimizer.override(self.inner_optimizer)  # its gradients are reduced already
        specs = [tf.TensorSpec(variable.shape, variable.dtype, variable.path) for variable in variables]
        with keras.name_scope(self.name, caller=self):
            #: the memory of the reduction, of which every replica has its own
            self.reducer_variables = self._reducer.variables(specs)
        keras_optimizer.track(self, self.reducer_variables)
        #: updates that were skipped because a gradient was not finite
        self.skipped_steps = self.add_variable((), dtype="int", name="skipped_steps")
        if self.accumulate_steps > 1:
            self.micro_steps = self.add_variable((), dtype="int", name="micro_steps")
            self.examples = self.add_variable((), dtype="int", name="examples")
            self._sums = [self._room_for(variable) for variable in variables]

    def _room_for(self, variable: keras.Variable) -> keras.Variable:
        if self._accumulates_parts:
            (part,) = sharded_slots.parts_of(self, [variable])
            dtype = "float32" if variable.dtype in _HALF else variable.dtype
            with sharded_optimizer.making_parts(self):
                room = self.add_variable(part.shape, dtype=dtype, name=f"{variable.path.replace('/', '_')}_sum")
            slot_saving.note_part(room, part)
            return room
        if variable.dtype in _HALF:  # a sum of many needs more bits than a weight
            with tf.distribute.get_strategy().extended.colocate_vars_with(variable.value):  # in the same parts
                return self.add_variable(variable.shape, dtype="float32", name=f"{variable.path.replace('/', '_')}_sum")
        return self.add_variable_from_reference(variable, name="sum")

    def renew_reduction(self, workers: Any, trained_seconds: float) -> bool:
        """Choose codecs again, if they are chosen by measurement; all workers call this between two epochs.

        Args:
            workers: the workers of the strategy.
            trained_seconds: the seconds that all steps so far have taken.
        Returns:
            Whether traced steps are out of date.
        """
        return self.built and self._reducer.renew(workers, trained_seconds)

    def sharded_state(self) -> list[ShardedState]:
        """Return the state of which each replica has its own: accumulated gradients, and the memory of its reducers."""
        sums = self._sums if self.built and self.accumulate_steps > 1 else ()
        if self._accumulates_parts:
            return [*slot_saving.states(_ACCUMULATED, sums), *self._reducer.sharded_state()]
        accumulated = ShardedState(_ACCUMULATED, sums, rule="sum")  # the sum over replicas counts
        return [*([accumulated] if self.accumulate_steps > 1 else []), *self._reducer.sharded_state()]

    def save_own_variables(self, store: Any) -> None:
        """Write the variables to a saved model, as one device would have them."""
        saved: dict[str, Any] = {}
        super().save_own_variables(saved)
        for key, value in self._saved_state().of_one_device(saved).items():
            store[key] = value

    def load_own_variables(self, store: Any) -> None:
        """Read the variables from a saved model, for any number of replicas."""
        saved = {key: store[key] for key in store.keys()}  # noqa: SIM118 - Keras' stores have no more than that
        if len(saved) != len(self.variables):
            super().load_own_variables(store)  # says so, and loads nothing
            return
        state = self._saved_state()
        super().load_own_variables(state.of_first_shard(dict(saved)))
        state.load(saved)

    def _saved_state(self) -> SavedState:
        # accumulated parts are saved whole, as slots are
        return SavedState(self, self._reducer.sharded_state() if self._accumulates_parts else self.sharded_state())

    def scale_loss(self, loss: Any) -> Any:
        """Return the loss times the current scale."""
        return loss if self.loss_scale is None else super().scale_loss(loss)

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """Add up the gradients of one batch, and update the variables if the accumulation is complete.

        Args:
            grads: a gradient or None for each variable; in a tfdist scope, gradients of the replica's own examples.
            trainable_variables: the variables; by default those for which the optimizer was built.
        """
        variables = keras_optimizer.known_variables(self) if trainable_variables is None else list(trainable_variables)
        self.build(variables)
        grads = list(grads)
        gradients = reducer.present(grads, variables, self)
        weighted = reducer.weighted(gradients, replica_optimizers.weight(self, gradients))
        if self._accumulates_parts:
            weighted = self._together(weighted, variables)

        def update(parts: list[reducer.Gradient], examples: tf.Tensor) -> None:
            # each is this replica's part of the mean over all examples
            remembered = [tf.convert_to_tensor(variable) for variable in self.reducer_variables]
            if remembered:  # a memory must not depend on a scale that changes
                parts = [one.mapped(self._unscaled) for one in parts]
            reduced = parts if self._accumulates_parts else self._together(parts, variables)
            if self.reduction == "sum":
                reduced = [one.mapped(lambda value: value * tf.cast(examples, value.dtype)) for one in reduced]
            if not remembered:
                reduced = [one.mapped(self._unscaled) for one in reduced]
            self._update(reducer.in_their_places(reduced, len(grads)), variables, remembered)

        if self.accumulate_steps == 1 or not gradients:
            update(weighted, _examples())
        else:
            self._accumulate(weighted, [variables[one.index] for one in weighted], _examples(), update)

    def _accumulate(
        self, gradients: list[reducer.Gradient], variables: list[Any], examples: tf.Tensor, update: Any
    ) -> None:
        sums = [self._sums[keras_optimizer.index_of(self, variable)] for variable in variables]
        for total, gradient in zip(sums, gradients, strict=True):
            dense = tf.cast(tf.convert_to_tensor(gradient.value), total.dtype)
            total.assign(total + dense * tf.cast(examples, total.dtype))
        self.examples.assign(self.examples + examples)
        self.micro_steps.assign(self.micro_steps + 1)

        def complete() -> None:
            seen = tf.convert_to_tensor(self.examples)
            means = [tf.math.divide_no_nan(tf.convert_to_tensor(t), tf.cast(seen, t.dtype)) for t in sums]
            update([replace(one, value=mean) for one, mean in zip(gradients, means, strict=True)], seen)
            for total in [*sums, self.examples, self.micro_steps]:
                total.assign(tf.zeros(total.shape, total.dtype))

        tf.cond(tf.convert_to_tensor(self.micro_steps) >= self.accumulate_steps, complete, lambda: None)

    @property
    def _accumulates_parts(self) -> bool:
        """Whether each micro-batch is reduced, and only this worker's part of it accumulated."""
        own = sharded_slots.of(self)
        return self.accumulate_steps > 1 and own is not None and own.accumulates_parts(self.reduction_choices)

    def _together(self, gradients: list[reducer.Gradient], variables: list[Any]) -> list[reducer.Gradient]:
        def scale() -> Any:  # a memory has no scale, so gradients that meet one are unscaled before
            return None if self.reducer_variables else loss_scale.variable_of(self)

        return replica_optimizers.reduced(self, gradients, variables, self._reducer, scale)

    def _unscaled(self, value: tf.Tensor) -> tf.Tensor:
        if self.loss_scale is None:
            return value
        scale = tf.convert_to_tensor(self.dynamic_scale)
        # as a float16, a scale from 2**16 on is infinite
        dtype = value.dtype if value.dtype.size >= scale.dtype.size else scale.dtype
        return tf.cast(tf.cast(value, dtype) / tf.cast(scale, dtype), value.dtype)

    def _update(self, grads: list[Any], variables: list[Any], remembered: list[tf.Tensor]) -> None:
        """Apply reduced, unscaled gradients; if they are not finite, restore the memory of the reducers."""
        if self.loss_scale is None:
            self.inner_optimizer.apply(self.clipped(grads, variables), variables)
            return
        scale = tf.convert_to_tensor(self.dynamic_scale)

        def good() -> None:
            self.inner_optimizer.apply(self.clipped(grads, variables), variables)
            if self.loss_scale == "dynamic":
                grown = tf.convert_to_tensor(self.step_counter) + 1 >= self.dynamic_growth_steps
                self.step_counter.assign(tf.where(grown, tf.zeros_like(self.step_counter), self.step_counter + 1))
                grown &= tf.math.is_finite(2 * scale)
                self.dynamic_scale.assign(tf.where(grown, 2 * scale, scale))

        def bad() -> None:
            self.skipped_steps.assign(self.skipped_steps + 1)
            for variable, before in zip(self.reducer_variables, remembered, strict=True):
                variable.assign(before)
            if self.loss_scale == "dynamic":
                self.step_counter.assign(tf.zeros_like(self.step_counter))
                self.dynamic_scale.assign(tf.maximum(scale / 2, _SMALLEST_SCALE))

        tf.cond(self.check_finite(grads), good, bad)

    def check_finite(self, grads: list[Any]) -> tf.Tensor:
        """Return whether all gradients are finite, as a bool scalar."""
        own = sharded_slots.of(self)
        return replica_sums.are_finite(grads) if own is None else norms.are_finite(grads, own.total)

    def clipped(self, grads: list[Any], variables: Sequence[Any]) -> list[Any]:
        """Return clipped gradients.

        Args:
            grads: the reduced and unscaled gradients, each a tensor or None.
            variables: the variables of the gradients, in the same order.
        """
        del variables  # each gradient is whole
        return self._clip_gradients(grads)

    def _clip_gradients(self, grads: list[Any]) -> list[Any]:
        own = sharded_slots.of(self)
        if own is not None:
            return norms.clipped(grads, own.total, **{name: getattr(self, name) for name in _CLIPS})
        if self.global_clipnorm is not None:
            return list(tf.clip_by_global_norm(grads, self.global_clipnorm)[0])
        if self.clipnorm is not None:
            return [None if grad is None else tf.clip_by_norm(grad, self.clipnorm) for grad in grads]
        limit = self.clipvalue
        if limit is not None:
            return [replica_sums.mapped(lambda value: tf.clip_by_value(value, -limit, limit), grad) for grad in grads]
        return grads

    def get_config(self) -> dict[str, Any]:
        """Return the JSON from which the same optimizer can be made again."""
        not_decayed, has_variables = keras_optimizer.not_decayed(self.inner_optimizer)
        if has_variables:
            logging.getLogger("tfdist").warning(_NOT_SAVED, self.name)
        return {
            "inner_optimizer": keras.saving.serialize_keras_object(self.inner_optimizer),
            "accumulate_steps": self.accumulate_steps,
            "loss_scale": self.loss_scale,
            "growth_steps": self.dynamic_growth_steps,
            **{name: getattr(self, name) for name in _CLIPS},
            "reduction": self.reduction,
            "wire_dtype": self.wire_dtype,
            "compression": None if self.compression is None else registry.to_config(self.compression),
            "not_decayed": not_decayed,
            "name": self.name,
        }


def _examples() -> tf.Tensor:
    """Return the number of examples of this step's batch over all replicas; 1 if unknown."""
    current = current_step.current()
    if current is not None:
        return tf.cast(current.global_rows, tf.int64)
    data = keras_trainer.data_of_calling_step()
    return tf.constant(1, tf.int64) if data is None else tf.cast(batch_rows.rows_of(data), tf.int64)


def _require_own_strategy() -> None:
    strategy = tf.distribute.get_strategy()
    replicas = tf_strategies.replica_count(strategy)
    if replicas > 1 and not isinstance(strategy, KerasTraining):
        kind = type(strategy).__name__
        own = kind if kind in ("MirroredStrategy", "MultiWorkerMirroredStrategy") else "from_environment"
        raise UnsupportedError(
            f"DistributedOptimizer is used in the scope of TensorFlow's {kind} with {replicas} replicas, which cannot "
            "update weights inside a condition, as accumulation and loss scales need. Make the strategy with "
            f"tfdist.strategies.{own}().",
            name=kind,
            received=replicas,
        )


def _plain(inner: Any) -> Any:
    inner = keras.optimizers.get(inner) if isinstance(inner, str) else inner
    if not isinstance(inner, keras.optimizers.Optimizer):
        raise ConfigTypeError(
            f"inner is {validation.shown(inner)} ({type(inner).__name__}); it must be a Keras optimizer or its name, "
            'such as "adam".'
        )
    if isinstance(inner, keras.optimizers.LossScaleOptimizer) or inner.loss_scale_factor is not None:
        raise ConfigError(
            f"inner ({inner.name!r}) scales the loss itself; pass the optimizer alone, and "
            'loss_scale="dynamic" or a number to DistributedOptimizer.'
        )
    if inner.gradient_accumulation_steps:
        raise ConfigError(
            f"inner ({inner.name!r}) has gradient_accumulation_steps={inner.gradient_accumulation_steps}; pass "
            "accumulate_steps to DistributedOptimizer instead, which reduces once per update."
        )
    return inner


def _codec(compression: Any, inner: Any, *, reduction: str, wire_dtype: str | None) -> Codec | None:
    if compression is None:
        return None
    codec = registry.codec_of(registry.from_config(compression) if isinstance(compression, dict) else compression)
    if isinstance(codec, Whole):
        return None
    if reduction == "adasum":
        raise ConfigError(
            f"compression is {codec.name!r} and reduction is 'adasum', which needs every replica's gradient. Leave one "
            "of them out.",
            name="reduction",
            received=reduction,
        )
    if wire_dtype is not None:
        raise ConfigError(
            f"compression is {codec.name!r} and wire_dtype is {wire_dtype!r}; the codec decides what travels. Leave "
            f"wire_dtype out, or pass a codec around the other, such as Float16(codec=PowerSGD()).",
            name="wire_dtype",
            received=wire_dtype,
        )
    if codec.has_momentum and getattr(inner, "momentum", None):
        raise ConfigError(
            f"compression is {codec.name!r}, which has momentum itself, and inner ({inner.name!r}) has "
            f"momentum={inner.momentum}. Pass the momentum to the codec, and 0 to the optimizer.",
            name="momentum",
            received=inner.momentum,
        )
    if codec.has_momentum and not isinstance(inner, keras.optimizers.SGD):
        raise ConfigError(
            f"compression is {codec.name!r}, whose momentum is that of SGD, and inner is {type(inner).__name__}. Take "
            'keras.optimizers.SGD, or another codec, such as "topk".',
            name="compression",
            received=codec.name,
        )
    return codec


def _require_patterns(not_decayed: Any, inner: Any) -> None:
    if isinstance(not_decayed, str) or not all(isinstance(pattern, str) for pattern in not_decayed):
        raise ConfigTypeError(
            f"not_decayed is {validation.shown(not_decayed)}; it must be a list of regular expressions, such as "
            '["bias", "gamma", "beta"].'
        )
    for pattern in not_decayed:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"not_decayed has {pattern!r}, which is not a regular expression: {error}.") from error
    if not_decayed and inner.weight_decay is None and type(inner).exclude_from_weight_decay is _KERAS_EXCLUDES:
        raise ConfigError(
            f"not_decayed is {list(not_decayed)!r}, and inner ({inner.name!r}) has no weight_decay. Pass "
            "weight_decay to the inner optimizer, or leave not_decayed out."
        )


def _require_one_clip(inner: Any, *own: float | None) -> None:
    given = {name: value for name, value in zip(_CLIPS, own, strict=True) if value is not None}
    for name, value in given.items():
        validation.number(name, value, above=0)
    both = [*given, *(f"{name} of inner" for name in _CLIPS if given and getattr(inner, name) is not None)]
    if len(both) > 1:
        raise ConfigError(f"{' and '.join(both)} are given; gradients are clipped in one way. Give one of them.")
