"""A job's metrics in the text format of Prometheus. docs/monitoring.md has their names; a test compares."""

from collections.abc import Iterator

from prometheus_client import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tfdist.watch.snapshot import Snapshot, WorkerView

__all__ = ["CONTENT_TYPE", "text"]

_ONE = ("job", "worker")


def text(found: Snapshot) -> str:
    """Return a job's metrics.

    Args:
        found: the job.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OfJob(found))
    return generate_latest(registry).decode()


class _OfJob(Collector):
    def __init__(self, found: Snapshot) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with its values."""
        job = self._found.job
        parts = GaugeMetricFamily(
            "tfdist_step_seconds", "Mean seconds of a part of a step, of the last 100", labels=(*_ONE, "part")
        )
        for one in self._found.workers:
            for label, seconds in one.parts.items():
                parts.add_metric([job, str(one.worker), label], seconds)
        yield parts
        yield self._of_workers("tfdist_hidden_communication_seconds", "Of a step, beside the backward pass", "hidden")
        yield self._of_workers("tfdist_steps_per_second", "Steps in a second", "steps_per_second")
        yield self._of_workers("tfdist_loss", "Of this worker's examples in its last step", "loss")
        yield self._of_workers("tfdist_resident_memory_bytes", "Resident memory of the process", "memory")
        yield self._of_workers("tfdist_busy_processors", "Processors that the process keeps busy", "cpu")
        steps = CounterMetricFamily("tfdist_steps", "Steps that have ended since the workers were started", labels=_ONE)
        for one in self._found.workers:
            steps.add_metric([job, str(one.worker)], one.step)
        yield steps
        failures = sum(event.get("event") == "failed" for event in self._found.events)
        for name, what, value in (
            ("tfdist_restarts", "How often the workers were started again", self._found.start),
            ("tfdist_failures", "How often workers have failed or hung", failures),
        ):
            counted = CounterMetricFamily(name, what, labels=("job",))
            counted.add_metric([job], value)
            yield counted
        bound = GaugeMetricFamily("tfdist_bound", "1 for what the job is bound by", labels=("job", "bound"))
        if self._found.bound:
            bound.add_metric([job, self._found.bound], 1)
        yield bound

    def _of_workers(self, name: str, what: str, attribute: str) -> Metric:
        gauge = GaugeMetricFamily(name, what, labels=_ONE)
        for one in self._found.workers:
            if (value := _value(one, attribute)) is not None:
                gauge.add_metric([self._found.job, str(one.worker)], value)
        return gauge


def _value(one: WorkerView, attribute: str) -> float | None:
    value = getattr(one, attribute)
    return None if value is None else float(value)
