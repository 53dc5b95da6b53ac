"""Shares that follow the measured speed of workers while a model trains."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tfdist import validation
from tfdist.cluster.shares import Shares
from tfdist.compat.keras import epochs as keras_epochs
from tfdist.compat.keras import keras_trainer
from tfdist.errors import ConfigError
from tfdist.monitor.observer import StepObserver
from tfdist.monitor.phases import Kind
from tfdist.monitor.process_clock import step_clock
from tfdist.monitor.recording.rows import STAMPS, Column
from tfdist.training import step_timestamps
from tfdist.training.balance.share_decisions import LOOK_BACK, MOST_ROWS, Window, decide, interval, rows_of
from tfdist.training.global_batches import Input

_BEGIN, _GRADIENTS, _END = (int(one) - STAMPS[0] for one in (Column.GRAPH_BEGIN, Column.GRADIENTS, Column.GRAPH_END))


class BalanceShares(keras.callbacks.Callback):
    """A callback that gives each worker as many rows of every batch as it computes in the time of the others.

    Every ``every`` batches, workers compare their computing times: from the begin of a step to their own last gradient,
        without the wait for each other. Rows then move from slow workers to fast ones, until the longest computing time
        would fall by less than 5 %. While nothing moves, workers compare less often, down to an eighth. All workers
        decide alike. The batch size stays, a step is not traced again, and each example comes once per epoch.

    Guaranteed: the numbers of one device, up to the rounding of sums, whatever the shares. A worker that waits for its
    input keeps its rows, and a warning names it. Where computing cannot be told from waiting, one warning gives the
    reason, and shares stay: on GPUs, with BatchNormalization(synchronized=True), with sharded weights, in pipelines,
    and for the replicas of a single process. On one worker it does nothing.

    Args:
        every: the number of batches between two comparisons, which grows to at most eight times this number; more
            batches give a steadier measurement.
        max_change: the largest part of the batch that moves in one change, above 0 and at most 1.
        memory: the largest number of rows of a batch that fit into a worker's memory: one for all workers, or one for
            each. None: no limit.

    Attributes:
        changes: pairs of a number of batches and the rows of each worker from that batch on.

    Raises:
        ConfigError: a number is out of range. In `fit`: ``memory`` is given for another number of workers, or is too
            small for the batch.

    Example:
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> balance = BalanceShares(memory=48)
        >>> history = model.fit(np.ones((8, 4)), np.ones(8), batch_size=4, callbacks=[balance], verbose=0)
        >>> balance.changes  # of one worker
        []

    Source: S. Tyagi and P. Sharma, "Taming Resource Heterogeneity In Distributed ML Training With Dynamic Batching",
    2020. Their controller is proportional to the error; here speeds are known, and a change is limited instead.
    """

    #: a `fit` that is given this callback makes an input of which the shares can change
    moves_shares = True

    def __init__(self, *, every: int = 20, max_change: float = 0.2, memory: int | Sequence[int] | None = None) -> None:
        super().__init__()
        self.every = validation.integer("every", every, minimum=1)
        self.max_change = validation.number("max_change", max_change, above=0, maximum=1)
        self.memory = tuple(memory) if isinstance(memory, tuple | list) else memory
        for rows in self.memory if isinstance(self.memory, tuple) else () if memory is None else (memory,):
            validation.integer("memory", rows, minimum=1)
        self.changes: list[tuple[int, tuple[int, ...]]] = []
        self._batches = 0
        self._unchanged = 0  # comparisons in turn that left shares alone
        self._windows: list[Window] = []
        self._rows: tuple[int, ...] | None = None
        self._former: tuple[int, ...] | None = None  # rows, until those that were decided on hold
        self._input: Input | None = None
        self._told: set[str] = set()
        self._begins = _Begins()
        self._seen = 0
        self._since = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Examine the strategy, and begin to measure."""
        step_clock().detach(self._begins)  # of a `fit` that was interrupted
        self._rows, self._former, self._windows, self._since, self._unchanged = None, None, [], 0, 0
        strategy = self.model.distribute_strategy
        workers = getattr(strategy, "workers", None)
        if workers is None or workers.count == 1:
            if workers is not None and len(getattr(strategy, "shares", ())) > 1:
                self._tell(f"{type(strategy).__name__} has its replicas in one process, which measures one of them")
            return
        fit = keras_epochs.running_fit(self.model)
        batch = None if fit is None else fit.batch_size
        if (reason := _why_not(self.model, strategy, batch)) is not None:
            self._tell(reason)
            return
        self._most = self._caps(workers.count, batch)
        each = strategy.share.count
        self._is_known = batch is not None and batch <= MOST_ROWS
        self._batch = min(batch or MOST_ROWS, MOST_ROWS)
        self._rows = rows_of(strategy.shares[::each], self._batch, self._most)
        self._strategy, self._workers = strategy, workers
        given = None if fit is None else keras_trainer.input_of(fit.epoch_iterator)
        self._input = given if isinstance(given, Input) else None
        step_timestamps.ask()
        self._measure_from_here()
        step_clock().attach(self._begins)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Compare the measurements of workers, when a comparison is due."""
        self._batches += self._in_a_call
        self._since += self._in_a_call
        if self._former is not None:
            if self._input is not None:
                self._input.note_trained()
            self._note_change(self._former)
        elif self._rows is not None and self._since >= interval(self.every, self._unchanged):
            self._since = 0
            self._compare(self._rows)

    def on_train_end(self, logs: Any = None) -> None:
        """Stop measuring."""
        step_clock().detach(self._begins)
        self._input = None
        if self._former is not None:
            self._note_change(self._former)

    def get_state(self) -> dict[str, Any]:
        """Return the shares and the windows from which they follow, for `BackupAndRestore`."""
        windows = [[list(one.rows), list(one.computing), list(one.input)] for one in self._windows]
        found: dict[str, Any] = {"batches": self._batches, "rows": list(self._rows or ()), "windows": windows}
        found["unchanged"] = self._unchanged
        if self._former is not None and self._changes_at is not None:
            found |= {"former": list(self._former), "changes_at": self._changes_at}
        return found

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Resume with the shares of a state, if the number of workers is the same."""
        self._batches = int(state["batches"])
        if self._rows is None or len(self._rows) != len(state["rows"]):
            return
        self._windows = [Window(*(tuple(part) for part in one)) for one in state["windows"]]
        self._unchanged = int(state.get("unchanged", 0))  # none in backups of version 0.1
        rows = rows_of(state["rows"], self._batch, self._most)  # the batch may be another
        self._move(rows)
        if "former" in state and self._input is not None:
            self._former = rows_of(state["former"], self._batch, self._most)
            self._input.resume_change(self._shares(self._former), int(state["changes_at"]))

    @property
    def _in_a_call(self) -> int:
        return int(self.model.steps_per_execution)

    def _compare(self, rows: tuple[int, ...]) -> None:
        computing, waiting = self._measured()
        seen = self._workers.gather([round(1e9 * computing), round(1e9 * waiting)])
        self._windows.append(Window(rows, tuple(seen[:, 0] / 1e9), tuple(seen[:, 1] / 1e9)))
        del self._windows[:-LOOK_BACK]
        if not seen[:, 0].all():
            who = int(np.flatnonzero(seen[:, 0] == 0)[0])
            self._tell(f"steps of worker {who} have no time stamps; they were traced before, or computed on a GPU")
        found = decide(self._windows, rows, max_change=self.max_change, most_rows=self._most)
        if found.slow_input is not None:
            self._tell(
                f"worker {found.slow_input} waits for its input, which fewer rows would not make faster; look at its "
                "input and its disk"
            )
        self._unchanged += 1
        if found.rows != rows:
            self._unchanged = 0
            self._former = rows
            self._move(found.rows)
            self._note_change(rows)

    def _note_change(self, former: tuple[int, ...]) -> None:
        """Report a change that holds from the next batch on, and measure from there."""
        assert self._rows is not None
        if self._changes_at is not None:
            return
        self._former = None
        self._measure_from_here()
        self.changes.append((self._batches, self._rows))
        if self._workers.is_chief:
            parts = [f"{mine} rows" if self._is_known else f"{mine / self._batch:.0%}" for mine in self._rows]
            times = ", ".join(f"{1e3 * seconds:.3g}" for seconds in self._windows[-1].computing)
            step_clock().warn(
                f"from batch {self._batches} on workers have {', '.join(parts)} of each; before, for the shares "
                f"{':'.join(map(str, former))}, they computed {times} ms."
            )

    @property
    def _changes_at(self) -> int | None:
        return None if self._input is None else self._input.changes_at

    def _shares(self, rows: tuple[int, ...]) -> Shares:
        return Shares(tuple(mine for mine in rows for _ in range(self._strategy.share.count)))

    def _move(self, rows: tuple[int, ...]) -> None:
        self._rows, shares = rows, self._shares(rows)
        if shares.weights != self._strategy.shares:
            self._strategy.move_shares(shares)

    def _measure_from_here(self) -> None:
        self._since = 0
        self._seen, _ = step_timestamps.taken()
        self._begins.taken()

    def _measured(self) -> tuple[float, float]:
        """Return the median seconds of computing and of waiting for input since the last look; 0 if not seen."""
        begins = self._begins.taken()
        count, ring = step_timestamps.taken()
        fresh = min(count - self._seen, len(ring))
        self._seen = count
        if not fresh:
            return 0.0, 0.0
        stamps = np.asarray(ring)[np.arange(count - fresh, count) % len(ring)]
        stamps = stamps[(stamps[:, _BEGIN] > 0) & (stamps[:, _GRADIENTS] > stamps[:, _BEGIN])]
        if not len(stamps):
            return 0.0, 0.0
        computing = float(np.median(stamps[:, _GRADIENTS] - stamps[:, _BEGIN]))
        if self._in_a_call > 1 and len(stamps) > 1:  # the graph of several steps takes its batches by itself
            stamps = stamps[np.argsort(stamps[:, _BEGIN])]
            return computing, max(0.0, float(np.median(stamps[1:, _BEGIN] - stamps[:-1, _END])))
        return computing, _waits(begins, stamps[:, _BEGIN])

    def _caps(self, workers: int, batch: int | None) -> tuple[int, ...] | None:
        if self.memory is None:
            return None
        caps = (self.memory,) * workers if isinstance(self.memory, int) else tuple(self.memory)
        if len(caps) != workers:
            raise ConfigError(
                f"memory is {caps}, {len(caps)} numbers, and there are {workers} workers. Give one for each, or one "
                "number for all.",
                name="memory",
                received=caps,
            )
        if batch is not None and sum(caps) < batch:
            raise ConfigError(
                f"memory is {caps}, which add up to {sum(caps)} rows, and a batch has {batch}. Take a smaller batch.",
                name="memory",
                received=caps,
            )
        return caps if batch is None or batch <= MOST_ROWS else tuple(one * MOST_ROWS // batch for one in caps)

    def _tell(self, why: str) -> None:
        """Warn once, on the chief, that shares stay as they are."""
        if why not in self._told and getattr(self.model.distribute_strategy, "is_chief", True):
            step_clock().warn(f"BalanceShares leaves shares as they are: {why}.")
        self._told.add(why)


class MeasuredShares(BalanceShares):
    """A callback that measures shares once, at the start of training, for ``shares="measured"`` of a strategy."""

    def __init__(self) -> None:
        super().__init__(every=10, max_change=1.0)

    def _compare(self, rows: tuple[int, ...]) -> None:
        super()._compare(rows)
        is_last = len(self._windows) == LOOK_BACK or len(self.changes) == LOOK_BACK
        if self._rows is not None and is_last and self._rows == rows:
            self._rows = None
            step_clock().detach(self._begins)


class _Begins(StepObserver):
    """The times at which Python has begun steps of training.

    It listens to nothing else: if phases were wanted too, batches would pass through Python, which costs short steps a
    tenth of their time.
    """

    def __init__(self) -> None:
        self._times: list[float] = []

    def on_begin(self, step: int, kind: Kind, now: int) -> None:
        if kind is Kind.TRAIN:
            self._times.append(time.time())  # of the same clock as the stamps

    def taken(self) -> list[float]:
        found, self._times = self._times, []
        return found


def _waits(begins: Sequence[float], batches: Any) -> float:
    """Return the median seconds from the begin of a step to its batch; 0 if no begin was seen.

    Example:
        >>> round(_waits([1.0, 2.0], np.array([1.25, 2.25])), 3)
        0.25
    """
    place = np.searchsorted(begins, batches, side="right") - 1
    seen = place >= 0
    return float(np.median(batches[seen] - np.asarray(begins)[place[seen]])) if seen.any() else 0.0


def _why_not(model: keras.Model, strategy: Any, batch: int | None) -> str | None:
    """Return the reason why rows cannot move, or computing cannot be told from waiting; else None."""
    if strategy.share.process_count != strategy.workers.count or getattr(strategy, "cuts_weights", False):
        return f"the workers of {type(strategy).__name__} wait for each other in the middle of a step"
    if getattr(strategy, "apart", None) is not None:
        return "workers meet seldom, so no step waits for another worker"
    waiting = [one.name for one in keras_trainer.layers(model) if getattr(one, "synchronized", False)]
    if waiting:
        return f"the layer {waiting[0]!r} waits for other workers in the middle of a step (synchronized=True)"
    if batch is not None and batch < strategy.workers.count:
        return f"a batch has {validation.counted(batch, 'row')}, fewer than one for each worker"
    return None
