"""The loss scale and skipped steps in the logs of `fit`."""

from typing import Any

import keras


class LossScaleLogger(keras.callbacks.Callback):
    """A callback that adds ``loss_scale`` and ``skipped_steps`` to the logs of each epoch if the loss is scaled.

    It serves `keras.optimizers.LossScaleOptimizer`, with which Keras wraps the optimizer of a mixed_float16 model, and
    `tfdist.optimizers.DistributedOptimizer`. In a tfdist scope, `fit` adds one by itself. It does nothing if no loss is
    scaled.

    Logs:
        loss_scale: the scale at the end of the epoch.
        skipped_steps: the number of updates skipped so far because a gradient was not finite. DistributedOptimizer
            counts them in a variable, over all calls of `fit`. For Keras' optimizer this callback counts them, from the
            beginning of `fit`, unless the optimizer also accumulates gradients. `tfdist.callbacks.BackupAndRestore`
            keeps both.

    Example:
        >>> import numpy as np
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), 1024.0), "mse")
        >>> history = model.fit(np.ones((8, 4)), np.ones(8), callbacks=[LossScaleLogger()], verbose=0)
        >>> history.history["loss_scale"], history.history["skipped_steps"]
        ([1024.0], [0])
    """

    async_safe = True  # Keras may call it in another thread; it reads variables between epochs alone

    def __init__(self) -> None:
        super().__init__()
        self._skipped = 0
        self._begun = 0
        self._first: int | None = None
        self._steps = 0

    def get_state(self) -> dict[str, int]:
        """Return the count for a backup, which may be made in the middle of an epoch."""
        return {"skipped": self._so_far()}

    def set_state(self, state: dict[str, int]) -> None:
        """Resume from a backup's state."""
        self._skipped = state["skipped"]

    def on_train_begin(self, logs: Any = None) -> None:
        """Reset the count."""
        self._skipped = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the number of updates."""
        self._first, self._steps = None, 0
        if scales(self.model.optimizer):
            self._begun = int(self.model.optimizer.iterations.numpy())

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Note the first batch: an epoch that is resumed begins in its middle."""
        self._first = batch if self._first is None else self._first

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count steps."""
        self._steps = batch + 1 - (self._first or 0)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Log both numbers."""
        optimizer = self.model.optimizer
        if logs is None or not scales(optimizer):
            return
        logs["loss_scale"] = float(optimizer.dynamic_scale.numpy())
        counter = getattr(optimizer, "skipped_steps", None)
        if counter is not None:
            logs["skipped_steps"] = int(counter.numpy())
        elif not optimizer.inner_optimizer.gradient_accumulation_steps:
            self._skipped, self._begun, self._steps = self._so_far(), int(optimizer.iterations.numpy()), 0
            logs["skipped_steps"] = self._skipped

    def _so_far(self) -> int:
        optimizer = self.model.optimizer
        if not scales(optimizer) or hasattr(optimizer, "skipped_steps"):
            return self._skipped
        return self._skipped + self._steps - (int(optimizer.iterations.numpy()) - self._begun)


def scales(optimizer: Any) -> bool:
    """True if an optimizer scales the loss, and has done so."""
    known = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    return known and optimizer.built and getattr(optimizer, "loss_scale", "dynamic") is not None


def variable_of(optimizer: Any) -> Any:
    """Return the Keras variable of an optimizer's loss scale; None if it scales no loss."""
    return optimizer.dynamic_scale if scales(optimizer) else None


def show(model: keras.Model, running: keras.callbacks.CallbackList | None) -> None:
    """Add a `LossScaleLogger` to the callbacks of a `fit` that is about to begin, if one is missing."""
    if running is None or not isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):
        return
    if any(isinstance(callback, LossScaleLogger) for callback in running.callbacks):
        return
    logger = LossScaleLogger()
    logger.set_model(model)
    # placed before callbacks that get the logs, and after those that must come first
    place = next((i for i, c in enumerate(running.callbacks) if isinstance(c, keras.callbacks.History)), 0)
    running.callbacks.insert(place, logger)
