"""Resets and later counts of metrics, with the effect that they have on one device.

On one device Keras makes the metrics given to `compile` in the first step. So the resets before that step do nothing,
and a variable that begins at another number than zero keeps it for the first epoch. In a scope they are made before.

The logs of an epoch are those of its last step, because Keras would read every variable again, from all workers. After
a callback has reset the metrics since that step, they are the results of metrics that have counted nothing; after an
evaluation by a callback, those of the evaluation.

Private names, read in Keras 3.15.1 (`keras/src/trainers/trainer.py`): `_compile_metrics`, whose `reset_state` does
nothing until its first `update_state`; `_initial_epoch`, at which a restored backup lets `fit` begin.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from tfdist.compat import planted


@contextlib.contextmanager
def first_values_kept(model: keras.Model) -> Iterator[None]:
    """Let metrics that are built in the block ignore resets until they count; not if later epochs are resumed."""
    metrics = model._compile_metrics
    was_built = metrics is None or metrics.built
    yield
    if was_built or not metrics.built:
        return
    own, kind = vars(metrics), type(metrics)

    def reset_state() -> None:
        if model._initial_epoch:
            kind.reset_state(metrics)

    def update_state(*values: Any, **named: Any) -> None:
        _end_first_values(metrics)
        kind.update_state(metrics, *values, **named)

    own.update(reset_state=reset_state, update_state=planted.in_place_of(kind.update_state, update_state))


def _end_first_values(metrics: keras.Metric | None) -> None:
    for name in ("reset_state", "update_state") if metrics is not None else ():
        vars(metrics).pop(name, None)


def watch(model: keras.Model) -> None:
    """Note each reset of a model's metrics, from now on."""
    state, kind = planted.of_model(model), type(model)

    def reset_metrics() -> None:
        state.metrics_were_reset = True
        kind.reset_metrics(model)

    vars(model)["reset_metrics"] = reset_metrics


def note_steps(model: keras.Model) -> None:
    """Note that metrics count from here on."""
    planted.of_model(model).metrics_were_reset = False


def note_logs(model: keras.Model, logs: Any) -> None:
    """Note what the steps that end here log."""
    planted.of_model(model).last_logs = logs


def note_restored(model: keras.Model) -> None:
    """Note that metrics have the counts of an earlier process, whose steps are those of this epoch."""
    note_steps(model)
    note_logs(model, None)
    _end_first_values(model._compile_metrics)


def logs_now(model: keras.Model, logs: dict[str, Any], settled: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics of a model at the end of an epoch or evaluation.

    ``logs`` are those of its last step, and ``settled`` what a strategy makes of them. They are returned unless a reset
    or an evaluation has come after them.
    """
    state = planted.of_model(model)
    if state.metrics_were_reset:
        with keras.StatelessScope():  # a reset is the same everywhere, so nothing has to travel
            type(model).reset_metrics(model)
            return {**settled, **model.get_metrics_result()}
    last = state.last_logs
    is_later = isinstance(last, dict) and last is not logs and last.keys() == logs.keys() == settled.keys()
    return last if is_later else settled
