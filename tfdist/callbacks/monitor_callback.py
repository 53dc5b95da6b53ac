"""`tfdist run --monitor` for scripts that are started without it: record, judge, export, draw."""

import atexit
import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self

import keras

import tfdist
from tfdist import validation
from tfdist.callbacks.flops import PASSES_OF_A_STEP, of_example
from tfdist.callbacks.single_process_job import Alerting, Recorded, recorded
from tfdist.cluster import from_environment
from tfdist.compat.keras import epochs as keras_epochs
from tfdist.errors import ConfigTypeError, TfdistError
from tfdist.jobs.process.exporter_process import Exporting
from tfdist.monitor.exporters import exporter
from tfdist.monitor.observer import StepObserver
from tfdist.monitor.phases import Kind, Phase
from tfdist.monitor.process_clock import step_clock
from tfdist.monitor.recording import chrome_trace as traces
from tfdist.monitor.recording import row_ring
from tfdist.monitor.recording.rows import Column
from tfdist.monitor.verdict.alerts import Alert
from tfdist.monitor.verdict.job_bound import lines, read_folder, verdict_of
from tfdist.training import step_timestamps
from tfdist.training.strategy_mixin import KerasTraining

__all__ = ["Monitor"]

_LOOK_SECONDS = 0.5  # at the page of a notebook
_logger = logging.getLogger("tfdist")


class Monitor(keras.callbacks.Callback):
    """A callback that records and exports the parts of each training step, and prints the bottleneck at the end.

    It works in every scope of tfdist and outside, with `tfdist run` and without. Without `tfdist run` the process is a
    job of its own while `fit` runs; `tfdist watch`, `tfdist export` and `tfdist trace save` find it. With `tfdist run`,
    the first worker sees all workers of its host. Outside a scope of tfdist a step is not divided: Keras reports no
    parts.

    Guaranteed: training is the same with it and without. Exporters run in another process, which reads the records in
    memory: a slow or dead server causes one warning, and no step waits for it.

    Args:
        every: the least number of steps whose mean is one point of a curve.
        exporters: the exporters, such as "tensorboard:DIR", "prometheus:PORT", "mlflow:URI", "html:FILE", as
            docs/monitoring-exporters.md describes. The first worker alone writes to them.
        trace: the file for the last 2,048 steps as a chrome trace, written at the end; None: no trace.
        live: whether to show the page of the job below the cell of a notebook, and update it; has no effect elsewhere.
        verbose: whether to print the verdict and tfdist's warnings at the end, and alerts as they come, unless
            `tfdist run --monitor` prints them.
        flops: whether to count the model's floating-point operations once, in the graph of its forward pass, and report
            them per second: in a scope of tfdist, for models that are built and have no loop (as recurrent layers
            have).
        peak_flops: the floating-point operations per second of one device with the dtype of the model, by its data
            sheet; then the utilization is reported too. None: no utilization is reported.
        on_alert: a function called in the first worker with each `Alert` (``kind``, ``worker``, ``text``), in a thread
            of its own; it may set ``monitor.model.stop_training``.

    Attributes:
        verdict: the verdict in lines, after `fit`; empty before, and if nothing was recorded.
        model_flops_per_second: the floating-point operations per second of the whole job, after `fit`; None if unknown.
        model_flops_utilization: the fraction of the peak of all devices that was used (MFU); None if unknown.

    Raises:
        ConfigError: an exporter is unknown, or a number is out of its range.
        MissingDependencyError: the package that an exporter needs is missing.

    Example:
        >>> import keras, numpy as np, tempfile
        >>> from tfdist.callbacks import Monitor
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> monitor = Monitor(verbose=False)
        >>> history = model.fit(np.ones((96, 4)), np.ones(96), batch_size=4, callbacks=[monitor], verbose=0)
        >>> monitor.verdict[0].startswith("verdict")
        True
    """

    def __init__(
        self,
        *,
        every: int = 10,
        exporters: Sequence[str] = (),
        trace: "str | os.PathLike[str] | None" = None,
        live: bool = True,
        verbose: bool = True,
        flops: bool = False,
        peak_flops: float | None = None,
        on_alert: Callable[[Alert], None] | None = None,
    ) -> None:
        super().__init__()
        self.every = validation.integer("every", every, minimum=1)
        self.exporters = tuple(map(str, exporter.parse_all(exporters)))
        self.trace = None if trace is None else os.fspath(trace)
        self.live = validation.boolean("live", live)
        self.verbose = validation.boolean("verbose", verbose)
        if on_alert is not None and not callable(on_alert):
            raise ConfigTypeError(f"on_alert is {on_alert!r}; give a function of one alert, or None.")
        self.on_alert = on_alert
        self.peak_flops = None if peak_flops is None else validation.number("peak_flops", peak_flops, above=0)
        self.flops = validation.boolean("flops", flops) or peak_flops is not None
        self.model_flops_per_second: float | None = None
        self.model_flops_utilization: float | None = None
        self._work = _Work(None, None)
        self._warnings: list[str] = []
        self.verdict: tuple[str, ...] = ()
        self._stack = contextlib.ExitStack()
        self._job: Recorded | None = None

    def set_model(self, model: keras.Model) -> None:
        """Join the `fit` that is about to begin; Keras calls it."""
        super().set_model(model)
        fit = keras_epochs.running_fit(model)
        if fit is None or fit.callbacks is None or isinstance(model.distribute_strategy, KerasTraining):
            return
        if not any(isinstance(one, _Steps) for one in fit.callbacks.callbacks):
            fit.callbacks.callbacks.append(_Steps())  # Keras goes through this list at the moment

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin to record."""
        self._end()  # of a `fit` that was interrupted
        self._work, self._warnings, self.verdict = _Work(None, None), [], ()  # not those of an earlier `fit`
        self.model_flops_per_second = self.model_flops_utilization = None
        rank = _rank()
        atexit.register(self._end)
        try:
            self._job = self._stack.enter_context(recorded(step_clock(), rank))
        except (OSError, TfdistError) as error:
            _logger.warning("Monitor records nothing (%s); training continues.", error)
            return
        step_timestamps.record_with(self._job.recorder)
        if rank != 0:
            return
        self._attach(_Warnings(self._job, self._warnings))
        if self.flops:
            self._count_flops(self._job)
        interactive = sys.modules.get("IPython")
        shell = None if interactive is None else interactive.get_ipython()
        has_page = self.live and hasattr(shell, "kernel")  # a notebook's kernel can show HTML
        cell = self._stack.enter_context(_Cell()) if has_page else None
        exporters = [*self.exporters, *([f"html:{cell.path}"] if cell is not None else [])]
        if exporters:
            self._job.events.write("parameters", start=self._job.start, parameters=self._parameters())
            after = int(rows[-1, Column.STEP]) if len(rows := row_ring.read(self._job.recorder.path)) else -1
            exporting = Exporting(self._job.job, exporters, _logger.warning, every=self.every, after=after)
            self._stack.callback(exporting.end)
        self._stack.callback(Alerting(self._job.steps, self._tell).end)  # before exporters end: they have the last ones

    def on_train_end(self, logs: Any = None) -> None:
        """Print the verdict, write the trace, and let exporters finish."""
        job = self._job
        if job is None:
            return
        job.recorder.flush()
        if _rank() == 0:
            found = verdict_of(job.steps)
            self.verdict = () if found is None else lines(found)
            if found is not None and found.step_seconds and self._work.flops is not None:
                self.model_flops_per_second = self._work.flops / found.step_seconds
                if self._work.peak is not None:
                    self.model_flops_utilization = self.model_flops_per_second / self._work.peak
            if self.trace is not None:
                try:
                    traces.write(self.trace, traces.trace(read_folder(job.steps)))
                except OSError as error:
                    _logger.warning("The trace %s cannot be written (%s).", self.trace, error)
            if self.verbose and self.verdict and not job.is_judged:
                sys.stdout.write("\n".join([*self.verdict, *(f"warning: {one}" for one in self._warnings), ""]))
                sys.stdout.flush()
        self._end()

    def _count_flops(self, job: Recorded) -> None:
        per_example = of_example(self.model) if self.model.built else None
        if per_example is None:
            _logger.warning("The FLOPs of the model %r cannot be counted; training continues.", self.model.name)
            return

        def tell(work: _Work) -> None:
            job.events.write("model", start=job.start, flops_per_step=work.flops, peak_flops=work.peak)

        self._work = _Work(per_example, self.peak_flops, tell)
        self._attach(self._work)

    def _attach(self, observer: StepObserver) -> None:
        step_clock().attach(observer)
        self._stack.callback(step_clock().detach, observer)

    def _tell(self, alert: Alert) -> None:
        job = self._job
        if job is not None and not job.is_judged:
            job.events.write("alert", start=job.start, alert=str(alert.kind), worker=alert.worker, text=alert.text)
            if self.verbose:
                _logger.warning("alert: %s.", alert.text)
        if self.on_alert is not None:
            self.on_alert(alert)

    def _end(self) -> None:
        atexit.unregister(self._end)
        self._stack.close()
        self._job = None

    def _parameters(self) -> dict[str, Any]:
        """Return the parameters of a training that are worth keeping, as plain values."""
        optimizer = getattr(self.model, "optimizer", None)
        settings = {} if optimizer is None else optimizer.get_config()
        plain = {f"optimizer.{name}": one for name, one in settings.items() if isinstance(one, bool | int | float)}
        return {
            "tfdist": tfdist.__version__,
            "keras": keras.__version__,
            "model": self.model.name,
            "parameters": self.model.count_params() if self.model.built else None,
            "strategy": type(self.model.distribute_strategy).__name__,
            "optimizer": None if optimizer is None else type(optimizer).__name__,
            **plain,
            **{name: self.params.get(name) for name in ("epochs", "steps")},
        }


class _Work(StepObserver):
    """The work that the job does in a step, once the number of its examples is known."""

    def __init__(
        self, per_example: float | None, peak: float | None, tell: "Callable[[_Work], None] | None" = None
    ) -> None:
        self.flops: float | None = None
        self.peak: float | None = None
        self._per_example, self._of_device, self._tell = per_example, peak, tell

    def on_trained(self, step: int, examples: int, replicas: int) -> None:
        """Note the largest step: the last one of an epoch may have fewer examples."""
        if self._per_example is None or not examples:
            return
        work = PASSES_OF_A_STEP * self._per_example * examples
        if self.flops is None or work > self.flops:
            self.flops = work
            devices = max(replicas, from_environment().num_workers)
            self.peak = None if self._of_device is None else self._of_device * devices
            if self._tell is not None:
                self._tell(self)


class _Warnings(StepObserver):
    """An observer that keeps the warnings of tfdist, and turns them into events if no agent does."""

    def __init__(self, job: Recorded, kept: list[str]) -> None:
        self._job, self._kept = job, kept

    def on_warning(self, sentence: str) -> None:
        self._kept.append(sentence)
        if not self._job.is_judged:
            self._job.events.write("warning", start=self._job.start, text=sentence)


class _Steps(keras.callbacks.Callback):
    """A callback that reports the steps of a model outside any scope of tfdist to the clock."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        step_clock().begin(Kind.TRAIN)
        step_clock().enter(Phase.UNDIVIDED)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        step_clock().end()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        step_clock().epoch_ends()


def _rank() -> int:
    return max(0, from_environment().worker_index)


class _Cell:
    """A display of the file ``path`` below the running notebook cell, renewed when the file changes, in a block.

    Its thread reads a few kilobytes twice a second.
    """

    def __enter__(self) -> Self:
        from IPython.display import HTML, display

        self._folder = tempfile.TemporaryDirectory(prefix="tfdist-cell-")
        self.path = Path(self._folder.name, "page.html")
        self._shown = ""
        self._make: Any = HTML
        self._handle: Any = display(HTML("tfdist: waiting for the first steps"), display_id=True)
        self._closed = Event()
        self._thread = Thread(target=self._follow, name="page in a cell", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed.set()
        self._thread.join()
        self._show()  # what came last
        self._folder.cleanup()

    def _follow(self) -> None:
        while not self._closed.wait(_LOOK_SECONDS):
            self._show()

    def _show(self) -> None:
        with contextlib.suppress(OSError):
            text = self.path.read_text(encoding="utf-8")
            if text != self._shown:
                self._shown = text
                self._handle.update(self._make(text))
