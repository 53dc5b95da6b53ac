"""What the tests of workers of unlike speed run in a chief with three workers and two servers of its own."""

import os
import signal
from typing import Any

import parameter_server_cases as cases

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
