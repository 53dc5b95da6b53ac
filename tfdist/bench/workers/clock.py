"""When an epoch began and ended."""

import time
from typing import Any

import keras

__all__ = ["Clock"]


class Clock(keras.callbacks.Callback):
    """Notes when the last epoch began and ended: without what `fit` does once in a call.

    Example:
        >>> clock = Clock()                                        # doctest: +SKIP
        >>> model.fit(dataset, verbose=0, callbacks=[clock])       # doctest: +SKIP
        >>> clock.seconds                                          # doctest: +SKIP
        1.25
    """

    began = ended = 0.0

    @property
    def seconds(self) -> float:
        """How long the epoch took."""
        return self.ended - self.began

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Note the time."""
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Note the time."""
        self.ended = time.perf_counter()
