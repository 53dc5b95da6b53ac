"""A job's metrics in the text format of Prometheus. docs/monitoring-exporters.md has their names; a test compares."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from tfdist.monitor.verdict.alerts import Kind
from tfdist.monitor.watch.snapshot import Snapshot

CONTENT_TYPE = CONTENT_TYPE_LATEST
_ONE = ("job", "rank")


def text(found: Snapshot) -> str:
    return generate_latest(registry_of(lambda: found)).decode()


def registry_of(look: Callable[[], Snapshot | None]) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OfJob(look))
    return registry


class _OfJob(Collector):
    def __init__(self, look: Callable[[], Snapshot | None]) -> None:
        self._look = look

    def collect(self) -> Iterator[Metric]:
        found = self._look()
        if found is not None:
            yield from _metrics(found)


def _metrics(found: Snapshot) -> Iterator[Metric]:
    job = found.job
    parts = GaugeMetricFamily(
        "tfdist_step_seconds", "Mean seconds of a part of a step, of the last 100", labels=(*_ONE, "phase")
    )
    for one in found.workers:
        for label, seconds in one.parts.items():
            parts.add_metric([job, str(one.worker), label], seconds)
    yield parts
    yield _of_workers(found, "tfdist_hidden_communication_seconds", "Of a step, beside the backward pass", "hidden")
    yield _of_workers(found, "tfdist_steps_per_second", "Steps in a second", "steps_per_second")
    yield _of_workers(found, "tfdist_loss", "Of this worker's examples in its last step", "loss")
    yield _of_workers(found, "tfdist_gradient_norm", "Of the reduced gradient, measured now and then", "gradient_norm")
    yield _of_workers(found, "tfdist_resident_memory_bytes", "Resident memory of the process", "memory")
    yield _of_workers(found, "tfdist_busy_processors", "Processors that the process keeps busy", "cpu")
    what = "Steps that have ended since the workers were started"
    yield _of_workers(found, "tfdist_steps", what, "step", CounterMetricFamily)
    failures = sum(event.get("event") == "failed" for event in found.events)
    counter, gauge = CounterMetricFamily, GaugeMetricFamily
    for family, name, what, value in (
        (counter, "tfdist_restarts", "How often the workers were started again", found.start),
        (counter, "tfdist_failures", "How often workers have failed or hung", failures),
        (gauge, "tfdist_model_flops_per_second", "Of the model, counted once", found.model_flops_per_second),
        (gauge, "tfdist_model_flops_utilization", "Of the devices' peak", found.model_flops_utilization),
    ):
        of_job = family(name, what, labels=("job",))
        if value is not None:
            of_job.add_metric([job], value)
        yield of_job
    bound = GaugeMetricFamily("tfdist_bound", "1 for what the job is bound by", labels=("job", "bound"))
    if found.bound:
        bound.add_metric([job, found.bound], 1)
    yield bound
    yield _alerts(found)
    yield from _resources(found)


def _alerts(found: Snapshot) -> Metric:
    alerts = CounterMetricFamily("tfdist_alerts", "Alerts that were raised", labels=("job", "alert", "rank"))
    told = (event for event in found.events if event.get("event") == "alert")
    ranks = ["", *(str(one.worker) for one in found.workers)]
    # for Prometheus, a series that begins at 1 has not increased
    count = Counter({(kind.value, rank): 0 for kind in Kind for rank in ranks})
    count.update((str(one.get("alert")), "" if one.get("worker") is None else str(one["worker"])) for one in told)
    for (alert, rank), number in sorted(count.items()):
        alerts.add_metric([found.job, alert, rank], number)
    return alerts


def _resources(found: Snapshot) -> Iterator[Metric]:
    for name in sorted({name for one in found.workers for name in one.resources}):
        gauge = GaugeMetricFamily(f"tfdist_{name}", name.replace("_", " ").capitalize(), labels=_ONE)
        for one in found.workers:
            if name in one.resources:
                gauge.add_metric([found.job, str(one.worker)], one.resources[name])
        yield gauge


def _of_workers(found: Snapshot, name: str, what: str, attribute: str, kind: Any = GaugeMetricFamily) -> Metric:
    family = kind(name, what, labels=_ONE)
    for one in found.workers:
        if (value := getattr(one, attribute)) is not None:
            family.add_metric([found.job, str(one.worker)], float(value))
    return family
