"""The first values of a weight in parts: the numbers of one device, of which each replica has its own."""

import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tfdist.collectives.traced import TracedCollective
from tfdist.compat.keras import keras_variables
from tfdist.compat.tensorflow.meshes.sharded_variable import Sharding
from tfdist.parallel import sharded_initializers

_LARGE_BYTES = 1 << 30
_log = logging.getLogger("tfdist")


class InitialParts:
    """Makes the parts that this process's replicas have of the first process's initial values."""

    def __init__(
        self,
        everybody: TracedCollective,
        waiting: Callable[[str], AbstractContextManager[None]],
        agree: Callable[[str, Sequence[int], tf.DType], None] | None = None,
    ) -> None:
        self._everybody = everybody
        self._waiting = waiting
        self._agree = agree

    def __call__(self, value: Any, initializer: Any, dtype: tf.DType, shardings: Sequence[Sharding]) -> list[tf.Tensor]:
        """Return the part of each replica."""
        # else those of all replicas would be on the device of the first
        with contextlib.nullcontext() if len(shardings) == 1 else tf.device("/device:CPU:0"):
            return self._made(value, initializer, dtype, shardings)

    def _made(self, value: Any, initializer: Any, dtype: tf.DType, shardings: Sequence[Sharding]) -> list[tf.Tensor]:
        sharding = shardings[0]
        if self._agree is not None:
            self._agree(sharding.path, sharding.shape, dtype)
        known = self._alike(initializer, sharding.path)
        found = None if known is None else sharded_initializers.numbers_of(known, sharding.shape, dtype.name)
        if found is not None:
            return [one.drawn(found.stretch) for one in shardings]
        size = math.prod(sharding.shape) * dtype.size
        if size > _LARGE_BYTES:
            _log.warning(
                "The weight %s of %.1f GB lies in parts, and its first value is made whole on each process and then "
                "cut: tfdist does not see how to make parts of what %s makes. Keras' initializers that draw each "
                "element by itself (uniform, normal, glorot, he, ...) or fill with a constant need no more "
                "than a part.",
                sharding.path,
                size / 1e9,
                "an array" if initializer is None else type(initializer).__name__,
            )
        if known is not None:
            whole = tf.convert_to_tensor(known(sharding.shape, dtype=dtype.name))
        else:
            whole = tf.convert_to_tensor(value() if callable(value) else value, dtype)
            whole = self._from_first(whole, f"the initial value of {sharding.path}")
        return [one.cut(whole) for one in shardings]

    def _alike(self, initializer: Any, path: str) -> Any:
        """Return an initializer that makes the first process's values on all, or None where nobody can say.

        Of Keras' own a seed decides, or nothing. Where the user gave none, Keras has drawn one when the initializer
        was made, of which the configuration says nothing.
        """
        if not keras_variables.is_own_initializer(initializer):
            return None
        config = initializer.get_config()
        if "seed" not in config:
            return initializer
        seed = getattr(initializer, "seed", None)
        if not isinstance(seed, int):
            return None
        first = int(self._from_first(tf.constant([seed], tf.int64), f"the seed of {path}")[0])
        return initializer if first == seed else type(initializer).from_config({**config, "seed": first})

    def _from_first(self, tensor: tf.Tensor, what: str) -> tf.Tensor:
        with self._waiting(what):
            return self._everybody.broadcast(tensor, what)
