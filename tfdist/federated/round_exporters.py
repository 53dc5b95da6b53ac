"""The rounds of a run for TensorBoard, Prometheus and MLflow, through the exporters of jobs.

Each exporter has a thread: a slow or dead server causes one warning, and no round waits for it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfdist.errors import ConfigError
from tfdist.federated.round_history import PICTURE, RoundRecord
from tfdist.monitor.exporters.exporter import KINDS, Exporter, Target, parse_all
from tfdist.monitor.exporters.exporting import Outlet, end_all

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_MOST_WAITING = 10_000  # rounds, for a slow server
_LONGEST_PARAMETER = 500
_OPTIONAL = ("bytes", "epsilon", "clipped_updates", "clipped_values")


@dataclass(frozen=True)
class RunAbout:
    """The description of a run for exporters: an id that it keeps when it is resumed, and its parameters."""

    id: str
    parameters: Mapping[str, str]


@dataclass(frozen=True)
class RunEnd:
    """The end of a run; ``error`` says why the run could not be finished."""

    error: str = ""


RoundNews = RoundRecord | RunEnd


def targets_of(texts: Sequence[str], *, option: str) -> tuple[Target, ...]:
    """Return the exporters that texts name; raise ConfigError for those that rounds do not support."""
    targets = parse_all(texts, option=option)
    for target in targets:
        if target.name not in _EXPORTERS:
            raise ConfigError(
                f"{option} is {str(target)!r}; rounds are exported to {', '.join(_EXPORTERS)}. Their curves are in "
                f"{PICTURE} of the run's folder.",
                name=option,
                received=str(target),
            )
    return targets


@contextmanager
def exported(
    targets: Sequence[Target], about: RunAbout, *, warn: Callable[[str], None]
) -> Iterator[Callable[[RoundRecord], None]]:
    """Yield a function that passes on the record of a round; the end of the block is the end of the run."""

    def made(target: Target) -> Exporter[RoundNews]:
        exporter: Exporter[RoundNews] = _EXPORTERS[target.name](target.where, about)
        return exporter

    outlets = [Outlet[RoundNews](str(one), partial(made, one), warn, most=_MOST_WAITING) for one in targets]

    has_begun = False

    def put(news: RoundNews) -> None:
        nonlocal has_begun
        has_begun = True
        for outlet in outlets:
            outlet.put(news)

    end = RunEnd("it was interrupted")
    try:
        yield put
        end = RunEnd()
    except Exception as error:
        end = RunEnd(str(error))
        raise
    finally:
        if has_begun:  # else the request made no sense, and no run is made of it
            put(end)
        end_all(outlets)


def values_of(record: RoundRecord) -> dict[str, float]:
    """Return the values of a round for curves, with metrics under "train" and "evaluation"."""
    return {
        **{f"train/{name}": value for name, value in record.train.items()},
        **{f"evaluation/{name}": value for name, value in record.evaluation.items()},
        "rounds/clients": record.used,
        "rounds/clients_lost": record.selected - record.used,
        "rounds/examples": record.examples,
        "rounds/attempts": record.attempt + 1,
        "rounds/seconds": record.seconds,
        **{f"rounds/{name}": value for name in _OPTIONAL if (value := getattr(record, name)) is not None},
    }


class _TensorBoard:
    """An exporter to ``DIR/RUN``: a folder of curves for training, for evaluation, and for the rounds themselves."""

    def __init__(self, where: str, about: RunAbout) -> None:
        from tfdist.monitor.exporters.tensorboard_exporter import EventFile, scalar

        folder = Path(where or KINDS["tensorboard"].default, about.id[:8])
        self._files = {part: EventFile(folder / part) for part in ("train", "evaluation", "rounds")}
        self._scalar = scalar

    def write(self, news: RoundNews) -> None:
        if isinstance(news, RunEnd):
            return
        values = values_of(news)
        for part, file in self._files.items():
            own = {name: value for name, value in values.items() if name.startswith(f"{part}/")}
            # the same tag for training and evaluation, so that both are in one chart
            tags = own if part == "rounds" else {name.partition("/")[2]: value for name, value in own.items()}
            file.add(news.round + 1, time.time(), [self._scalar(tag, value) for tag, value in tags.items()])
            file.flush()

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class _Prometheus:
    """An exporter that serves the figures of the last round at ``/metrics``."""

    def __init__(self, where: str, about: RunAbout) -> None:
        from prometheus_client import CollectorRegistry

        from tfdist.monitor.exporters.prometheus_exporter import Metrics

        self._run, self._last = about.id, list[RoundRecord]()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        self._served = Metrics(where, registry)

    def collect(self) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for record in self._last:
            rounds = CounterMetricFamily("tfdist_federated_rounds", "Rounds that are done", labels=("job",))
            rounds.add_metric([self._run], record.round + 1)
            yield rounds
            for name, value in values_of(record).items():
                kind, _, short = name.partition("/")
                if kind == "rounds":
                    gauge = GaugeMetricFamily(f"tfdist_federated_{short}", "Of the last round", labels=("job",))
                    gauge.add_metric([self._run], value)
                    yield gauge
            metrics = GaugeMetricFamily(
                "tfdist_federated_metric", "A metric of the model in the last round", labels=("job", "of", "name")
            )
            for kind, found in (("train", record.train), ("evaluation", record.evaluation)):
                for name, value in found.items():
                    metrics.add_metric([self._run, kind, name], value)
            yield metrics

    def write(self, news: RoundNews) -> None:
        if isinstance(news, RoundRecord):
            self._last = [news]

    def close(self) -> None:
        self._served.close()


class _MLflow:
    """An exporter that writes one run, which continues when it is resumed."""

    def __init__(self, where: str, about: RunAbout) -> None:
        from tfdist.monitor.exporters.mlflow_exporter import client_of, run_of

        self._client = client_of(where)
        self._run, told = run_of(self._client, about.id)
        for name, value in about.parameters.items():
            if name not in told:
                self._client.log_param(self._run, name, value[:_LONGEST_PARAMETER])

    def write(self, news: RoundNews) -> None:
        from mlflow.entities import Metric

        if isinstance(news, RunEnd):
            if news.error:
                self._client.set_tag(self._run, "tfdist.error", news.error[:_LONGEST_PARAMETER])
            self._client.set_terminated(self._run, status="FAILED" if news.error else "FINISHED")
            return
        now = int(1e3 * time.time())
        metrics = [Metric(name, float(value), now, news.round + 1) for name, value in values_of(news).items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        """Do nothing: the last event has ended the run, or the run stays as it is."""


_EXPORTERS: dict[str, Any] = {"tensorboard": _TensorBoard, "prometheus": _Prometheus, "mlflow": _MLflow}
