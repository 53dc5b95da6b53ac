"""The first values of a weight in parts: the numbers of one device, of which each process has its own."""

import logging
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tfdist.collectives.traced import TracedCollective
from tfdist.compat.keras import variables as keras_variables
from tfdist.compat.tensorflow.meshes.sharded import Sharding
from tfdist.parallel import numbers

_LARGE_BYTES = 1 << 30
_log = logging.getLogger("tfdist")


class InitialParts:
    """Makes this process's part of the first process's initial values.

    Args:
        everybody: of all processes.
        waiting: returns a context for code that waits for other processes, given what it does.
    """

    def __init__(self, everybody: TracedCollective, waiting: Callable[[str], AbstractContextManager[None]]) -> None:
        self._everybody = everybody
        self._waiting = waiting

    def __call__(self, value: Any, initializer: Any, dtype: tf.DType, sharding: Sharding) -> tf.Tensor:
        """Return the part.

        Args:
            value: the whole, or a callable that returns it.
            initializer: what Keras makes it by, or None where that is not known.
            dtype: of the weight.
            sharding: of the weight.
        """
        known = self._alike(initializer, sharding.path)
        found = None if known is None else numbers.numbers_of(known, sharding.shape, dtype.name)
        if found is not None:
            return sharding.drawn(found.stretch)
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
            return sharding.cut(tf.convert_to_tensor(known(sharding.shape, dtype=dtype.name)))
        whole = tf.convert_to_tensor(value() if callable(value) else value, dtype)
        return sharding.cut(self._from_first(whole, f"the initial value of {sharding.path}"))

    def _alike(self, initializer: Any, path: str) -> Any:
        """Return an initializer that makes the first process's values on all, or None where nobody can say.

        Of Keras' own a seed decides, or nothing.
        """
        if not keras_variables.is_own_initializer(initializer):
            return None
        config = initializer.get_config()
        seed = config.get("seed")
        if "seed" not in config:
            return initializer
        if not isinstance(seed, int):
            return None
        first = int(self._from_first(tf.constant([seed], tf.int64), f"the seed of {path}")[0])
        return initializer if first == seed else type(initializer).from_config({**config, "seed": first})

    def _from_first(self, tensor: tf.Tensor, what: str) -> tf.Tensor:
        with self._waiting(what):
            return self._everybody.broadcast(tensor, what)
