"""Steps that each worker takes by itself, between meetings: the `synchronization` of a strategy.

Outside of training steps a model shows the mean over workers. At the end of an epoch, and before an evaluation or a
prediction, each worker sets its own weights aside and shows the mean. It takes its own back before the next step. No
schedule depends on that, so training is the same with and without validation. If a single worker asks between two
meetings, for instance to save a model, it shows the last mean that it knows.
"""

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from tfdist.checkpoint.state_resizing import ShardedState
from tfdist.collectives.collective import Collective
from tfdist.collectives.traced import TracedCollective, traced_of
from tfdist.collectives.workers.agreement import require_alike_text
from tfdist.collectives.workers.worker_processes import Workers, as_float, as_integer
from tfdist.compat import planted
from tfdist.compat.keras import epochs as keras_epochs
from tfdist.compat.keras import keras_trainer, keras_variables
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compat.tensorflow.steps.replica_services import ReplicaServices
from tfdist.errors import ConfigError, UnsupportedError
from tfdist.gradients.outer import meeting_kinds, meeting_schedules, meetings, worker_weights
from tfdist.gradients.outer.interval_choice import IntervalChoice
from tfdist.gradients.outer.meeting_schedules import NEVER, Synchronization
from tfdist.gradients.outer.trial_steps import Trial
from tfdist.gradients.outer.worker_weights import outside
from tfdist.monitor.process_clock import step_clock
from tfdist.training.replica import current_step
from tfdist.training.replica.judging import Rules

_SAVING = ("save", "save_weights", "export", "get_weights")
# rules of states for which the mean over workers is wrong
_NO_MEANS = ("sum", "maximum", "minimum")


@dataclass(frozen=True)
class Apart:
    """The parts of local steps: the schedule, and the services of a step that spans this worker alone."""

    schedule: Synchronization
    services: ReplicaServices
    island: meetings.Island | None = None


def require(value: Any, shard_optimizer: int | None = None) -> Synchronization | None:
    """Return the schedule of a strategy; raise if its workers cannot have weights of their own."""
    schedule = meeting_kinds.require(value)
    if schedule is None or shard_optimizer is None:
        return schedule
    raise ConfigError(
        f"synchronization is {schedule!r} and shard_optimizer is {shard_optimizer}; between meetings each worker needs "
        "all slots, and a sharded optimizer has a part of them. Leave one of the two out.",
        name="synchronization",
        received=schedule,
    )


def guarded(schedule: Synchronization | None, services: ReplicaServices) -> ReplicaServices:
    """Return services that refuse a custom training loop that would span all workers in every step."""
    if schedule is None or (schedule.every != "auto" and schedule.reduces(NEVER)):
        return services
    return replace(services, before_update=functools.partial(_require_keras_step, schedule))


def _require_keras_step(schedule: Synchronization) -> None:
    if current_step.current() is None:
        raise UnsupportedError(
            f"the strategy has synchronization={schedule!r}, and an optimizer updates weights in a training loop of "
            "your own, which would reduce over all workers in every step. Call model.fit() with a train_step of your "
            "own, or leave synchronization out.",
            name="synchronization",
            received=schedule,
        )


def apart(
    schedule: Synchronization | None,
    services: ReplicaServices,
    workers: Workers,
    collectives: Callable[[Sequence[str]], Sequence[Collective]],
    devices: Sequence[str],
) -> Apart | None:
    """Return the parts of local steps; ``collectives`` makes the collectives of this process's replicas."""
    if schedule is None:
        return None
    island = meetings.island_of(schedule, workers, len(devices))
    near = collectives(devices) if island is None else [island]
    traced = traced_of(near, services.bucket_bytes)
    meeting = meetings.island_of(schedule, workers, len(devices))  # not the one of the steps, which continue meanwhile
    found = None if meeting is None else meetings.by_heads(workers, meeting, services.bucket_bytes)
    return Apart(schedule, replace(services, collectives=near, traced=traced, is_apart=True), found)


def of(model: keras.Model) -> "LocalSteps | None":
    found: LocalSteps | None = planted.of_model(model).local_steps
    return found


def adopt(model: keras.Model, strategy: Any, workers: Workers) -> None:
    """Give a model local steps, if its strategy takes some."""
    if planted.of_model(model).local_steps is not None:  # those of another strategy
        vars(model).pop("get_weights")
        planted.of_model(model).local_steps = None
    if strategy.apart is None:
        return
    local = planted.of_model(model).local_steps = LocalSteps(model, strategy, workers)
    for name in _SAVING:
        vars(model)[name] = functools.partial(_showing, local, vars(model).get(name) or getattr(model, name))


def _showing(local: "LocalSteps", method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with local.at_hand():
        return method(*args, **kwargs)


def left(model: keras.Model, wanted: int, *, training: bool) -> int:
    """Return the number of next steps that may run without a look, up to the next event of local steps."""
    local = of(model) if training else None
    return wanted if local is None else local.left(wanted)


def stepping(
    model: keras.Model, forget: Callable[[], None], rules: Rules, *, training: bool
) -> contextlib.AbstractContextManager[Callable[[int], None]]:
    local = of(model) if training else None
    return contextlib.nullcontext(lambda steps: None) if local is None else local.stepping(forget, rules)


class LocalSteps:
    """The local steps of one model on one worker, and its meetings with the others."""

    def __init__(self, model: keras.Model, strategy: Any, workers: Workers) -> None:
        self._model = model
        self._strategy = strategy
        self._workers = workers
        self._asked: Synchronization = strategy.apart.schedule
        self._schedule: Synchronization | Trial = self._asked
        self._interval: IntervalChoice | None = None
        shares = strategy.share
        share = (shares.edges[-1] - shares.edges[0]) / shares.shares.edges[-1]
        self._group = meetings.Group(
            TracedCollective(workers.collective, bucket_bytes=strategy.apart.services.bucket_bytes),
            share,
            strategy.apart.island,
        )
        self._meeting = meeting_kinds.meeting_of(self._asked, self._group, model)
        self._met: list[keras.Variable] = []  # what workers exchanged when the meetings were made
        if self._asked.every == "auto":
            self._interval = IntervalChoice(self._asked, self._meeting, workers)
            self._schedule = self._interval.schedule_from(0)
        self._count: keras.Variable | None = None
        self._made_equal_at: int | None = 0  # steps after which all weights were made equal, beside the schedule
        self._own: list[tf.Tensor] | None = None  # set aside while the mean is shown
        self._shown: list[tf.Tensor] = []
        self._last: list[tf.Tensor] | None = None  # the mean that was known last
        self._was_apart: bool | None = None
        self._epoch_is_apart = False
        self._wants_stop = False
        self._agrees = True

    # State

    def sharded_state(self) -> list[ShardedState]:
        """Return the state of each worker, for backups; without variables until the model is built."""
        is_built = keras_trainer.is_built(self._model) and all(
            one.built for one in keras_trainer.optimizers(self._model)
        )
        own: list[keras.Variable] = []
        if is_built:
            self._make()
            every = [*self._shown_variables(), *worker_weights.slots_of(self._model)]
            own = list({id(one): one for one in every}.values())
        counts = [variable for metric in keras_trainer.metrics(self._model) for variable in metric.variables]
        counts = list({id(one): one for one in counts}.values())
        count = [] if self._count is None else [self._count]
        count += [] if self._interval is None else self._interval.memory
        return [
            ShardedState("the weights that each worker trains by itself", own, rule="mean", axis="worker"),
            ShardedState("the counts of metrics", counts if is_built else [], rule="sum"),
            ShardedState("the steps that workers have taken", count, rule="keep", axis="worker"),
            *self._meeting.memory(),
        ]

    def _make(self) -> None:
        if self._count is None:
            self._met = self._meeting.exchanged()

            def make() -> keras.Variable:
                self._meeting.make()
                if self._interval is not None:
                    self._interval.make()
                return keras.Variable(0, name="synchronization_steps", dtype="int64", trainable=False)

            self._count = outside(make)

    def _shown_variables(self) -> list[keras.Variable]:
        averages = worker_weights.averages_of(self._model)
        return [*worker_weights.weights_of(self._model), *worker_weights.states_of(self._model), *averages]

    @property
    def _step(self) -> int:
        return 0 if self._count is None else int(self._count.numpy())

    @property
    def _is_equal(self) -> bool:
        """Whether all workers have the same weights, and the same moving averages of them."""
        step = self._step
        if self._workers.count == 1 or self._made_equal_at == step:
            return True
        # not every meeting makes moving averages of weights equal
        has_averages = bool(self._was_apart and worker_weights.averages_of(self._model))
        return self._schedule.is_equal(step) and not has_averages

    # Training

    def begins(self) -> None:
        """Begin a `fit` with equal weights on all workers: those that they have, or the mean after an aborted `fit`."""
        if keras_epochs.running_fit(self._model) is None:
            raise UnsupportedError(
                f"the strategy has synchronization={self._asked!r}, and the model {self._model.name!r} trains by "
                "train_on_batch, where no epoch ends at which workers show their mean. Call model.fit(), or leave "
                "synchronization out.",
                name="synchronization",
                received=self._asked,
            )
        if self._model.run_eagerly:
            raise UnsupportedError(
                f"the strategy has synchronization={self._asked!r}, and the model {self._model.name!r} runs "
                "eagerly, where TensorFlow reduces over all workers in every step. Leave run_eagerly=True out.",
                name="run_eagerly",
                received=True,
            )
        self._require_alike()
        if self._workers.is_chief and "local steps" not in planted.of_model(self._model).said:
            planted.of_model(self._model).said.add("local steps")
            step_clock().warn(
                f"workers train by themselves and meet as {self._asked!r} says, so the numbers are not those of one "
                "device. Batch logs are this worker's; epoch logs, evaluation and saving show the mean over workers."
            )
        self._meet_as_compiled()
        self.ends()
        self._wants_stop = False

    def _meet_as_compiled(self) -> None:
        """Make the meetings anew if the model was compiled again and workers have other variables to exchange."""
        variables = self._meeting.exchanged()
        same = len(variables) == len(self._met) and all(map(operator.is_, variables, self._met))
        if self._count is None or same:
            return
        self.settle()
        is_equal = self._own is not None or self._is_equal
        self._meeting, self._met = meeting_kinds.meeting_of(self._asked, self._group, self._model), variables
        if not is_equal:  # a `fit` was aborted
            outside(self._meeting.agree)
        outside(self._meeting.make)
        self._own, self._made_equal_at = None, self._step
        if self._interval is not None:
            self._interval.measures(self._meeting)

    def _require_alike(self) -> None:
        """Raise if workers would be at different meetings, and so mix them up or wait for each other."""
        if self._workers.count > 1:
            require_alike_text(
                self._workers,
                f"{meeting_schedules.terms_of(self._asked)} after {self._step} steps",
                name="synchronization",
                what="workers do not meet at the same steps",
                remedy="Give every worker the same synchronization, and let all of them resume from the same backup.",
            )

    def restored(self) -> None:
        """Take note that a backup has changed the values of the variables."""
        self._own, self._made_equal_at, self._last = None, None, None
        self._epoch_is_apart = self._step > 0
        if self._interval is not None:
            self._schedule = self._interval.schedule_from(self._step)
        self._require_alike()

    def ends(self) -> None:
        """Let the mean over workers be the weights of all, at the end of a `fit`."""
        self.show()
        self._own, self._shown = None, []
        self._made_equal_at = self._step
        self._remember()
        if self._count is not None:
            outside(self._meeting.begin)

    def _remember(self) -> None:
        """Keep the weights, which are now equal on all workers, unless meetings keep them."""
        if not self._meeting.remembers:
            self._last = worker_weights.read(self._shown_variables())

    def require_means(self, rules: Rules) -> None:
        """Raise if the mean over workers is not right for a state of the model."""
        for number, variable in enumerate(keras_variables.states(self._model)) if self._workers.count > 1 else ():
            rule = rules.states.get(number)
            if rule is not None and rule.verdict in _NO_MEANS:
                raise UnsupportedError(
                    f"the state {variable.path!r} is a {rule.verdict} over examples, and workers that meet seldom take "
                    "means of states. Let it be an average, or leave synchronization out.",
                    name=variable.path,
                    received=rule.verdict,
                )

    def left(self, wanted: int) -> int:
        """Return the number of next steps that may run without a look, up to the next event."""
        return min(wanted, self._schedule.left(self._step))

    @contextlib.contextmanager
    def stepping(self, forget: Callable[[], None], rules: Rules) -> Iterator[Callable[[int], None]]:
        """Enclose steps up to the next event; yield a function that takes the number of steps that have run.

        ``forget`` drops traced functions when steps become local, or reduce again.
        """
        self._make()
        self.hide()
        is_apart = not self._schedule.reduces(self._step)
        if is_apart and self._was_apart is not True:
            self.require_means(rules)
        if self._was_apart is not None and self._was_apart != is_apart:
            forget()
        self._was_apart = is_apart
        self._epoch_is_apart |= is_apart
        extended, together = self._strategy.extended, self._strategy.extended.services
        extended.services = self._strategy.apart.services if is_apart else together
        if self._interval is not None:
            self._interval.step_begins()
        try:
            yield self._done
        finally:
            extended.services = together

    def _done(self, steps: int) -> None:
        assert self._count is not None
        self._count.assign_add(steps)
        self._made_equal_at = None if steps else self._made_equal_at
        step = self._step
        events = self._schedule.events(step) if steps else ()
        if isinstance(self._schedule, Trial):
            assert self._interval is not None
            if self._schedule.is_timed(step - steps):
                self._interval.note_steps(steps)
            if events:
                with self._workers.waiting("the choice of how seldom workers meet"):
                    self._schedule = outside(self._interval.choose)
                events = self._schedule.events(step)
        self._agrees = self._schedule.agrees(step)
        if not events:
            return
        with self._workers.waiting("a meeting of workers"):
            for event in events:
                outside(functools.partial(self._meeting.perform, event))
        if self._schedule.is_equal(step):
            self._remember()

    # The mean

    def show(self) -> None:
        """Show the mean over workers, all of which call it; the own weights are set aside."""
        if self._own is not None or self._is_equal:
            return
        self.settle()
        with self._workers.waiting("the mean of the workers' weights"):
            mean = outside(self._mean)
        self._own = self._swap(mean)
        self._shown = worker_weights.read(self._shown_variables())
        self._remember()

    def _mean(self) -> list[tf.Tensor]:
        return [*self._meeting.mean(), *self._meeting.means_of(worker_weights.averages_of(self._model))]

    def hide(self) -> None:
        """Continue with this worker's own weights, or with the values that callbacks have put in place of the mean."""
        own, self._own = self._own, None
        if own is None:
            return
        now = worker_weights.read(self._shown_variables())
        same = [tf.reduce_all(tf.equal(one, other)) for one, other in zip(now, self._shown, strict=True)]
        if all(bool(one) for one in same):
            self._swap(own)
        else:
            outside(self._meeting.begin)
        self._shown = []

    @contextlib.contextmanager
    def own_shown(self) -> Iterator[None]:
        """Show this worker's own weights in the block, as for a backup; nothing travels."""
        self.settle()
        own = self._own
        mean = None if own is None else self._swap(own)
        try:
            yield
        finally:
            if mean is not None:
                self._swap(mean)

    @contextlib.contextmanager
    def at_hand(self) -> Iterator[None]:
        """Show the mean in the block, as far as this worker knows it by itself."""
        if self._own is not None or self._is_equal:
            yield
            return
        known = self._meeting.known() or self._last
        if known is None:
            step_clock().warn(
                "a model is read or saved between two meetings, before this worker has seen the first mean: what it "
                "gets are the weights of this worker. Save at the end of an epoch."
            )
            yield
            return
        own = self._swap(known)
        try:
            yield
        finally:
            self._swap(own)

    def settle(self) -> None:
        with self._workers.waiting("a meeting of workers"):
            self._meeting.settle()

    def _swap(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Write these values, and return the previous ones."""
        variables = self._shown_variables()[: len(values)]
        before = worker_weights.read(variables)
        outside(functools.partial(worker_weights.write, variables, values))
        return before

    # Callbacks and logs

    def holds_decisions(self) -> bool:
        """Return whether a worker's wish to stop has to wait for the next meeting; it is kept until then."""
        self._wants_stop |= bool(self._model.stop_training)
        if not self._agrees:
            self._model.stop_training = False
            return True
        self._model.stop_training, self._wants_stop = self._wants_stop, False
        return False

    def epoch_logs(self, logs: dict[str, Any]) -> dict[str, Any]:
        """Return the logs of an epoch over all workers, which show their mean from here on."""
        if not self._epoch_is_apart:
            return logs
        self._epoch_is_apart = False
        self._agrees = True
        self.show()
        if keras_trainer.logs_are_metrics(self._model):
            return self._metrics_of_all()
        names = sorted(name for name, value in logs.items() if tf.convert_to_tensor(value).shape.rank == 0)
        seen = self._workers.gather([as_integer(float(logs[name])) for name in names])
        means = {name: sum(map(as_float, seen[:, i].tolist())) / len(seen) for i, name in enumerate(names)}
        return {**logs, **means}

    def _metrics_of_all(self) -> dict[str, Any]:
        variables = [variable for metric in self._model.metrics for variable in metric.variables]
        parts = [self._part(variable) for variable in variables]
        with self._workers.waiting("the metrics of an epoch"):
            totals = outside(functools.partial(self._meeting.total, parts))
        with keras.StatelessScope(state_mapping=list(zip(variables, totals, strict=True))):
            return keras_trainer.metrics_result(self._model)  # some are vectors

    def _part(self, variable: keras.Variable) -> tf.Tensor:
        """Return this worker's contribution to a metric's variable over all workers, by its declared aggregation."""
        own = [tf.convert_to_tensor(one) for one in tf_strategies.copies(keras_variables.value_of(variable))]
        if variable.aggregation == "sum":
            return tf.add_n(own)
        if variable.aggregation == "mean":
            return tf.add_n(own) / tf.cast(self._workers.count * len(own), own[0].dtype)
        return own[0] if self._workers.is_chief else tf.zeros_like(own[0])
