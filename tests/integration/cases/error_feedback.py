"""A reducer that remembers something, as compression with error feedback does: what it leaves out it adds next time."""

from collections.abc import Sequence
from dataclasses import replace

import keras
import tensorflow as tf

from tfdist.checkpoint.state_resizing import ShardedState
from tfdist.gradients.reduction.reducer import Around, Choices, Gradient, GradientReducer
from tfdist.optimizers import DistributedOptimizer

#: what is handed on are multiples of it
STEP = 2.0**-6


class Coarse(Around):
    """Hands on gradients in steps of `STEP`, and remembers the rest.

    Args:
        inner: brings the replicas together.
    """

    def __init__(self, inner: GradientReducer) -> None:
        super().__init__(inner)
        self._rests: list[keras.Variable] = []

    def variables(self, specs: Sequence[tf.TensorSpec]) -> list[keras.Variable]:
        """Make and return the rests."""
        names = [f"{spec.name.replace('/', '_')}_rest" for spec in specs]
        self._rests = [
            keras.Variable(tf.zeros(spec.shape), trainable=False, name=name)
            for spec, name in zip(specs, names, strict=True)
        ]
        return [*self._rests, *self._inner.variables(specs)]

    def sharded_state(self) -> list[ShardedState]:
        """Return the rests, of which the sum over replicas counts."""
        return [ShardedState("the error memory", self._rests, rule="sum"), *self._inner.sharded_state()]

    def reduce(self, gradients: list[Gradient]) -> list[Gradient]:
        """Return the sums of what is handed on."""
        sent = []
        for gradient in gradients:
            rest = self._rests[gradient.place]
            total = tf.convert_to_tensor(gradient.value) + tf.convert_to_tensor(rest)
            coarse = tf.round(total / STEP) * STEP
            rest.assign(total - coarse)
            sent.append(replace(gradient, value=coarse))
        return self._inner.reduce(sent)


@keras.saving.register_keras_serializable("tests")
class ErrorFeedback(DistributedOptimizer):
    """A `DistributedOptimizer` whose replicas send each other coarse gradients."""

    @property
    def reduction_choices(self) -> Choices:
        """The choices for the reduction, with `Coarse` as the codec."""
        return replace(super().reduction_choices, compression=Coarse)
