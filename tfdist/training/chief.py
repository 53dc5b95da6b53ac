"""Keras' fit, evaluate and predict on a chief that has workers compute and parameter servers remember.

The weights change in the chief's calls alone, between two batches of `fit`: a callback that saves or measures sees a
state that some number of whole steps has led to, and `iterations` is that number.
"""

import functools
import itertools
import logging
import queue
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat import keras_model, tf_servers, tf_strategies
from tfdist.coordination.crew import Crew, Outcome
from tfdist.coordination.staleness import Bound, Distribution
from tfdist.errors import DeadlineError
from tfdist.training import callbacks, metrics, remote, saving, step
from tfdist.training import model as models
from tfdist.training.data import Batch, Layout, flat
from tfdist.training.pulse import Phase, pulse
from tfdist.training.workers import Workers

_WHOLE = (
    "tfdist: every batch of %r is computed by one worker: its loss or a layer (a loss function of one's own, weights, "
    "masks, synchronised BatchNormalization) needs sums over the whole batch in the middle of a step. The numbers are "
    "right; the other workers wait. With max_staleness above 0 each has a batch of its own."
)


class Chief:
    """Trains the models of one strategy.

    Args:
        strategy: the strategy.
        crew: its workers.
        devices: the device of each worker.
        max_staleness: 0 to compute every batch by all workers together; else each batch by one worker, with this bound
            on the staleness of its gradient, None for no bound.
        backup_workers: with ``max_staleness=0``: how many parts of a batch need not be waited for.
        corrects_rate: whether the learning rate is divided by a gradient's staleness.
        timeout_seconds: how long the parameter servers may take to apply a step.
        require_servers: raises if a parameter server has gone.
        when_built: called with a model once its variables exist.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        crew: Crew,
        devices: Sequence[str],
        *,
        max_staleness: int | None,
        backup_workers: int,
        corrects_rate: bool,
        timeout_seconds: float,
        require_servers: Callable[[], None],
        when_built: Callable[[keras.Model], None],
    ) -> None:
        self.strategy = strategy
        self.crew = crew
        self.devices = list(devices)
        self.max_staleness = max_staleness
        self.backup_workers = backup_workers
        self.corrects_rate = corrects_rate
        self.when_built = when_built
        #: of all gradients that were applied
        self.staleness = Distribution()
        #: examples in parts that came too late, see ``backup_workers``
        self.dropped_examples = 0
        self._patience = _Patience(timeout_seconds, require_servers)

    @property
    def together(self) -> bool:
        """Whether workers compute parts of one batch, rather than a batch each."""
        return self.max_staleness == 0

    @property
    def parts(self) -> int:
        """Into how many parts a batch of training is cut."""
        return len(self.devices) if self.together else 1

    def adopt(self, model: keras.Model) -> None:
        """Let this model train on the workers. Adopting a model again does nothing."""
        if not keras_model.mark(model, self.strategy):
            return
        steps: list[_Steps] = []

        def make_function(user_step: Callable[[Any], Any]) -> Any:
            training = user_step == model.train_step
            steps[:] = [one for one in steps if one.training != training]
            steps.append(_Steps(self, model, user_step, training=training))
            return steps[-1]

        def settle(logs: dict[str, Any]) -> dict[str, Any]:
            # A callback may evaluate in the middle of an epoch of training: the logs tell which of them has ended.
            mine = [one for one in steps if one.told is logs]
            logs = mine[0].settle(logs) if mine else logs
            pulse().phase(Phase.BETWEEN)
            return logs

        def before(training: bool) -> None:
            callbacks.adapt(model, Workers(), training)
            for one in steps:
                if one.training == training:
                    one.forget()  # what an interrupted call has left

        keras_model.override(
            model,
            build=functools.partial(self._build, model),
            make_function=make_function,
            make_predict_function=functools.partial(_Predictions, self, model),
            before=before,
            settle=settle,
        )
        saving.adopt(model, Workers())

    def outcome(self, tasks: Collection[int], *, wait: bool = True) -> Outcome | None:
        """Return what became of one of these tasks; the workers, whose time is measured there, may be waited for."""
        with pulse().inside(Phase.WAITING):
            return self.crew.next_outcome(tasks, wait=wait)

    def apply(self, call: Callable[[], Any]) -> Any:
        """Run the second function of a step, within the time that servers have."""
        return self._patience(call)

    def _build(self, model: keras.Model, iterator: Any = None, data_batch: Any = None) -> None:
        models.build(model, iterator, data_batch)
        self.when_built(model)


class _Steps:
    """What Keras calls as `train_function` or `test_function`."""

    def __init__(self, chief: Chief, model: keras.Model, user_step: Callable[[Any], Any], *, training: bool) -> None:
        models.refuse_xla(model, chief.strategy)
        metrics.require_scope(model, chief.strategy)
        self.training = training
        self._chief = chief
        self._model = model
        self._user_step = user_step
        self._unseeded = keras_model.global_seed_generator()
        if training:
            models.require_scope(model, chief.strategy)
            for optimizer in keras_model.optimizers(model):
                remote.adapt_optimizer(optimizer, chief.strategy)
        self._functions: dict[Any, tuple[remote.Computation, remote.Update]] = {}
        self._applied: set[remote.Update] = set()
        self._parts: dict[str, int] = {}
        self._bound = Bound(chief.max_staleness if training and not chief.together else None)
        self._under_way: dict[int, tuple[int, Any]] = {}  # task -> ticket, update
        self._finished: dict[int, Outcome] = {}
        self._epoch = Distribution()
        self._numbers = itertools.count()
        self._logs: Any = None
        #: the logs that Keras was given last
        self.told: Any = None

    def __call__(self, iterator: Iterator[Any]) -> Any:
        tf_servers.own_executor(fresh=True)
        pulse().begin()
        try:
            self.told = self._call(iterator)
            return self.told
        finally:
            pulse().end()
            tf_servers.own_executor(fresh=True)

    def _call(self, iterator: Iterator[Any]) -> Any:
        logs = None
        alone = not self._chief.together
        batches = iter(iterator)
        for _ in range(self._model.steps_per_execution):
            with pulse().inside(Phase.INPUT):
                element = next(batches, None)
            if element is None:
                break
            batch = as_batch(element, self._chief.parts)
            if alone:
                logs = self._in_turn(batch)
                if not isinstance(element, Batch):  # a single call: nobody would wait for it later
                    logs = self._wait_for_all()
            else:
                logs = self._together(batch)
        if logs is None:
            raise StopIteration
        return logs

    def drain(self) -> None:
        """Wait for what is under way, in the middle of an epoch."""
        if self._under_way:
            tf_servers.own_executor(fresh=True)
            try:
                self._wait_for_all()
            finally:
                tf_servers.own_executor(fresh=True)

    def settle(self, logs: Any) -> Any:
        """Wait for what is under way; return the logs that hold then."""
        if self._chief.together:
            return logs
        if self._under_way:
            logs = self._wait_for_all()
        elif self._logs is not None:
            logs = self._logs
        self._logs = None
        if self.training and self._epoch.count and isinstance(logs, dict):
            logs = {**logs, "staleness_mean": self._epoch.mean, "staleness_max": float(self._epoch.largest)}
            self._epoch = Distribution()
        return logs

    # All workers on one batch.

    def _together(self, batch: Batch) -> Any:
        parts = self._parts.get(batch.layout.key, self._chief.parts)
        try:
            computation, update = self._functions_of(batch.layout, parts)
        except remote.ReducesInTheMiddle:
            logging.getLogger("tfdist").warning(_WHOLE, self._model.name)
            parts = self._parts[batch.layout.key] = 1
            computation, update = self._functions_of(batch.layout, parts)
        cut = present_parts(batch, parts)
        tasks = [self._submit(computation, part, batch.rows) for part in cut]
        late = self._chief.backup_workers if self.training else 0
        needed = max(1, len(cut) - late)
        results: dict[int, remote.Result] = {}
        try:
            while len(results) < needed:
                outcome = self._chief.outcome(tasks)
                assert outcome is not None
                results[tasks.index(outcome.number)] = _result(outcome)
        finally:
            for task in tasks:
                self._chief.crew.cancel(task)
        used = [results[place] for place in sorted(results)]
        counted, total = sum(result.rows for result in used), int(batch.rows)
        if self.training:
            self._chief.dropped_examples += total - counted
            self._chief.staleness.add(0)
        scale = total / counted if counted and late else 1.0
        logs = self._update(update, used, scale=scale)
        keras_model.note_logs(self._model, are_metrics=computation.logs_are_metrics)
        return logs

    # A batch for each worker.

    def _in_turn(self, batch: Batch) -> Any:
        computation, update = self._functions_of(batch.layout, 1)
        if not self._under_way:
            keras_model.note_logs(self._model, are_metrics=computation.logs_are_metrics)
        while self._under_way and not (self._bound.may_start() and self._chief.crew.ready):
            self._take(wait=True)
        (part,) = present_parts(batch, 1)
        ticket = self._bound.start()
        self._under_way[self._submit(computation, part, batch.rows)] = (ticket, update)
        while self._take(wait=self._logs is None):
            pass
        return self._logs

    def _wait_for_all(self) -> Any:
        while self._under_way:
            self._take(wait=True)
        return self._logs

    def _take(self, *, wait: bool) -> bool:
        """Apply one result, if there is one that may be applied; return whether there was."""
        while True:
            for task, outcome in self._finished.items():
                ticket, update = self._under_way[task]
                if outcome.error is not None or self._bound.may_apply(ticket):
                    del self._finished[task], self._under_way[task]
                    self._apply(ticket, update, outcome)
                    return True
            found = self._chief.outcome(self._under_way, wait=wait and bool(self._under_way))
            if found is None:
                return False
            self._finished[found.number] = found

    def _apply(self, ticket: int, update: remote.Update, outcome: Outcome) -> None:
        if outcome.error is not None:
            self._bound.drop(ticket)
            self.forget()
        result = _result(outcome)
        staleness = self._bound.apply(ticket)
        if self.training:
            self._epoch.add(staleness)
            self._chief.staleness.add(staleness)
        factor = 1.0 / max(1, staleness) if self._chief.corrects_rate else 1.0
        self._logs = self._update(update, [result], rate_factor=factor)

    def forget(self) -> None:
        """Take no result of what is under way any more."""
        for task, (ticket, _) in self._under_way.items():
            self._chief.crew.cancel(task)
            self._bound.drop(ticket)
        self._under_way.clear()
        self._finished.clear()
        self._logs = None
        self._epoch = Distribution()

    # Both.

    def _functions_of(self, layout: Layout, parts: int) -> tuple[remote.Computation, remote.Update]:
        key = (layout.key, parts)
        if key not in self._functions:
            pulse().tracing()
            computation = remote.Computation(
                self._model,
                self._chief.strategy,
                self._user_step,
                layout,
                training=self.training,
                parts=parts,
                unseeded=self._unseeded,
            )
            update = remote.Update(
                self._model,
                self._chief.strategy,
                computation,
                corrects_rate=self._chief.corrects_rate and self.training,
                scales=bool(self._chief.backup_workers) and self.training,
            )
            self._functions[key] = (computation, update)
        return self._functions[key]

    def _update(self, update: remote.Update, results: list[remote.Result], **factors: float) -> Any:
        with pulse().inside(Phase.STEPPING if update in self._applied else Phase.TRACING):
            logs = self._chief.apply(update.function(results, **factors))
        self._applied.add(update)
        return logs

    def _submit(self, computation: remote.Computation, part: tuple[int, Any, list[Any]], rows: Any) -> int:
        index, own_rows, leaves = part
        # Workers of one batch draw by their part; else each batch draws anew, whatever the state of the seeds is.
        place = index if self._chief.together else next(self._numbers)
        counts = [tf.constant(place, tf.int32), tf.cast(own_rows, tf.int32), tf.cast(rows, tf.int32)]
        return submit(self._chief, self._model, computation, counts, computation.state(), leaves)


class _Predictions:
    """What Keras calls as `predict_function`."""

    def __init__(self, chief: Chief, model: keras.Model) -> None:
        models.refuse_xla(model, chief.strategy)
        self._chief = chief
        self._model = model
        self._unseeded = keras_model.global_seed_generator()
        self._functions: dict[str, remote.Prediction] = {}

    def __call__(self, batches: list[Any]) -> Any:
        pulse().begin()
        try:
            return self._call(batches)
        finally:
            pulse().end()
            tf_servers.own_executor(fresh=True)

    def _call(self, batches: list[Any]) -> Any:
        crew, tasks = self._chief.crew, []
        for element in batches:
            batch = as_batch(element, 1)
            if batch.layout.key not in self._functions:
                self._functions[batch.layout.key] = remote.Prediction(
                    self._model, self._chief.strategy, batch.layout, self._unseeded
                )
            prediction = self._functions[batch.layout.key]
            for index, rows, leaves in cut_into(batch, max(1, crew.present)):
                counts = [tf.constant(index, tf.int32), tf.cast(rows, tf.int32), tf.cast(batch.rows, tf.int32)]
                tasks.append(submit(self._chief, self._model, prediction, counts, prediction.state(), leaves))
        results: dict[int, Any] = {}
        try:
            while len(results) < len(tasks):
                outcome = self._chief.outcome(tasks)
                assert outcome is not None
                results[outcome.number] = _result(outcome)
        finally:
            for task in tasks:
                crew.cancel(task)
        rows = [results[task] for task in tasks]
        return (
            rows[0] if len(rows) == 1 else tf.nest.map_structure(tf_strategies.joined, *rows, expand_composites=False)
        )


def submit(chief: Chief, model: keras.Model, compute: Any, counts: Any, state: Any, leaves: Any) -> int:
    """Give a part to a worker; an eager model, which is there to be looked at, computes where it can be looked at."""
    if model.run_eagerly:
        done = compute(None, counts, state, leaves)
        return chief.crew.submit(lambda worker: done)
    return chief.crew.submit(lambda worker: compute(chief.devices[worker], counts, state, leaves), kind=compute)


def as_batch(element: Any, parts: int) -> Batch:
    """Return a batch of the pipeline as it is, and a single one cut into parts."""
    if isinstance(element, Batch):
        return element
    data = models.tensors(element)
    slices = tuple(step.part_of(data, part, parts) for part in range(parts))
    spec = tf.nest.map_structure(_spec, slices, expand_composites=False)
    return Batch(flat(slices), step.rows_of(data), Layout(spec))


def present_parts(batch: Batch, parts: int) -> list[tuple[int, Any, list[Any]]]:
    """Return index, number of examples and tensors of each part that has examples; of an empty batch, of the first."""
    found = [(index, rows, leaves) for index, (rows, leaves) in enumerate(batch.layout.parts(batch.tensors))]
    present = [part for part in found if int(part[1])] or found[:1]
    if parts > 1 or len(present) == 1:
        return present
    leaves = [tf_strategies.joined(*same) for same in zip(*(leaves for _, _, leaves in present), strict=True)]
    return [(0, batch.rows, leaves)]


def cut_into(batch: Batch, parts: int) -> list[tuple[int, Any, list[Any]]]:
    """Return index, number of examples and tensors of contiguous parts of a whole batch."""
    ((_, rows, leaves),) = present_parts(batch, 1)
    if not int(rows):
        return [(0, rows, leaves)]
    cut = [step.part_of(leaves, part, parts) for part in range(parts)]
    return [(part, count, data) for part, (count, data) in enumerate(cut) if int(count)]


def _spec(leaf: Any) -> Any:
    return None if leaf is None else tf.type_spec_from_value(leaf)


def _result(outcome: Outcome) -> Any:
    if outcome.error is not None:
        raise outcome.error
    return outcome.result


class _Patience:
    """Runs calls in a thread, so that one that never returns does not hold the caller for ever."""

    def __init__(self, timeout_seconds: float, require_servers: Callable[[], None]) -> None:
        self._timeout_seconds = timeout_seconds
        self._require_servers = require_servers
        self._calls: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def __call__(self, call: Callable[[], Any]) -> Any:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tfdist-apply", daemon=True)
            self._thread.start()
        self._calls.put(call)
        try:
            value, error = self._answers.get(timeout=self._timeout_seconds)
        except queue.Empty:
            self._require_servers()
            raise DeadlineError(
                f"the parameter servers have not applied a step within {self._timeout_seconds:g} s. One of them hangs "
                "or is stopped: end it, and start the job again, which goes on from its last backup."
            ) from None
        if error is not None:
            if tf_servers.is_loss(error):
                self._require_servers()
            raise error
        return value

    def _run(self) -> None:
        tf_servers.own_executor()
        while True:
            call = self._calls.get()
            try:
                self._answers.put((call(), None))
            except BaseException as error:  # noqa: BLE001 - the caller's, who raises it
                self._answers.put((None, error))
            del call
