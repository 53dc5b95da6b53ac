"""Terms that algorithms add to a client's loss: a squared distance, and a correction of gradients.

They are regularizers of the weights, which Keras' `fit` and tfdist's strategies compute like a model's own.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


class LocalTerms(keras.regularizers.Regularizer):
    """The regularizer mu/2 |w - anchor|^2 + <correction, w>, added to the weight's own regularizer.

    Its gradient is mu (w - anchor) + correction.
    """

    def __init__(
        self, before: Callable[[Any], Any] | None, proximal: float | None, anchor: tf.Variable, correction: tf.Variable
    ) -> None:
        self._before = before
        self._proximal = proximal
        self._anchor = anchor
        self._correction = correction

    def __call__(self, x: Any) -> Any:
        x = tf.convert_to_tensor(x)
        total = tf.zeros((), x.dtype) if self._before is None else self._before(x)
        if self._proximal is not None:
            total += 0.5 * self._proximal * tf.reduce_sum(tf.square(x - tf.cast(self._anchor, x.dtype)))
        if self._correction is not None:
            total += tf.reduce_sum(tf.cast(self._correction, x.dtype) * x)
        return total

    def get_config(self) -> dict[str, Any]:
        """Return an empty configuration: a saved model has the weight's own regularizer again."""
        return {}
