"""A forward pass through a part of a model: its inputs, its results, and one trace for all micro-batches.

Each part is a TensorFlow function, traced once for each number of examples, with its gradient. It is not inlined: a
call begins when all its inputs are there, and ends when all is done.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf


@dataclass(frozen=True)
class Given:
    """The inputs of a forward pass: tensors, structures of tensors, or None."""

    inputs: list[Any]
    y: Any
    sample_weight: Any
    taken: list[tf.Tensor]  # the tensors that other parts have made, in the order of their edges
    index: tf.Tensor  # the index of the micro-batch among those of all replicas, int32 scalar
    # values in place of the part's variables; empty: the values of the variables
    weights: list[tf.Tensor] = field(default_factory=list)

    @property
    def structure(self) -> tuple[Any, ...]:
        """All inputs as one nested structure."""
        return self.inputs, self.y, self.sample_weight, self.taken, self.index, self.weights


@dataclass(frozen=True)
class Made:
    """The results of a forward pass."""

    # the tensors for other parts, each once, in the order of the edges
    sent: list[tf.Tensor] = field(default_factory=list)
    outputs: list[tf.Tensor] = field(default_factory=list)  # the outputs of the last part, see `Flow.outputs`
    loss: tf.Tensor | None = None  # the compiled loss, in the last part
    added: tf.Tensor | None = None  # the sum over examples of the losses that layers add
    target: tf.Tensor | None = None  # the target of the gradient: ``loss`` and ``added``, scaled and weighted
    # the values of the variables in `changed`, which layers have changed
    states: list[tf.Tensor] = field(default_factory=list)
    changed: list[keras.Variable] = field(default_factory=list)
    draws: dict[int, int] = field(default_factory=dict)  # the number of draws from each random generator


class TracedPass:
    """A forward pass as a function that is traced once."""

    def __init__(self, compute: Callable[[Given], Made], given: Given) -> None:
        self._structure = given.structure
        leaves = _flat(given.structure)
        specs = [tf.TensorSpec(leaf.shape, leaf.dtype) for leaf in leaves]

        def run(*values: tf.Tensor) -> list[tf.Tensor]:
            self._made = compute(Given(*_packed(self._structure, values)))
            self._results = _tensors(self._made)
            return _flat(self._results)

        function = tf.function(run, autograph=False, experimental_attributes={"_noinline": True})
        self._function = function.get_concrete_function(*specs)

    def __call__(self, given: Given) -> Made:
        values = self._function(*_flat(given.structure))
        sent, outputs, loss, added, target, states = _packed(self._results, values)
        return Made(sent, outputs, loss, added, target, states, self._made.changed, self._made.draws)


def _tensors(made: Made) -> tuple[Any, ...]:
    """Return the tensors of the results, in the order of their fields."""
    # a gradient is taken of what is sent, and of the target, alone
    outputs, loss, added, states = tf.nest.map_structure(
        lambda one: None if one is None else tf.stop_gradient(one), (made.outputs, made.loss, made.added, made.states)
    )
    return made.sent, outputs, loss, added, made.target, states


def _flat(structure: Any) -> list[tf.Tensor]:
    leaves = tf.nest.flatten(structure, expand_composites=True)
    return [tf.convert_to_tensor(leaf) for leaf in leaves if leaf is not None]


def _packed(structure: Any, values: Any) -> Any:
    left = iter(values)
    leaves = tf.nest.flatten(structure, expand_composites=True)
    return tf.nest.pack_sequence_as(
        structure, [None if leaf is None else next(left) for leaf in leaves], expand_composites=True
    )
