"""A process in reserve: it makes the step of its model, and waits until it is needed."""

import keras

from tfdist.compat.keras import epochs as keras_epochs
from tfdist.compat.keras import keras_trainer as keras_model
from tfdist.monitor.process_clock import step_clock
from tfdist.training.global_batches import Input


def stand_by(model: keras.Model, *, training: bool) -> None:
    """Wait, if this process is in reserve, until it takes the place of another; else do nothing.

    Called when `fit` has prepared everything, before its callbacks begin. To make the step takes longer than all else
    that is left to do, so it is made here.
    """
    step_clock().stand_by(lambda: _make_step(model) if training else None)


def _make_step(model: keras.Model) -> None:
    fit = keras_epochs.running_fit(model)
    if fit is None:  # a `fit` of the user's own
        return
    trace = getattr(keras_model.train_function(model), "trace", None)
    given = keras_model.input_of(fit.epoch_iterator)
    if trace is not None and isinstance(given, Input):
        trace(given.layout)
