"""An exporter of scalars and histograms of steps for TensorBoard: a run for each worker, and one of texts for the job.

The package tensorboard has the protocol buffers of event files; TensorFlow is not loaded.
"""

import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.record_writer import RecordWriter

from tfdist.monitor.exporters.exporter import KINDS, Point, Update
from tfdist.monitor.verdict.step_parts import Part
from tfdist.monitor.watch.snapshot import sentence

DEFAULT = KINDS["tensorboard"].default
_BINS = 30
# every step has these parts, so their curves have all points, even if a part takes no time
_ALWAYS = (Part.FORWARD, Part.BACKWARD, Part.UPDATE)


class TensorBoard:
    """An exporter that writes into ``DIR/JOB/worker-N`` and ``DIR/JOB/job``."""

    def __init__(self, where: str) -> None:
        self._folder = Path(where or DEFAULT)
        self._files: dict[str, EventFile] = {}
        self._step = 0

    def write(self, update: Update) -> None:
        job = update.snapshot.job[:8]
        for point in update.points:
            self._step = point.step
            for place, worker in enumerate(point.steps.ranks):
                self._file(job, f"worker-{worker}").add(point.step, point.time, of_steps(point, place))
        if update.points:
            for one in update.snapshot.workers:
                used = [scalar(f"resources/{name}", value) for name, value in one.used.items()]
                self._file(job, f"worker-{one.worker}").add(self._step, update.snapshot.time, used)
        texts = [("events", sentence(event), float(event.get("time", time.time()))) for event in update.events]
        if update.is_last and update.snapshot.verdict:
            texts.append(("verdict", "\n".join(f"    {line}" for line in update.snapshot.verdict), time.time()))
        for tag, text, when in texts:
            self._file(job, "job").add(self._step, when, [text_summary(tag, text)])
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()

    def _file(self, job: str, run: str) -> "EventFile":
        if run not in self._files:
            self._files[run] = EventFile(self._folder / job / run)
        return self._files[run]


def of_steps(point: Point, place: int) -> list[Any]:
    """Return the values of a point for the worker at this index: scalars are means, histograms have single steps."""
    steps, found = point.steps, []
    for part in Part:
        seconds = steps.parts[:, place, part]
        # looks at all workers, so that each has the same curves
        if steps.parts[:, :, part].any() or (steps.is_divided and part in _ALWAYS):
            found += [
                scalar(f"step_seconds/{part.label}", seconds.mean()),
                _histogram(f"step_seconds_histogram/{part.label}", seconds),
            ]
    if steps.hidden.any():
        found.append(scalar("step_seconds/hidden_communication", steps.hidden[:, place].mean()))
    whole = steps.step[:, place]
    found += [scalar("step_seconds/step", whole.mean()), _histogram("step_seconds_histogram/step", whole)]
    found.append(scalar("steps_per_second", len(whole) / max(float(whole.sum()), 1e-9)))
    losses = steps.loss[steps.has_loss[:, place], place]
    if len(losses):
        found.append(scalar("loss", losses.mean()))
    norms = steps.gradient_norm[:, place]
    if not np.isnan(norms).all():
        found.append(scalar("gradient_norm", np.nanmean(norms)))
    return found


def scalar(tag: str, value: Any) -> Any:
    return Summary.Value(tag=tag, simple_value=float(value))


def _histogram(tag: str, values: np.ndarray) -> Any:
    counts, edges = np.histogram(values, bins=_BINS)
    return Summary.Value(
        tag=tag,
        histo=HistogramProto(
            min=values.min(),
            max=values.max(),
            num=len(values),
            sum=values.sum(),
            sum_squares=np.square(values).sum(),
            bucket_limit=edges[1:].tolist(),
            bucket=counts.tolist(),
        ),
    )


def text_summary(tag: str, text: str) -> Any:
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()], tensor_shape=shape)
    return Summary.Value(tag=tag, metadata=metadata, tensor=tensor)


class EventFile:
    """An event file of TensorBoard, to which steps are added."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        path = folder / f"events.out.tfevents.{int(now)}.{socket.gethostname()}.{os.getpid()}"
        self._file = open(path, "ab")  # noqa: SIM115 - closed in `close`
        self._records = RecordWriter(self._file)
        self._records.write(Event(wall_time=now, file_version="brain.Event:2").SerializeToString())

    def add(self, step: int, when: float, values: Iterable[Any]) -> None:
        self._records.write(Event(wall_time=when, step=step, summary=Summary(value=values)).SerializeToString())

    def flush(self) -> None:
        self._records.flush()

    def close(self) -> None:
        self._records.close()
