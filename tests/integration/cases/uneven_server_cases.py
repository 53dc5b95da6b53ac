"""Cases of workers of unlike speed, which run in a chief with three workers and two servers of its own."""

import os
import signal
from typing import Any

import keras
import parameter_server_cases as cases
import tensorflow as tf

from tfdist.monitor.observer import StepObserver
from tfdist.monitor.process_clock import step_clock


class _Warnings(StepObserver):
    def __init__(self) -> None:
        self.sentences: list[str] = []

    def on_warning(self, sentence: str) -> None:
        self.sentences.append(sentence)


def backup_workers() -> dict[str, Any]:
    """Train in parts of which the last one is not waited for, while worker 0 is stopped all the time."""
    made = cases.strategy(max_staleness=0, backup_workers=1, worker_timeout_seconds=600.0)
    model = cases.counting(made)
    model.fit(*cases.data(24), batch_size=12, epochs=1, verbose=0)
    before = made.dropped.copy()
    told = _Warnings()
    os.kill(cases.pid("worker", 0), signal.SIGSTOP)
    step_clock().attach(told)
    try:
        history = model.fit(*cases.data(60), batch_size=12, epochs=2, verbose=0)
    finally:
        step_clock().detach(told)
        os.kill(cases.pid("worker", 0), signal.SIGCONT)
    cases.wait(lambda: cases.all_present(made))
    since = made.dropped.since(before)
    return cases.counts(made, model, history) | {
        "dropped": made.dropped_examples - before.examples,
        "by worker": list(since.by_worker.items()),
        "steps": [part.step - before.steps for part in since.parts],
        "logs": history.history["dropped_examples"],
        "told": told.sentences,
        "weight": cases.weight(model),
    }


class _Undeclared(keras.metrics.Metric):
    """Counts examples in a variable that does not say that it is a sum."""

    def __init__(self) -> None:
        super().__init__(name="undeclared")
        self.count = keras.Variable(0.0, trainable=False)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.count.assign_add(tf.cast(tf.shape(y_true)[0], tf.float32))

    def result(self) -> Any:
        return tf.identity(self.count.value)


def undeclared_counts(max_staleness: int | None) -> dict[str, Any]:
    """Return the warnings, and what a metric has counted of 40 examples whose variable declares nothing."""
    made = cases.strategy(max_staleness=max_staleness)
    told = _Warnings()
    with made.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[_Undeclared(), "mae"])
    step_clock().attach(told)
    try:
        seen = model.evaluate(*cases.data(40), batch_size=8, verbose=0, return_dict=True)
    finally:
        step_clock().detach(told)
    return {"told": told.sentences, "count": seen["undeclared"]}


def groups_by_name() -> dict[str, Any]:
    """Train 60 batches while worker 2 is stopped with one of them, until the others have computed 40."""
    made = cases.strategy(max_staleness=1, groups={"fast": ["worker-0", "worker-1"], "slow": ["worker-2"]})
    model = cases.counting(made)
    model.fit(*cases.data(96), batch_size=8, verbose=0)
    os.kill(cases.pid("worker", 2), signal.SIGSTOP)
    resume = cases.At(0, 40, lambda: os.kill(cases.pid("worker", 2), signal.SIGCONT))
    try:
        history = model.fit(*cases.data(480), batch_size=8, verbose=0, callbacks=[resume])
    finally:
        os.kill(cases.pid("worker", 2), signal.SIGCONT)
    return cases.counts(made, model, history) | {"groups": made.groups}


def groups_by_speed() -> dict[str, Any]:
    """Train while worker 1 is told to take four times as long as others, and evaluate after that."""
    made = cases.strategy(max_staleness=2, groups="auto")
    groups, told = made._chief.groups, _Warnings()
    note = groups.note
    groups.note = lambda worker, seconds: note(worker, (0.1, 0.4, 0.1)[worker] if seconds else 0.0)  # type: ignore[method-assign]
    model = cases.counting(made)
    before = made.groups
    step_clock().attach(told)
    try:
        history = model.fit(*cases.data(805), batch_size=8, epochs=2, verbose=0)
    finally:
        step_clock().detach(told)
    logs = model.evaluate(*cases.data(50), batch_size=8, verbose=0, return_dict=True)
    return cases.counts(made, model, history) | {
        "before": before,
        "groups": made.groups,
        "told": told.sentences,
        "evaluated": float(logs["examples"]),
    }


def a_group_dies() -> dict[str, Any]:
    """Train 3 epochs of 20 batches while the only worker of a group is killed in the second."""
    made = cases.strategy(max_staleness=1, groups={"fast": ["worker-1", "worker-2"], "alone": ["worker-0"]})
    model = cases.counting(made)
    kill = cases.At(1, 5, lambda: os.kill(cases.pid("worker", 0), signal.SIGKILL))
    history = model.fit(*cases.data(160), batch_size=8, epochs=3, verbose=0, callbacks=[kill])
    cases.wait(lambda: cases.all_present(made))
    return cases.counts(made, model, history)
