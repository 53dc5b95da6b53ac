"""A worker's prediction for a part of a batch."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras import keras_variables, stateless_scope
from tfdist.compat.tensorflow import servers as tf_servers
from tfdist.training.input_layout import Layout
from tfdist.training.parameter_servers import server_embeddings
from tfdist.training.parameter_servers.part_function import (
    Part,
    PartFunction,
    held_by_chief,
    with_those_on_servers,
)
from tfdist.training.replica import current_step, replica_step, xla_step
from tfdist.training.replica.judging import Rules


class Prediction:
    """The function by which workers predict a part."""

    def __init__(self, model: keras.Model, strategy: Any, layout: Layout, unseeded: Any) -> None:
        self._model, self._unseeded = model, unseeded
        self._held = held_by_chief(model, unseeded, Rules())
        self._structure: Any = None
        self._function = PartFunction(model, strategy, layout, self._held, self._predict, relaxed=True)

    def state(self) -> list[tf.Tensor]:
        """Return the present values of the variables that the chief holds, as the function's inputs."""
        return [keras_variables.value_of(one.variable).read_value() for one in self._held]

    def __call__(self, device: str | None, counts: Sequence[Any], state: Sequence[Any], leaves: Sequence[Any]) -> Any:
        """Return the model's outputs for a part, as a nest of arrays."""
        with tf_servers.calls_on(device), xla_step.named_errors():
            arrays = [tensor.numpy() for tensor in self._function(counts, state, leaves)]
        arrays = [tf.constant(array) for array in arrays]
        return tf.nest.pack_sequence_as(self._structure, arrays, expand_composites=True)

    def _predict(self, part: Part, data: Any) -> list[Any]:
        server_embeddings.adapt(self._model)
        current = current_step.Step(rows=part.rows, global_rows=part.global_rows, index=part.index, all_reduce=list)
        values = with_those_on_servers(self._model, part.values) if self._model.jit_compile else part.values
        with stateless_scope.CapturedUpdates(values):
            outputs = replica_step.predict(self._model, self._unseeded, data, current)
        self._structure = tf.nest.map_structure(_skeleton, outputs, expand_composites=False)
        return [tf.identity(leaf) for leaf in tf.nest.flatten(outputs, expand_composites=True)]


def _skeleton(value: Any) -> Any:
    return tf.type_spec_from_value(value)
