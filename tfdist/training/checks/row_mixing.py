"""The check, before a batch is divided, that what a model makes of a row depends on that row alone.

Keras' own layers keep rows apart, except for batch normalization, which is known. Other code may compare the rows of a
batch: a layer that adds their deviation, a softmax over them, an operation of a functional model, or an activation
function of the user's. The forward pass is computed for a few rows, and for two parts of them. So are gradients, if
some are defined by the user. Models that differ are then tried in full by `step_probe`.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.compat import dry_run
from tfdist.compat.keras import keras_trainer, layer_methods, stateless_scope
from tfdist.compat.tensorflow.steps import custom_gradients, replica_contexts
from tfdist.training.checks import tried_step
from tfdist.training.epoch import flat
from tfdist.training.replica import batch_rows

#: the rows whose statistics batch normalization takes where it is not synchronized
OF_REPLICAS = "each replica's part of a batch"
# largest relative difference that is rounding, of gradients
_OF_GRADIENTS = 1e-3


def suspects(model: keras.Model) -> list[str]:
    """Return the names of layers and operations that may compare rows, so that `mixes` has something to find."""
    return layer_methods.comparing_rows(keras_trainer.layers(model))


def normalizing(model: keras.Model) -> list[str]:
    """Return the names of the layers that normalize by the rows of a replica; frozen ones do not.

    Many recipes for large batches are written for that, but it is another model for another number of replicas.

    Example:
        >>> layers = [keras.layers.BatchNormalization(name=name) for name in ("one", "two")]
        >>> layers[0].trainable = False
        >>> normalizing(keras.Sequential(layers))
        ['two']
    """
    layers = keras_trainer.layers(model)
    found = [one for one in layers if isinstance(one, keras.layers.BatchNormalization)]
    return [one.name for one in found if not one.synchronized and one.trainable]


def blending(model: keras.Model) -> list[str]:
    """Return the names of the layers that blend each row with another one, which they draw.

    Example:
        >>> blending(keras.Sequential([keras.layers.MixUp(name="mix_up"), keras.layers.RandomFlip()]))
        ['mix_up']
    """
    kinds = (keras.layers.MixUp, keras.layers.CutMix)
    return [one.name for one in keras_trainer.layers(model) if isinstance(one, kinds)]


@dataclass(frozen=True)
class Pass:
    """A way to compute forward passes and to compare them.

    Attributes:
        training: as in Keras.
        tolerance: the largest difference that is rounding, relative to the largest output.
        meets: whether weights are sharded, so that each pass needs all workers.
        exchange: a function in place of a replica's `all_gather` and `all_reduce`; None: those of one replica.
        step: the user's `predict_step`, given a batch; None: the model's call, given its inputs.
    """

    training: bool
    tolerance: float
    meets: bool
    exchange: Callable[..., Any] | None = None
    step: Callable[[Any], Any] | None = None


def mixes(model: keras.Model, strategy: tf.distribute.Strategy, data: Any, how: Pass) -> bool:
    """Return whether some output for a row differs if other rows of the batch are left out.

    ``data`` is a batch of at least two rows, as `train_step` is given it. The answer is no if the user's layers draw
    random numbers, or change something else than Keras variables: nothing can be compared then.
    """

    def outputs(*given: Any) -> list[tf.Tensor]:
        tensors = iter(given)
        rows = [None if leaf is None else next(tensors) for leaf in tried_step.leaves(data)]
        batch = batch_rows.plain(tf.nest.pack_sequence_as(data, rows))
        x, _, _ = keras.utils.unpack_x_y_sample_weight(batch)
        scope = stateless_scope.Updates([], initialize_variables=False)
        chance = layer_methods.without_chance(keras_trainer.layers(model))
        with replica_contexts.of_no_strategy(0), scope, chance, contextlib.ExitStack() as exchanging:
            if (exchange := how.exchange) is not None:
                exchanging.enter_context(replica_contexts.exchanging_by(all_gather=exchange, all_reduce=exchange))
            found = model(x, training=how.training) if how.step is None else how.step(batch)
        return [one for one in tf.nest.flatten(found) if isinstance(one, tf.Tensor)]

    specs = [dry_run.relaxed(leaf) for leaf in flat((data,))]
    traced = tf.function(outputs, autograph=False).get_concrete_function(*specs)
    if tried_step.made_variables(strategy):
        traced = tf.function(outputs, autograph=False).get_concrete_function(*specs)
    if not can_compare(traced, meets=how.meets):
        return False
    count = int(batch_rows.rows_of(data))
    cut = count // 3 or 1
    bounds = ((0, count), (0, cut), (cut, count))
    rows = [flat((batch_rows.slice_rows(data, tf.constant(a), tf.constant(b)),)) for a, b in bounds]
    runs = [traced(*some) for some in rows]
    if any(differ([one.numpy() for one in each], how.tolerance) for each in zip(*runs, strict=True)):
        return True
    if not custom_gradients.has_users(traced):
        return False
    return how.meets or not _add_up(model, outputs, specs, rows)


def _add_up(model: keras.Model, outputs: Callable[..., list[tf.Tensor]], specs: list[Any], rows: list[Any]) -> bool:
    """Return whether gradients for parts of the rows add up to those for all, as those of rows that are apart do."""

    def gradients(*given: Any) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            found = [one for one in outputs(*given) if one.dtype.is_floating]
            total = tf.add_n([tf.reduce_sum(tf.cast(one, tf.float32)) for one in found])
        with replica_contexts.of_no_strategy(0):
            every = tape.gradient(total, [variable.value for variable in model.trainable_variables])
        return [tf.convert_to_tensor(one) for one in every if one is not None]

    traced = tf.function(gradients, autograph=False).get_concrete_function(*specs)
    whole, first, second = ([one.numpy() for one in traced(*some)] for some in rows)
    return all(
        np.abs(a - b - c).max(initial=0) <= _OF_GRADIENTS * np.abs([a, b, c]).max(initial=0)
        for a, b, c in zip(whole, first, second, strict=True)
    )


def can_compare(traced: Any, *, meets: bool = False) -> bool:
    """Return whether two runs of a concrete function on the same rows agree: it draws nothing, and changes nothing."""
    types = dry_run.operations(traced)
    return not dry_run.draws(types) and dry_run.changes(types, meets_others=meets) is None


def differ(runs: Sequence[np.ndarray], tolerance: float) -> bool:
    """Return whether the rows of parts, all runs but the first, differ from those of the whole.

    Example:
        >>> x = np.array([[1.0], [2.0], [6.0]])
        >>> def tried(f):
        ...     return differ([f(x), f(x[:1]), f(x[1:])], 1e-6)
        >>> tried(lambda x: 2 * x), tried(lambda x: x - x.mean()), tried(lambda x: x.sum())
        (False, True, True)
    """
    whole, *parts = runs
    if not whole.ndim or any(part.shape[1:] != whole.shape[1:] for part in parts):
        return True
    joined = np.concatenate(parts)
    if joined.shape != whole.shape:
        return True
    if not np.issubdtype(whole.dtype, np.number) or not np.isfinite(whole).all():
        return False
    wide = np.promote_types(whole.dtype, np.float64)
    return bool(np.abs(joined.astype(wide) - whole).max(initial=0) > tolerance * np.abs(whole).max(initial=0))
