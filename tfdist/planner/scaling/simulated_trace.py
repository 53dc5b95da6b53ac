"""A chrome trace of simulated steps, for Perfetto and chrome://tracing. Loads no TensorFlow."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfdist.planner.scaling.job_simulator import Scenario, StepModel
from tfdist.planner.scaling.job_steps import Job, travel_times

_STEPS, _SENDS = 0, 1


def trace_of(job: Job, scenario: Scenario, *, steps: int = 10, workers: int = 16) -> str:
    """Return the first steps of the first workers as a chrome trace; a bucket's span ends with its use of the link."""
    model = StepModel(job, scenario.slow)
    factors = model.computing(np.random.default_rng(scenario.seed), min(steps, scenario.steps))
    shown = min(workers, job.workers)
    names = [("process_name", worker, None, f"worker {worker}") for worker in range(shown)]
    rows = [("thread_name", worker, row, name) for worker in range(shown) for row, name in enumerate(("step", "sends"))]
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": kind, "pid": pid, **({} if tid is None else {"tid": tid}), "args": {"name": name}}
        for kind, pid, tid, name in [*names, *rows]
    ]
    begin = 0.0
    for number, (row, length) in enumerate(zip(factors, model.lengths(factors), strict=True)):
        for worker, name, tid, first, last in _spans(model, row, float(length)):
            if worker < shown and last > first:
                found = {"ph": "X", "name": name, "pid": worker, "tid": tid, "args": {"step": number}}
                events.append({**found, "ts": 1e6 * (begin + first), "dur": 1e6 * (last - first)})
        begin += float(length)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _spans(model: StepModel, factors: np.ndarray, length: float) -> Iterator[tuple[int, str, int, float, float]]:
    """Yield the worker, name, row, begin and end of each part of a step."""
    last = float(factors.max())
    computed = [model.compute * float(factor) for factor in factors]
    done = max(computed)
    for worker, end in enumerate(computed):
        yield worker, "compute", _STEPS, 0.0, end
        yield worker, "waits for the last worker", _STEPS, end, done
        yield worker, "reduction, update and rest", _STEPS, done, length
    for number, (one, times) in enumerate(zip(model.exchanges, travel_times(model.exchanges, last), strict=True)):
        begin, end, _ = map(float, times)
        for worker, factor in enumerate(factors):
            yield worker, f"bucket {number}", _SENDS, max(begin, one.ready * float(factor)), end
