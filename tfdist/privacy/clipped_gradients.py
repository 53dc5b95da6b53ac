"""Gradients of single examples, each clipped, and their sum.

`tf.vectorized_map` computes some examples at a time, in one graph: the model runs on batches of one. Changes that the
model would make to its variables stay inside; they are refused.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras import keras_trainer, keras_variables
from tfdist.errors import UnsupportedError
from tfdist.training.replica import current_step

_HELD_NUMBERS = 1 << 25  # of gradients of single examples at once: 128 MiB
_MOST_AT_ONCE = 64
# In float16 small gradients vanish. A scale that followed what overflows would tell of examples, so it is fixed.
_SCALE_OF_FLOAT16 = 1024.0
_SEED_STRIDE = 0x9E3779B1
_untraced = tf.autograph.experimental.do_not_convert


@dataclass(frozen=True)
class Clipped:
    """The sums over the examples of a batch, and its losses and outputs."""

    sums: list[tf.Tensor]  # the sum of the clipped gradients for each trainable weight
    losses: tf.Tensor  # the loss of each row, float32
    outputs: Any  # the model's outputs, one row for each row of the batch


def clipped_sum(model: keras.Model, data: Any, counts: tf.Tensor, clip: float) -> Clipped:
    """Add up the clipped gradients of the rows that count, bool ``[rows]``; there is at least one row.

    The data are x, y and sample weight, as Keras' step has them; the norm of an example is over all weights.
    """
    example = _Example(model, data)
    present = [leaf for leaf in tf.nest.flatten(data) if leaf is not None]
    rows = tf.shape(counts)[0]
    numbers = sum(int(value.shape.num_elements() or 0) for value in example.values)
    at_once = max(1, min(_MOST_AT_ONCE, _HELD_NUMBERS // max(1, numbers)))
    specs = example.specs(present)
    some_gradients = example.of_some(present, specs)
    arrays = [tf.TensorArray(spec.dtype, 0, dynamic_size=True, infer_shape=False) for spec in specs]

    def some(number: tf.Tensor, sums: list[tf.Tensor], arrays: list[tf.TensorArray]) -> Any:
        begin = number * at_once
        end = tf.minimum(begin + at_once, rows)
        parts = [leaf[begin:end] for leaf in present]
        gradients, made = some_gradients(tf.range(begin, end), *parts)
        factors, gradients = _factors(gradients, counts[begin:end], clip)
        sums = [total + tf.tensordot(factors, one, 1) for total, one in zip(sums, gradients, strict=True)]
        return number + 1, sums, [array.write(number, one) for array, one in zip(arrays, made, strict=True)]

    _, sums, arrays = tf.while_loop(
        lambda number, *_: number * at_once < rows,
        _untraced(some),
        (tf.constant(0), [tf.zeros(value.shape, tf.float32) for value in example.values], arrays),
        parallel_iterations=1,
    )
    losses, *outputs = [array.concat() for array in arrays]
    for value, spec in zip([losses, *outputs], specs, strict=True):
        value.set_shape([None, *spec.shape])
    return Clipped(sums, losses, tf.nest.pack_sequence_as(example.structure, outputs))


def _factors(gradients: list[tf.Tensor], counts: tf.Tensor, clip: float) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Return the factor of each example's gradient, and the gradients without those that are not finite.

    An example whose gradient is not finite counts as zero: skipping the step would reveal it.
    """
    axes = [list(range(1, one.shape.rank)) for one in gradients]
    squares = tf.add_n([tf.reduce_sum(tf.square(one), axis) for one, axis in zip(gradients, axes, strict=True)])
    counted = counts & tf.math.is_finite(squares)
    norms = tf.sqrt(tf.where(counted, squares, 1.0))
    factors = tf.where(counted, tf.minimum(1.0, tf.math.divide_no_nan(clip, norms)), 0.0)
    factors = tf.where(counted & (norms == 0.0), 1.0, factors)
    shaped = [tf.reshape(counted, [-1] + [1] * len(axis)) for axis in axes]
    return factors, [tf.where(here, one, 0.0) for here, one in zip(shaped, gradients, strict=True)]


class _Example:
    """A model that runs on one example, with values of its variables that nothing changes."""

    def __init__(self, model: keras.Model, data: Any) -> None:
        self._model = model
        self._data = data
        self._weights = model.trainable_variables
        self.values = [tf.convert_to_tensor(weight.value) for weight in self._weights]
        generators = [*keras_variables.seed_generators(model), keras_trainer.global_seed_generator()]
        self._seeds = [(one.state, tf.convert_to_tensor(one.next())) for one in generators]
        seeds = {id(state) for state, _ in self._seeds}
        others = [one for one in model.non_trainable_variables if id(one) not in seeds]
        self._others = [(one, tf.convert_to_tensor(one.value)) for one in others]
        in_float16 = any(layer.compute_dtype == "float16" for layer in keras_trainer.layers(model))
        self._scale = _SCALE_OF_FLOAT16 if in_float16 else 1.0
        #: the structure of the model's outputs, known once it has run
        self.structure: Any = None

    def specs(self, present: list[tf.Tensor]) -> list[tf.TensorSpec]:
        """Return the specs of one example's loss and outputs."""
        inputs = [tf.TensorSpec([], tf.int32), *(tf.TensorSpec(leaf.shape[1:], leaf.dtype) for leaf in present)]
        made = _traced(lambda *given: self._run(given), inputs).structured_outputs
        return [tf.TensorSpec(one.shape, one.dtype) for one in made]

    def of_some(self, present: list[tf.Tensor], specs: list[tf.TensorSpec]) -> Callable[..., Any]:
        """Return a function that computes the gradients, losses and outputs of several examples.

        TensorFlow cannot vectorize some loops, such as those of recurrent layers with a mask, and its vectorized
        attention crashes on CPUs. Then the examples are computed one after another.
        """
        inputs = [tf.TensorSpec([None], tf.int32)]
        inputs += [tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype) for leaf in present]
        gradients = [tf.TensorSpec(value.shape, tf.float32) for value in self.values]

        def vectorized(*given: tf.Tensor) -> Any:
            return tf.vectorized_map(self.gradients, given, warn=False)

        def one_by_one(*given: tf.Tensor) -> Any:
            return tf.map_fn(self.gradients, given, fn_output_signature=(gradients, specs), parallel_iterations=1)

        try:
            with _quiet():
                found = _traced(vectorized, inputs)
        except Exception:  # noqa: BLE001 - whatever it is that cannot be vectorized; the model itself has run before
            found = None
        return _traced(one_by_one, inputs) if found is None or _crashes(found) else found

    @_untraced
    def gradients(self, given: tuple[tf.Tensor, ...]) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Return the gradient of one example for each weight, and its loss and outputs."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self.values)
            made = self._run(given)
            loss = made[0] * self._scale
        found = tape.gradient(loss, self.values, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return [tf.cast(tf.convert_to_tensor(one), tf.float32) / self._scale for one in found], made

    def _run(self, given: tuple[tf.Tensor, ...]) -> list[tf.Tensor]:
        number, *parts = given
        left = iter([part[tf.newaxis] for part in parts])
        x, y, weight = tf.nest.map_structure(lambda leaf: None if leaf is None else next(left), self._data)
        offset = tf.math.floormod(tf.cast(number, tf.int64) * _SEED_STRIDE, 1 << 31)
        offset = tf.stack([offset, tf.zeros_like(offset)])
        seeds = [(state, tf.cast(seed, state.dtype) + tf.cast(offset, state.dtype)) for state, seed in self._seeds]
        values = [*zip(self._weights, self.values, strict=True), *self._others, *seeds]
        with current_step.alone(), keras.StatelessScope(values, collect_losses=True) as scope:
            outputs = self._model(x, training=True)
            loss = self._model.compute_loss(x=x, y=y, y_pred=outputs, sample_weight=weight)
            for variable, value in self._others:
                if scope.get_current_value(variable) is not value:
                    raise _changes(variable)
        self.structure = outputs
        return [tf.cast(tf.reduce_sum(loss), tf.float32), *(leaf[0] for leaf in tf.nest.flatten(outputs))]


def _traced(function: Callable[..., Any], inputs: list[tf.TensorSpec]) -> Any:
    return tf.function(_untraced(function), input_signature=inputs).get_concrete_function()


def _crashes(traced: Any) -> bool:
    """Return whether a function has an Einsum of five dimensions, in which oneDNN corrupts memory (TensorFlow 2.21)."""
    sums = [one for one in traced.graph.get_operations() if one.type == "Einsum"]
    return any(operand.shape.rank is None or operand.shape.rank > 4 for one in sums for operand in one.inputs)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress TensorFlow's warnings that it cannot vectorize something."""
    logger = tf.get_logger()
    logger.addFilter(_nothing)
    try:
        yield
    finally:
        logger.removeFilter(_nothing)


def _nothing(record: Any) -> bool:
    return False


def _changes(variable: keras.Variable) -> UnsupportedError:
    return UnsupportedError(
        f"the state {variable.path!r} changes while the model computes an example, without noise: it would tell of the "
        "example. Replace a BatchNormalization by a GroupNormalization or LayerNormalization, or freeze it "
        "(layer.trainable = False); leave layers out that keep other statistics, or declare stateful=False.",
        name=variable.path,
    )
