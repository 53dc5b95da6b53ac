"""An exporter of a job as one run of MLflow: parameters, metrics, system metrics; at the end a verdict and a summary.

It has a client of its own, and leaves a run of the script alone.
"""

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from tfdist.monitor.exporters.exporter import Point, Update
from tfdist.monitor.verdict.step_parts import Part
from tfdist.monitor.watch.snapshot import WorkerView

DEFAULT = "mlruns"
EXPERIMENT = "tfdist"
_MOST_PARAMETERS, _LONGEST_PARAMETER, _MOST_METRICS = 100, 500, 1000
# set in the exporting process alone: tfdist itself tries a server that does not answer again later
OWN = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_ALLOW_FILE_STORE": "true"}


def client_of(where: str) -> MlflowClient:
    """Return a client of a tracking server; "" means MLflow's default server."""
    for name, value in OWN.items():
        os.environ.setdefault(name, value)
    return MlflowClient(tracking_uri=where or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT)


def run_of(client: MlflowClient, job: str) -> tuple[str, set[str]]:
    """Return the id of a job's run, which is made if there is none, and the names of its logged parameters."""
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
    experiment = client.get_experiment_by_name(name)
    number = client.create_experiment(name) if experiment is None else experiment.experiment_id
    for known in client.search_runs([number], f"tags.`tfdist.job` = '{job}'", max_results=1):
        return str(known.info.run_id), set(known.data.params)  # of a process before this one
    run = client.create_run(number, run_name=job[:8], tags={"tfdist.job": job})
    return str(run.info.run_id), set()


class MLflow:
    """An exporter that writes one run to a tracking server, in the experiment MLFLOW_EXPERIMENT_NAME or tfdist."""

    def __init__(self, where: str) -> None:
        self._client = client_of(where)
        self._run = ""
        self._told: set[str] = set()  # names of parameters
        self._step = 0

    def write(self, update: Update) -> None:
        """Log the news; the first call makes the run, and the last ends it."""
        if not self._run:
            self._run, self._told = run_of(self._client, update.snapshot.job)
        parameters = [Param(name, value) for name, value in parameters_of(update.events).items()]
        fresh = [one for one in parameters if one.key not in self._told]
        for first in range(0, len(fresh), _MOST_PARAMETERS):
            self._client.log_batch(self._run, params=fresh[first : first + _MOST_PARAMETERS])
        self._told |= {one.key for one in fresh}
        metrics = [metric for point in update.points for metric in of_point(point)]
        if update.points:
            self._step = update.points[-1].step
            metrics += of_resources(update.snapshot.workers, self._step, update.snapshot.time)
        for first in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._run, metrics=metrics[first : first + _MOST_METRICS])
        for event in update.alerts:
            self._client.set_tag(self._run, f"alert.{event.get('alert')}", str(event.get("text", ""))[:500])
        if update.is_last:
            self._end(update)

    def close(self) -> None:
        """Do nothing: the run has ended with the last update, or stays as it is."""

    def _end(self, update: Update) -> None:
        if update.snapshot.verdict:
            self._client.log_text(self._run, "\n".join(update.snapshot.verdict) + "\n", "verdict.txt")
        self._client.log_text(self._run, json.dumps(update.snapshot.as_json(), indent=1) + "\n", "summary.json")
        if update.snapshot.bound:
            self._client.log_batch(self._run, tags=[RunTag("tfdist.bound", update.snapshot.bound)])
        ended = [event for event in update.snapshot.events if event.get("event") == "ended"]
        code = ended[-1].get("exit_code", 0) if ended else 0
        self._client.set_terminated(self._run, status="FINISHED" if code == 0 else "FAILED")


def parameters_of(events: tuple[Mapping[str, Any], ...]) -> dict[str, str]:
    told = [event.get("parameters", {}) for event in events if event.get("event") == "parameters"]
    return {name: str(value)[:_LONGEST_PARAMETER] for one in told for name, value in one.items() if value is not None}


def of_point(point: Point) -> Iterator[Metric]:
    """Yield the metrics of a point: means over its steps, for each worker."""
    steps = point.steps
    for place, worker in enumerate(steps.ranks):
        whole = steps.step[:, place]
        values = {f"step_seconds/{part.label}": float(steps.parts[:, place, part].mean()) for part in Part}
        values["step_seconds/hidden_communication"] = float(steps.hidden[:, place].mean())
        values["steps_per_second"] = len(whole) / max(float(whole.sum()), 1e-9)
        losses = steps.loss[steps.has_loss[:, place], place]
        if len(losses):
            values["loss"] = float(losses.mean())
        norms = [float(norm) for norm in steps.gradient_norm[:, place] if math.isfinite(norm)]
        if norms:
            values["gradient_norm"] = sum(norms) / len(norms)
        for name, value in values.items():
            yield Metric(f"{name}/worker_{worker}", value, int(1e3 * point.time), point.step)


def of_resources(workers: tuple[WorkerView, ...], step: int, when: float) -> list[Metric]:
    moment = int(1e3 * (when or time.time()))
    return [
        Metric(f"system/{name}/worker_{one.worker}", value, moment, step)
        for one in workers
        for name, value in one.used.items()
    ]
