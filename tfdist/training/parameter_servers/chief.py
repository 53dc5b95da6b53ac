"""Keras' fit, evaluate and predict on a chief, with workers that compute and parameter servers that hold variables.

Weights change in the chief's calls alone, between two batches of `fit`. A callback that saves or measures sees a state
after some number of whole steps, and `iterations` is that number.
"""

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat.keras import keras_trainer, stateless_scope
from tfdist.compat.tensorflow import servers as tf_servers
from tfdist.errors import UnsupportedError
from tfdist.monitor.phases import Phase
from tfdist.monitor.process_clock import step_clock
from tfdist.training import chief_saving, keras_loop, worker_callbacks
from tfdist.training.checks import advice, step_probe
from tfdist.training.epoch import Batch, Epoch, Layout
from tfdist.training.keras_loop import Predictions, Steps
from tfdist.training.parameter_servers import part_function, remote_part
from tfdist.training.parameter_servers.batch_plan import (
    MakesVariablesError,
    NotBuiltError,
    OtherPlanError,
    Plan,
    as_batch,
    cut_into,
    present_parts,
)
from tfdist.training.parameter_servers.dropped_parts import Dropped
from tfdist.training.parameter_servers.scheduler import Outcome, Scheduler
from tfdist.training.parameter_servers.staleness import Distribution
from tfdist.training.parameter_servers.update import BoundedCalls, Update
from tfdist.training.parameter_servers.worker_groups import GroupClock, Ticket, WorkerGroups
from tfdist.training.replica import replica_layers, replica_metrics

_WHOLE = (
    "every batch of %r is computed by one worker: %s. The numbers are right; the other workers wait. With "
    "max_staleness above 0 each has a batch of its own."
)
_LOST = (
    "the metric %s (model %r) has variables that do not say that they add up, and workers count at the same time, so "
    "examples are lost from its result. Make variables that are sums by add_variable(); for others train with "
    "max_staleness=0."
)
# the least time of a worker that has computed; 0 is that of one that has not
_LEAST_SECONDS = 1e-9


class Chief:
    """The chief, which trains the models of one strategy."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        scheduler: Scheduler,
        devices: Sequence[str],
        *,
        max_staleness: int | None,
        backup_workers: int,
        groups: WorkerGroups,
        corrects_rate: bool,
        timeout_seconds: float,
        require_servers: Callable[[], None],
        when_built: Callable[[keras.Model], None],
    ) -> None:
        self.strategy = strategy
        self.scheduler = scheduler
        self.devices = list(devices)
        self.max_staleness = max_staleness
        self.backup_workers = backup_workers
        self.groups = groups
        self.corrects_rate = corrects_rate
        self.when_built = when_built
        #: the staleness of all gradients that were applied
        self.staleness = Distribution()
        #: parts that came too late, see ``backup_workers``
        self.dropped = Dropped()
        #: runs the second function of a step, within the servers' deadline
        self.apply = BoundedCalls(timeout_seconds, require_servers)

    @property
    def together(self) -> bool:
        """Whether workers compute parts of one batch, rather than a batch each."""
        return self.max_staleness == 0

    @property
    def parts(self) -> int:
        """The number of parts of a training batch."""
        return len(self.devices) if self.together else 1

    def adopt(self, model: keras.Model) -> None:
        """Let this model train on the workers, once."""
        if not keras_trainer.mark(model, self.strategy):
            return
        made: dict[bool, tuple[Steps, _ChiefSteps]] = {}  # by whether they train

        def make_function(user_step: Callable[[Any], Any]) -> Any:
            training = user_step == model.train_step
            source = _ChiefSteps(self, model, user_step, training=training)
            made[training] = (Steps(model, source), source)
            return made[training][0]

        def settle(logs: dict[str, Any]) -> dict[str, Any]:
            # A callback may evaluate in the middle of an epoch of training: the logs tell which of them has ended.
            mine = [source for steps, source in made.values() if steps.told is logs]
            return mine[0].settle(logs) if mine else logs

        def before(training: bool) -> None:
            keras_loop.require_no_other_distribution(self.strategy)
            replica_layers.require_no_state_of_rows(model, len(self.devices))
            if training:
                if self.parts > 1:
                    step_probe.warn_of_parts(model, Workers())
                step_clock().training_begins()
            worker_callbacks.adapt(model, Workers(), training)
            if training and self.backup_workers:
                self._tell_drops(model)
            if training in made:
                _, source = made[training]
                source.forget()  # what an interrupted call has left

        keras_trainer.override(
            model,
            build=functools.partial(self._build, model),
            make_function=make_function,
            make_predict_function=functools.partial(self._predictions, model),
            before=before,
            settle=settle,
        )
        chief_saving.adopt(model, Workers())

    def _tell_drops(self, model: keras.Model) -> None:
        """Warn at the end of the running `fit` about the examples that it has dropped."""
        running = keras_trainer.calling_callbacks(model)
        if running is None or any(isinstance(callback, _TellsDrops) for callback in running.callbacks):
            return
        running.callbacks.append(_TellsDrops(self))

    def outcome(self, tasks: Collection[int], *, wait: bool = True) -> Outcome | None:
        """Return the outcome of one of these tasks; waiting for workers is measured here."""
        with step_clock().during(Phase.WAIT):
            return self.scheduler.next_outcome(tasks, wait=wait)

    def first_outcomes(self, tasks: Collection[int], count: int) -> Generator[Outcome, None, None]:
        """Yield the outcomes of the first tasks that end; the others are cancelled."""
        try:
            for _ in range(count):
                outcome = self.outcome(tasks)
                assert outcome is not None
                yield outcome
        finally:
            for task in tasks:
                self.scheduler.cancel(task)

    def _build(self, model: keras.Model, iterator: Any = None, data_batch: Any = None) -> None:
        keras_loop.build(model, iterator, data_batch)
        self.when_built(model)

    def _predictions(self, model: keras.Model) -> Predictions:
        unseeded = keras_trainer.global_seed_generator()
        return Predictions(functools.partial(_rows_of, self, model, unseeded, {}), _running)


class _TellsDrops(keras.callbacks.Callback):
    def __init__(self, chief: Chief) -> None:
        super().__init__()
        self._chief = chief
        self._before = chief.dropped.copy()

    def on_train_end(self, logs: Any = None) -> None:
        dropped = self._chief.dropped.since(self._before)
        if dropped.examples:
            step_clock().warn(f"{dropped}; with backup_workers=0 every example counts.")


@contextlib.contextmanager
def _running(iterator: Any = None) -> Iterator[None]:
    """Enclose the steps of one call of Keras, with an executor of its own."""
    tf_servers.own_executor(fresh=True)
    try:
        yield
    except (tf.errors.OpError, UnsupportedError):
        tf_servers.forget_failures()  # of other parts, which are not waited for
        raise
    finally:
        tf_servers.own_executor(fresh=True)


class _ChiefSteps:
    """The steps that workers compute and the chief applies, as a `StepSource`."""

    def __init__(self, chief: Chief, model: keras.Model, user_step: Callable[[Any], Any], *, training: bool) -> None:
        replica_metrics.require_scope(model, chief.strategy)
        self.training = training
        self._chief = chief
        self._model = model
        self._user_step = user_step
        self._unseeded = keras_trainer.global_seed_generator()
        replicas = chief.parts if chief.together else 1
        self._tried = step_probe.Probe(
            model,
            chief.strategy,
            Workers(),
            user_step,
            self._unseeded,
            replicas=replicas,
            training=training,
            gathers=False,  # a worker meets no other: it computes the whole batch
        )
        if training:
            keras_loop.require_scope(model.trainable_weights, chief.strategy)
            for optimizer in keras_trainer.optimizers(model):
                remote_part.adapt_optimizer(optimizer, chief.strategy)
        self._functions: dict[Any, tuple[remote_part.Computation, Update]] = {}
        self._applied: set[Update] = set()
        self._plans: dict[str, Plan] = {}
        self._bound = chief.max_staleness if training and not chief.together else None
        # without a bound workers need no groups
        self._clock = GroupClock({"all": range(len(chief.devices))}, self._bound)
        self._under_way: dict[int, tuple[Ticket, Any]] = {}  # task -> ticket, update
        self._finished: dict[int, Outcome] = {}
        self._epoch = Distribution()
        self._dropped = 0  # examples in this epoch
        self._numbers = itertools.count()
        self._logs: Any = None

    running = staticmethod(_running)

    def several(self, batches: Epoch, left: int) -> None:
        """Return None: no graph runs several steps, because the chief applies each."""

    def step(self, element: Any, *, whole: bool) -> Any:
        """Run a step on all workers, or begin one on the next worker; return the logs that are known."""
        step_clock().enter(Phase.DISPATCH)
        batch = as_batch(element, self._chief.strategy, self._chief.parts)
        if self._chief.together:
            return self._together(batch)
        logs = self._in_turn(batch)
        # `train_on_batch` has no later step that would wait for this one
        return logs if isinstance(element, Batch) else self._wait_for_all()

    def drain(self) -> None:
        """Wait for tasks that are under way, in the middle of an epoch."""
        if self._under_way:
            tf_servers.own_executor(fresh=True)
            try:
                self._wait_for_all()
            finally:
                tf_servers.own_executor(fresh=True)

    def settle(self, logs: Any) -> Any:
        """Wait for tasks that are under way; return the logs that hold then."""
        if self._chief.together:
            return self._with_drops(logs)
        if self._under_way:
            logs = self._wait_for_all()
        elif self._logs is not None:
            logs = self._logs
        self._logs = None
        if self.training and self._epoch.count and isinstance(logs, dict):
            logs = {**logs, "staleness_mean": self._epoch.mean, "staleness_max": float(self._epoch.largest)}
            self._epoch = Distribution()
        return logs

    def _with_drops(self, logs: Any) -> Any:
        if self.training and self._chief.backup_workers and isinstance(logs, dict):
            logs = {**logs, "dropped_examples": float(self._dropped)}
        self._dropped = 0
        return logs

    # All workers on one batch.

    def _together(self, batch: Batch) -> Any:
        computation, update, cut, tasks = self._start(batch)
        late = self._chief.backup_workers if self.training else 0
        needed = max(1, len(cut) - late)
        results: dict[int, remote_part.Result] = {}
        behind: list[int] = []
        handed_out = time.monotonic()  # a slow worker shows by the time of its result, though parts are sent in turn
        with contextlib.closing(self._chief.first_outcomes(tasks, needed)) as outcomes:
            for outcome in outcomes:
                result = results[tasks.index(outcome.number)] = _result(outcome)
                seconds = max(outcome.ended - handed_out, _LEAST_SECONDS)
                step_clock().computed(outcome.worker, seconds, result.passes)
                if len(results) == needed:
                    behind = self._chief.scheduler.late()
        used = [results[place] for place in sorted(results)]
        counted, total = sum(result.rows for result in used), int(batch.rows)
        if self.training:
            missing = [place for place in range(len(cut)) if place not in results]
            self._chief.dropped.step([int(rows) for _, rows, _ in cut], missing, behind)
            self._chief.staleness.add(0)
            self._dropped += total - counted
        scale = total / counted if counted and late else 1.0
        logs = self._update(update, used, scale=scale)
        keras_trainer.note_logs(self._model, are_metrics=computation.logs_are_metrics)
        return logs

    # A batch for each worker.

    def _in_turn(self, batch: Batch) -> Any:
        if self._bound is not None and self._clock.groups != self._chief.groups.now:
            self._wait_for_all()
            self._clock = GroupClock(self._chief.groups.now, self._bound)
        while (group := self._free_group()) is None:
            self._take(wait=True)
        computation, update, _, (task,) = self._start(batch, among=self._clock.groups[group])
        if not self._under_way:
            keras_trainer.note_logs(self._model, are_metrics=computation.logs_are_metrics)
        self._under_way[task] = (self._clock.start(group), update)
        while self._take(wait=self._logs is None):
            pass
        return self._logs

    def _free_group(self) -> str | None:
        """Return the group that computes the next batch; None as long as results must be waited for."""
        ready = self._chief.scheduler.ready_among
        for name, workers in self._clock.groups.items():
            if self._clock.may_start(name) and ready(workers):
                return name
        return None if self._under_way else next(iter(self._clock.groups))

    def _wait_for_all(self) -> Any:
        while self._under_way:
            self._take(wait=True)
        return self._logs

    def _take(self, *, wait: bool) -> bool:
        """Apply one result, if one may be applied; True if there was one."""
        while True:
            for task, outcome in self._finished.items():
                ticket, update = self._under_way[task]
                if outcome.error is not None or self._clock.may_apply(ticket):
                    del self._finished[task], self._under_way[task]
                    self._apply(ticket, update, outcome)
                    return True
            found = self._chief.outcome(self._under_way, wait=wait and bool(self._under_way))
            if found is None:
                return False
            self._finished[found.number] = found

    def _apply(self, ticket: Ticket, update: Update, outcome: Outcome) -> None:
        if outcome.error is not None:
            self._clock.drop(ticket)
            self.forget()
        result = _result(outcome)
        step_clock().computed(outcome.worker, 0.0, result.passes)  # the others do not wait: they compute other batches
        staleness = self._clock.apply(ticket)
        if self._bound is not None and self._chief.groups.note(outcome.worker, outcome.seconds):
            step_clock().warn(f"workers have groups by their speed from now on: {self._chief.groups.shown}.")
        if self.training:
            self._epoch.add(staleness)
            self._chief.staleness.add(staleness)
        factor = 1.0 / max(1, staleness) if self._chief.corrects_rate else 1.0
        self._logs = self._update(update, [result], rate_factor=factor)

    def forget(self) -> None:
        """Ignore all tasks that are under way."""
        for task, (ticket, _) in self._under_way.items():
            self._chief.scheduler.cancel(task)
            self._clock.drop(ticket)
        self._under_way.clear()
        self._finished.clear()
        self._logs = None
        self._epoch = Distribution()
        self._dropped = 0

    # Both.

    def _start(
        self, batch: Batch, among: tuple[int, ...] | None = None
    ) -> tuple[remote_part.Computation, Update, list[Any], list[int]]:
        """Give a batch to workers, by another plan if it cannot be computed as planned."""
        key = batch.layout.key
        if self._tried.is_due:
            part_function.adapt(self._model)
            self._tried.look(batch.layout.slices(batch.tensors))
            if self._tried.needs_whole_batch:
                step_clock().warn(_WHOLE % (self._model.name, advice.WHY))
        parts = 1 if self._tried.needs_whole_batch else self._chief.parts
        while True:
            plan = self._plans.setdefault(key, Plan(parts))
            try:
                computation, update = self._functions_of(batch.layout, plan)
                cut = present_parts(batch, plan.parts)
                return computation, update, cut, [self._submit(computation, part, batch.rows, among) for part in cut]
            except OtherPlanError as error:
                self._plans[key] = self._other_plan(plan, error)

    def _other_plan(self, plan: Plan, error: OtherPlanError) -> Plan:
        if isinstance(error, NotBuiltError):
            with self._chief.strategy.scope():
                error.optimizer.build(error.variables)
                error.optimizer.built = True
            self._chief.when_built(self._model)
        if isinstance(error, MakesVariablesError):
            with self._chief.strategy.scope():
                stateless_scope.initialise_made()
        other = error.better(plan)
        if other.parts < plan.parts:
            step_clock().warn(_WHOLE % (self._model.name, error.why))
        return other

    def _functions_of(self, layout: Layout, plan: Plan) -> tuple[remote_part.Computation, Update]:
        key = (layout.key, plan.key)
        if key not in self._functions:
            step_clock().enter(Phase.TRACE)
            computation = remote_part.Computation(
                self._model,
                self._chief.strategy,
                self._user_step,
                layout,
                training=self.training,
                plan=plan,
                alone=self._chief.together,
                unseeded=self._unseeded,
                rules=self._tried.rules,
                is_stamped=self.training and not any("GPU" in device for device in self._chief.devices),
            )
            update = Update(
                self._model,
                self._chief.strategy,
                computation,
                corrects_rate=self._chief.corrects_rate and self.training,
                scales=bool(self._chief.backup_workers) and self.training,
            )
            self._functions[key] = (computation, update)
            lost = [] if self._chief.together or len(self._chief.devices) == 1 else computation.metrics_that_do_not_add
            if lost:
                step_clock().warn(_LOST % (", ".join(map(repr, lost)), self._model.name))
        return self._functions[key]

    def _update(self, update: Update, results: list[remote_part.Result], **factors: float) -> Any:
        known = update in self._applied and not self._model.run_eagerly
        with step_clock().during(Phase.UPDATE if known else Phase.TRACE):
            logs = self._chief.apply(update.function(results, **factors))
        self._applied.add(update)
        return logs

    def _submit(
        self, computation: remote_part.Computation, part: tuple[int, Any, list[Any]], rows: Any, among: Any
    ) -> int:
        index, own_rows, leaves = part
        # Workers of one batch draw by their part; else each batch draws anew, whatever the state of the seeds is.
        place = index if self._chief.together else next(self._numbers)
        counts = [tf.constant(place, tf.int32), tf.cast(own_rows, tf.int32), tf.cast(rows, tf.int32)]
        return submit(self._chief, self._model, computation, counts, computation.state(), leaves, among)


def _rows_of(
    chief: Chief, model: keras.Model, unseeded: Any, functions: dict[str, part_function.Prediction], given: list[Any]
) -> list[Any]:
    """Return the model's outputs for batches; workers compute parts of all of them at the same time."""
    scheduler, tasks = chief.scheduler, []
    for element in given:
        batch = as_batch(element, chief.strategy, 1)
        key = batch.layout.key
        if key not in functions:
            with step_clock().during(Phase.TRACE):
                functions[key] = part_function.Prediction(model, chief.strategy, batch.layout, unseeded)
        function = functions[key]
        for index, rows, leaves in cut_into(batch, max(1, scheduler.present), can_be_cut=function.can_be_cut):
            counts = [tf.constant(index, tf.int32), tf.cast(rows, tf.int32), tf.cast(batch.rows, tf.int32)]
            tasks.append(submit(chief, model, function, counts, function.state(), leaves))
    with contextlib.closing(chief.first_outcomes(tasks, len(tasks))) as outcomes:
        results = {outcome.number: _result(outcome) for outcome in outcomes}
    return [results[task] for task in tasks]


def submit(
    chief: Chief, model: keras.Model, compute: Any, counts: Any, state: Any, leaves: Any, among: Any = None
) -> int:
    """Give a part to a worker; an eager model computes here, where it can be inspected."""
    if model.run_eagerly:
        with step_clock().during(Phase.PYTHON):
            done = compute(None, counts, state, leaves)
        return chief.scheduler.submit(lambda worker: done, among=among)
    return chief.scheduler.submit(
        lambda worker: compute(chief.devices[worker], counts, state, leaves), kind=compute, among=among
    )


def _result(outcome: Outcome) -> Any:
    if outcome.error is not None:
        raise outcome.error
    return outcome.result
