"""A function of a part of a batch that a worker of parameter servers runs; and predictions by it."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras import keras_trainer, keras_variables, layer_methods, stateless_scope
from tfdist.compat.tensorflow import partitioned as tf_partitioned
from tfdist.compat.tensorflow import servers as tf_servers
from tfdist.training.checks import mixed_predictions
from tfdist.training.epoch import Layout
from tfdist.training.replica import current_step, replica_metrics, replica_step, xla_step
from tfdist.training.replica.judging import Rules


def adapt(model: keras.Model) -> None:
    """Let embeddings look up rows on the servers, so only the rows in use travel."""
    for layer in keras_trainer.layers(model):
        if isinstance(layer, keras.layers.Embedding):
            layer_methods.override_call(layer, keras.layers.Embedding, functools.partial(_look_up, layer))


def _look_up(layer: keras.layers.Embedding, inputs: Any) -> Any:
    table = stateless_scope.table_on_servers(layer)
    if table is None or not isinstance(inputs, tf.Tensor) or not (inputs.dtype.is_integer or inputs.dtype.is_floating):
        return layer_methods.own_call(keras.layers.Embedding, layer, inputs)
    ids = inputs if inputs.dtype in (tf.int32, tf.int64) else tf.cast(inputs, tf.int32)
    ids = tf.where(ids < 0, ids + tf.cast(table.shape[0], ids.dtype), ids)
    return tf.cast(tf_partitioned.lookup(table, ids), layer.compute_dtype)


_untraced = tf.autograph.experimental.do_not_convert

# index of a part, its examples, and examples of all parts
_COUNTS = [tf.TensorSpec([], tf.int32)] * 3


@dataclass(frozen=True)
class Held:
    """A Keras variable of the chief whose value is sent to workers; ``adds``: it counts from zero in every part."""

    variable: Any
    adds: bool


def held_by_chief(model: keras.Model, unseeded: Any, rules: Rules) -> list[Held]:
    """Return the model's variables on the chief, with Keras' state for random numbers."""
    no_sums = replica_metrics.no_sums(model, rules)
    counting = {id(v): v for metric in model.metrics for v in metric.variables}
    others = [*keras_variables.persistent_variables(model), unseeded.state]
    known = {id(v): v for v in [*counting.values(), *others] if keras_variables.value_of(v).device == tf_servers.CHIEF}
    return [Held(v, i in counting and v.aggregation == "sum" and i not in no_sums) for i, v in known.items()]


def with_those_on_servers(model: keras.Model, values: list[tuple[Any, tf.Tensor]]) -> list[tuple[Any, tf.Tensor]]:
    """Return each variable of a model with its value, for an XLA program, which cannot read from servers."""
    known = {id(variable) for variable, _ in values}
    others = [variable for variable in model.variables if id(variable) not in known]
    return [*values, *((one, tf.convert_to_tensor(keras_variables.value_of(one))) for one in others)]


@dataclass(frozen=True)
class Part:
    """A worker's input besides the data: int32 scalars, and pairs of a variable of the chief and its value.

    ``global_rows`` are the examples of all parts.
    """

    index: tf.Tensor
    rows: tf.Tensor
    global_rows: tf.Tensor
    values: list[tuple[Any, tf.Tensor]]


class PartFunction:
    """A function of a part, traced once, unless the model runs eagerly."""

    def __init__(
        self,
        model: keras.Model,
        strategy: tf.distribute.Strategy,
        layout: Layout,
        held: Sequence[Held],
        on_part: Callable[[Part, Any], list[Any]],
        *,
        relaxed: bool,
    ) -> None:
        self._strategy = strategy
        self._layout = layout
        self._held = held
        self._on_part = on_part
        self._run: Any = self._compute
        if not model.run_eagerly:
            specs = [tf.TensorSpec(v.shape, keras_variables.value_of(v).dtype) for v in (one.variable for one in held)]
            signature = [*_COUNTS, *specs, *layout.part_signature(relaxed=relaxed)]
            self._run = tf.function(_untraced(self._compute), input_signature=signature).get_concrete_function()

    def __call__(self, counts: Sequence[Any], state: Sequence[Any], leaves: Sequence[Any]) -> Any:
        return self._run(*counts, *state, *leaves)

    def _compute(self, index: tf.Tensor, rows: tf.Tensor, global_rows: tf.Tensor, *rest: Any) -> Any:
        values, leaves = rest[: len(self._held)], rest[len(self._held) :]
        pairs = [(one.variable, value) for one, value in zip(self._held, values, strict=True)]
        on_part = _untraced(functools.partial(self._on_part, Part(index, rows, global_rows, pairs)))
        return self._strategy.run(on_part, args=(self._layout.part(leaves),))


class Prediction:
    """The function by which workers predict a part."""

    def __init__(self, model: keras.Model, strategy: Any, layout: Layout, unseeded: Any) -> None:
        self._model, self._unseeded = model, unseeded
        self._held = held_by_chief(model, unseeded, Rules())
        self._structure: Any = None
        self._function = PartFunction(model, strategy, layout, self._held, self._predict, relaxed=True)
        #: whether a worker may predict a part of a batch: no layer compares its rows
        self.can_be_cut = not mixed_predictions.mixes(model, strategy, layout)

    def state(self) -> list[tf.Tensor]:
        """Return the present values of the variables on the chief, as the function's inputs."""
        return [keras_variables.value_of(one.variable).read_value() for one in self._held]

    def __call__(self, device: str | None, counts: Sequence[Any], state: Sequence[Any], leaves: Sequence[Any]) -> Any:
        """Return the model's outputs for a part, as a nest of arrays."""
        with tf_servers.calls_on(device), xla_step.named_errors():
            arrays = [tensor.numpy() for tensor in self._function(counts, state, leaves)]
        arrays = [tf.constant(array) for array in arrays]
        return tf.nest.pack_sequence_as(self._structure, arrays, expand_composites=True)

    def _predict(self, part: Part, data: Any) -> list[Any]:
        adapt(self._model)
        current = current_step.Step(rows=part.rows, global_rows=part.global_rows, index=part.index, all_reduce=list)
        values = with_those_on_servers(self._model, part.values) if self._model.jit_compile else part.values
        with stateless_scope.CapturedUpdates(values):
            outputs = replica_step.predict(self._model, self._unseeded, data, current)
        self._structure = tf.nest.map_structure(tf.type_spec_from_value, outputs, expand_composites=False)
        return [tf.identity(leaf) for leaf in tf.nest.flatten(outputs, expand_composites=True)]
