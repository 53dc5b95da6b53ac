"""Worker processes that train the same model in `fit`, with full, partial or no recording.

A graph keeps the stamps with which it was traced, so an arm with different stamps has a model of its own; arms without
stamps share one. The recorder itself is attached and detached between turns.

The cost of the graph's stamps is also measured alone, by a function that has only the stamps of a step. Without other
work nothing hides a stamp. So the extra time of such a function, compared with one without stamps, is at least the time
that stamps add to a step. The noise is that of some hundred microseconds, not of a step.
"""

import atexit
import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import tensorflow as tf

from tfdist.bench.workers import training_loops, workloads
from tfdist.bench.workers.workloads import MODELS
from tfdist.gradients.reduction import norms
from tfdist.monitor.process_clock import step_clock
from tfdist.monitor.recording import row_ring
from tfdist.monitor.recording.graph_stamps import Rows, Stamps
from tfdist.monitor.recording.recorder import Recorder
from tfdist.monitor.recording.rows import NORM_EVERY, Column
from tfdist.training import step_timestamps
from tfdist.training.step_timestamps import new_rows

__all__ = ["measure", "measure_graphs", "prepare", "prepare_graphs"]


class _Timed(Recorder):
    """Measures its CPU time for writing, and its time in the thread that steps."""

    flushing = 0.0
    inside = 0.0

    def flush(self, *, all_steps: bool = True) -> None:
        """Write the steps that have ended."""
        began = time.thread_time()
        super().flush(all_steps=all_steps)
        self.flushing += time.thread_time() - began

    def on_begin(self, *told: Any) -> None:
        """Begin a row."""
        self._for(super().on_begin, told)

    def on_outside(self, *told: Any) -> None:
        """Note that workers agree on something."""
        self._for(super().on_outside, told)

    def on_step(self, *told: Any) -> None:
        """Keep the row, and let the gathered rows be written if it is time."""
        self._for(super().on_step, told)

    def on_done(self, *told: Any) -> None:
        """Add up the time of the work between steps."""
        self._for(super().on_done, told)

    def _for(self, call: Callable[..., None], told: tuple[Any, ...]) -> None:
        began = time.perf_counter()
        call(*told)
        self.inside += time.perf_counter() - began


# calls of each function in a turn; the norm is measured as often
_NORMS = 5


class Graphs:
    """Functions that stamp the gradients of a model: none, all stamps, and the norm of the gradient as well.

    Args:
        strategy: whose steps are recorded.
        model: a name from `MODELS`, whose weights define the number and sizes of gradients.
        reductions: the number of stamped reductions in a step of this model.

    Example:
        >>> Graphs("multi-worker", "small", reductions=1).added()                        # doctest: +SKIP
        {'stamps': 2.1e-05, 'everything': 4.2e-05}
    """

    def __init__(self, strategy: str, model: str, *, reductions: int) -> None:
        shapes = [tuple(weight.shape) for weight in MODELS[model].build().trainable_variables]
        gradients = [tf.random.stateless_normal(shape, (number, 1)) for number, shape in enumerate(shapes)]
        with workloads.of_tfdist(strategy).scope():
            rows = new_rows()
        self._calls: Mapping[str, Callable[[], Any]] = {
            "nothing": _function(gradients, reductions, None, has_norm=False),
            "stamps": _function(gradients, reductions, rows, has_norm=False),
            "everything": _function(gradients, reductions, rows, has_norm=True),
        }
        for call in self._calls.values():
            call()  # traced

    def added(self) -> dict[str, float]:
        """Return the extra seconds of a call with stamps, and with the norm as well, compared with none."""
        taken = {}
        for arm, call in self._calls.items():
            began = time.perf_counter()
            for _ in range(_NORMS * NORM_EVERY):
                call()
            taken[arm] = (time.perf_counter() - began) / (_NORMS * NORM_EVERY)
        return {arm: taken[arm] - taken["nothing"] for arm in taken if arm != "nothing"}


def _function(
    gradients: Sequence[tf.Tensor], reductions: int, rows: Rows | None, *, has_norm: bool
) -> Callable[[], Any]:
    loss = tf.constant(1.0)

    def step(stamps: Stamps | None) -> tf.Tensor:
        found = [tf.identity(one) for one in gradients]
        if stamps is not None:
            stamps.loss(loss)
            stamps.mark(Column.GRADIENTS, found)
            for bucket in range(reductions):
                stamps.reduction(found[bucket::reductions], lambda bucket=bucket: found[bucket::reductions])  # type: ignore[misc]
            stamps.mark(Column.REDUCED, found)
            if has_norm:
                stamps.gradient_norm(norms.all_squares, found)
        return tf.reduce_sum(tf.reshape(found[0], [-1])[:1])

    @tf.function(autograph=False)
    def stamped() -> tf.Tensor:
        if rows is None:
            return step(None)
        with Stamps(rows) as stamps:
            returned = step(stamps)
            stamps.end()
            return returned

    return stamped


# by arm; a worker process keeps what it has built
_prepared: dict[str, training_loops.Runner] = {}
_recorders: dict[str, _Timed] = {}
_graphs: list[Graphs] = []


def prepare(arm: str, strategy: str, model: str, global_batch_size: int, steps: int) -> None:
    """Build the model of an arm and run it for this number of steps, which trace and warm it."""
    if arm != "nothing":
        _recorders[arm] = _Timed(Path(_folder(), arm))
    if arm == "observers":
        _prepared[arm] = _prepared["nothing"]
    else:
        _prepared[arm] = training_loops.fit(workloads.of_tfdist(strategy), model, global_batch_size)
    without_norm = mock.patch.object(Stamps, "gradient_norm", return_value=None)
    with without_norm if arm == "stamps" else contextlib.nullcontext(), _recorded(arm):
        _prepared[arm](steps)
    if arm in ("stamps", "everything"):
        step_timestamps.record_with(_recorders[arm])  # a ring of stamps gives them to the first recorder


def measure(arm: str, steps: int) -> dict[str, float]:
    """Return this worker's wall seconds for the given number of steps, its CPU seconds, and those for writing rows.

    CPU seconds are those of all threads, in the whole call of `fit`. "inside" are the seconds of the recorder's work in
    the thread that steps, which have no noise of the steps.
    """
    with _recorded(arm):
        flushed, inside = _flushing(arm), _inside(arm)
        began = time.process_time()
        seconds = _prepared[arm](steps).seconds
        return {
            "seconds": seconds,
            "processor": time.process_time() - began,
            "flushing": _flushing(arm) - flushed,
            "inside": _inside(arm) - inside,
        }


def prepare_graphs(strategy: str, model: str) -> None:
    """Trace functions that have only the stamps of a model's step, which was recorded before."""
    one = _recorders["everything"]
    one.flush()
    _graphs[:] = [Graphs(strategy, model, reductions=int(row_ring.read(one.path)[-1, Column.REDUCTIONS]))]


def measure_graphs() -> dict[str, float]:
    """Return the seconds that stamps, and the norm as well, add to a call of such a function."""
    return _graphs[0].added()


def _flushing(arm: str) -> float:
    return _recorders[arm].flushing if arm in _recorders else 0.0


def _inside(arm: str) -> float:
    return _recorders[arm].inside if arm in _recorders else 0.0


@contextlib.contextmanager
def _recorded(arm: str) -> Iterator[None]:
    one, clock = _recorders.get(arm), step_clock()
    if one is None:
        yield
        return
    clock.attach(one)
    try:
        yield
    finally:
        clock.detach(one)


def _folder() -> str:
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return folder.name
