"""Models whose tables are in parts on parameter servers, and their optimizers."""

from collections.abc import Callable
from typing import Any

import keras

from tfdist.optimizers import DistributedOptimizer


@keras.saving.register_keras_serializable("tests")
class WithPositions(keras.layers.Embedding):
    """Looks up words and, in the same table, their positions."""

    def call(self, inputs: Any) -> Any:
        return super().call(inputs) + 0.5 * super().call(keras.ops.arange(keras.ops.shape(inputs)[-1]))


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.01, global_clipnorm=1.0),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "positions": lambda: keras.optimizers.Adam(0.01),
    "ema": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_overwrite_frequency=3),
    "accumulated": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "distributed": lambda: DistributedOptimizer(
        keras.optimizers.Adam(0.01), accumulate_steps=4, loss_scale="dynamic", global_clipnorm=1.0
    ),
}
