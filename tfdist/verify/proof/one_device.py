"""A strategy that is one device: the reference for the comparison of a script.

It is TensorFlow's default strategy, but reports the replicas of the script's own strategy, so that batch sizes and
learning rates that follow from them stay the same.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist.strategies as strategies
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.strategies import factory


class OneDevice:
    """A stand-in for any strategy, with its arguments; ``replicas`` is the number that the script sees."""

    replicas = 1

    def __init__(self, *_: Any, **__: Any) -> None:
        self._default = tf.distribute.get_strategy()
        self._is_in_step = False
        self.loss_reduction = "detect"
        self.workers = Workers()
        self.is_chief = True

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas of the script's strategy; 1 inside a step, which is the step of all of them."""
        return 1 if self._is_in_step else self.replicas

    def run(self, fn: Callable[..., Any], args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        self._is_in_step = True
        try:
            return self._default.run(fn, args, kwargs, options)
        finally:
            self._is_in_step = False

    def whole_value(self, variable: Any) -> Any:
        return np.asarray(variable.value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._default, name)


def use(replicas: int) -> None:
    """Replace every strategy of `tfdist.strategies` by one device, in a process that ends with its script."""
    kind = type("OneDevice", (OneDevice,), {"replicas": replicas})
    for name in strategies.__all__:
        if isinstance(getattr(strategies, name), type):
            setattr(strategies, name, kind)
    for name in ("create", "from_distribution", "from_environment"):
        for module in (strategies, factory):
            setattr(module, name, lambda *_, **__: kind())
