"""`BackupAndRestore` during one call of `fit`: when to save, what to restore, when to end."""

import contextlib
import functools
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import keras

from tfdist.callbacks.backup import candidates, run_identity, state_parts, train_state
from tfdist.callbacks.backup.fit_position import Input, Place
from tfdist.callbacks.backup.joint_saving import Memory, Together
from tfdist.callbacks.backup.preemption import PreemptionHandler
from tfdist.callbacks.backup.state_names import metrics_of
from tfdist.callbacks.backup.state_parts import Cuts, Shards
from tfdist.callbacks.backup.train_state import TrainState, scalars
from tfdist.checkpoint.background_writer import Writer, finish_saves
from tfdist.checkpoint.checkpoint_store import Store
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat import random_states
from tfdist.compat.keras import epochs as keras_epochs
from tfdist.compat.keras import keras_trainer
from tfdist.compat.keras.epochs import Fit
from tfdist.compat.keras.metrics import metric_resets
from tfdist.errors import ConfigError
from tfdist.monitor import faults
from tfdist.monitor.phases import Activity, Kind, Phase
from tfdist.monitor.process_clock import step_clock
from tfdist.training import local_steps
from tfdist.variables import RESTARTS

_logger = logging.getLogger("tfdist")
VERSION = 1


class _Taken(NamedTuple):
    """A captured state, and the seconds that capturing it took."""

    number: int
    arrays: dict[str, Any]
    state: dict[str, Any]
    part: dict[str, Any]
    seconds: float


class BackupSession(keras.callbacks.Callback):
    """Keeper of the state of one `fit`; it comes after all other callbacks in the list."""

    def __init__(
        self,
        *,
        model: keras.Model,
        fit: Fit,
        others: Sequence[keras.callbacks.Callback],
        disk: Store,
        memory: Store | None,
        copies: Store | None,
        save_freq: Any,
        asynchronous: bool,
        delete: bool,
        learning_rate_rule: str,
    ) -> None:
        super().__init__()
        self.first = _First(self)
        self._fit = fit
        self._workers: Workers = getattr(model.distribute_strategy, "workers", None) or Workers()
        self._state = TrainState(model, others)
        self._shards = Shards(model, self._workers)
        self._cuts = Cuts(model)
        self._together = Together(self._workers, has_parts=self._shards.exist or self._cuts.exist)
        self._input = Input(fit)
        self._disk = disk
        self._is_shared = self._together.share(disk)
        self._claim = run_identity.Claim(disk.url) if self._workers.is_chief else None
        is_first = RESTARTS.read(os.environ) == 0  # else the process before may not be gone yet
        if self._claim is not None and not self._claim.is_alone and is_first:
            _logger.warning(
                "Another process trains with the backup_dir %s now: each would resume from the other's backups, and "
                "remove them. Give each job a backup_dir of its own.",
                disk.url,
            )
        for store in filter(None, (disk, memory)):
            finish_saves(store.url)  # of a fit that was interrupted in this process
        self._memory = None if memory is None else Memory(memory, self._together)
        self._writer = Writer(
            disk, warn=_logger.warning, on_written=self._tell_the_agent if self._workers.is_chief else lambda _: None
        )
        self._steps_of: dict[int, int] = {}  # by the numbers of states that are not all written yet
        self._save_freq, self._asynchronous = save_freq, asynchronous
        self._delete, self._rule = delete, learning_rate_rule
        self._preemption = PreemptionHandler(self._workers)
        self._epoch = fit.initial_epoch
        self._steps = 0  # done since the very beginning
        self._epochs = 0  # ended since then; with the steps, they number the states
        self._logs: dict[str, float] = {}
        self._in_validation: Any = None
        self._in_epoch = False  # whether callbacks have begun the epoch
        self._random: dict[str, Any] = {}  # states of TensorFlow and Keras, when the epoch was entered
        self._at = Place(epoch=fit.initial_epoch, step=0, taken=0, since=0)
        self._found = candidates.newest(
            [(name, store) for name, store in (("memory", memory), ("another host's memory", copies)) if store],
            (disk.url, disk),
            self._workers,
            needed=self._shards.needed,
            is_ours=lambda state: bool(state.get("training") == run_identity.mark(disk.url)),
        )
        if self._found is not None:
            if (version := self._found.state.get("version")) != VERSION:
                raise ConfigError(
                    f"the backup in {self._found.source} has version {version!r}, and this tfdist reads version "
                    f"{VERSION}. Continue with the tfdist that wrote it, or begin anew in another backup_dir."
                )
            run_identity.require_same(disk.url, self._found.state.get("training"))
            wholes, rest = state_parts.joined(self._found.shards, source=self._found.source)
            self._found = replace(self._found, arrays={**self._found.arrays, **wholes}, shards=rest)
            self._state.prepare_callbacks(self._found.state)
        self._undo = lambda: None
        self._is_resumed = self._found is not None  # and no step was seen since
        if step_clock().reporter is not None:
            keras_trainer.watch_steps(
                model,
                lambda kind: step_clock().step(Kind(kind), Phase.UNDIVIDED),
                lambda: step_clock().enter(Phase.PYTHON),
            )
        elif self._is_resumed:
            keras_trainer.watch_steps(model, lambda kind: contextlib.nullcontext(), lambda: None)

    # Restoring

    def on_train_begin(self, logs: Any = None) -> None:
        """Restore the saved state."""
        step_clock().training_begins()
        step_clock().before_halt = self._save_now
        self._preemption.begin(self.model)
        self._state.begin()
        if self._found is None:
            return
        faults.at("restore", self._found.state["steps"])
        state = self._found.state
        digests = self._workers.gather([self._input.remember()])
        if self._workers.is_chief and random_states.is_seeded() and (digests != digests[0]).any():
            _logger.warning(
                "When fit began, workers had different states of numpy.random or random. A backup has the chief's "
                "alone, so from now on all draw the same numbers. Where they should differ, draw from a "
                "numpy.random.default_rng([seed, worker, epoch, step]) of your own."
            )
        self._restore(self._found, tell=True)
        self._state.restore_random(self._found.arrays)
        self._epoch, self._steps, self._epochs = state["epoch"], state["steps"], state["epochs"]
        stopped = state["stop_training"] and not state["step"]
        keras_trainer.set_initial_epoch(self.model, self._fit.epochs if stopped else self._epoch)
        self.model.stop_training = state["stop_training"]
        reporter = step_clock().reporter
        if reporter is not None:
            reporter.resumed(self._steps, self._found.source)
        is_over = stopped or self._epoch >= self._fit.epochs
        if self._workers.is_chief:
            is_reported = reporter is not None and RESTARTS.read(os.environ) > 0  # by the agent
            tell = _logger.info if is_reported else _logger.warning
            if is_over or state["stop_training"]:
                tell("Nothing is left to train: the backup (%s) is of the end of training.", self._found.source)
            else:
                step, epoch = state["step"], state["epoch"] + 1
                tell("Resuming after step %d of epoch %d (from %s).", step, epoch, self._found.source)
        if is_over:  # another `fit` may read the same input, which may have to be read up to its end
            self._input.move_to(state, self._found.arrays, is_over=True)

    def _restore(self, found: candidates.Found, *, tell: bool) -> None:
        """Restore variables and callbacks."""
        state = found.state
        build = functools.partial(keras_epochs.build, self.model, self._fit)
        counts, in_epoch = state.get(state_parts.COUNTS), bool(state["step"])
        self._state.restore_model(found.arrays, build, has_shards=counts is not None, in_epoch=in_epoch)
        if counts is not None:
            self._shards.restore(counts, found.shards, source=found.source, tell=tell)
        elif tell:
            self._shards.tell_of_the_first(source=found.source)
        if (local := local_steps.of(self.model)) is not None:
            local.restored()
        self._state.restore_callbacks(state, found.arrays, tell=tell and self._workers.is_chief)
        train_state.scale_learning_rates(
            self._rule,
            self.model,
            before=state["global_batch"],
            now=self._input.global_batch,
            tell=tell and self._workers.is_chief,
        )
        if tell and self._workers.is_chief:
            self._state.tell_of_learning_rates(state)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Enter the epoch at the saved step."""
        self._epoch, self._in_epoch = epoch, True
        found = self._found
        if found is None:
            return
        keras_trainer.set_initial_epoch(self.model, 0)  # Keras has read it, and another `fit` begins at its own epoch
        state = found.state
        if state.get("in_epoch", state["step"]):  # what callbacks do at its beginning is part of the state already
            self._restore(found, tell=False)
            self._state.restore_random(found.arrays)
        local, are_metrics = local_steps.of(self.model), state["logs_are_metrics"]
        if state["step"] and (counts := state.get(state_parts.COUNTS)) is not None and local is not None:
            keras_trainer.note_logs(self.model, are_metrics=are_metrics)
            self._shards.restore(counts, found.shards, source=found.source, only=metrics_of(self.model))
        of_python = random_states.of_python()
        self._random = {name: one for name, one in random_states.capture().items() if name not in of_python}
        self._input.move_to(state, found.arrays)
        if state["stop_training"]:
            self._input.nothing_left()
            self.model.stop_training = True
        if state["step"]:
            metric_resets.note_restored(self.model)
            self._undo = keras_epochs.logs_where_no_step_ran(
                self.model, self._fit, state["step"], state["logs"], are_metrics=are_metrics and local is None
            )

    def settle(self) -> None:
        """Restore random states once more, as the input has been made by now; it looks after those of Python itself."""
        if self._found is not None:
            random_states.restore(self._random)
            self._found = None

    # Saving

    def before_batch(self, step: int) -> None:
        """End here if all workers do, before any other callback has seen the step."""
        self.settle()
        self._at = self._input.place(epoch=self._epoch, step=step, ahead=self.model.steps_per_execution)
        step_clock().begin(Kind.TRAIN)
        if self._preemption.is_due(self._steps):
            self._save_now()
            self._preemption.end()
        step_clock().pause()  # the other callbacks come now

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 0:
            self._input.epoch_begins()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        before = self._steps
        self._steps += self.model.steps_per_execution
        self._undo()
        self._undo = lambda: None
        step_clock().end_paused()
        if self._is_resumed:
            self._tell_of_steps()
        self._at = self._input.place(epoch=self._epoch, step=batch + 1)
        self._logs = logs if logs is not None else {}
        reporter = step_clock().reporter
        if reporter is not None:
            reporter.done(self._steps)
        freq = self._save_freq
        on_disk = type(freq) is int and before // freq != self._steps // freq
        if not self._together.takes_part:
            return
        in_memory = self._memory is not None and self._memory.is_due(self._number)
        if on_disk or in_memory:
            self._submit(self._capture(), on_disk=on_disk)

    def _tell_of_steps(self) -> None:
        """Warn once if steps have a state that no backup has."""
        self._is_resumed = False
        if not self._workers.is_chief:
            return
        if found := keras_trainer.seeded_draws(self.model):
            _logger.warning(
                "The step draws random numbers with tf.random (%s). Their sequence begins anew in each process, so the "
                "resumed training has others than it would have had. Use keras.random with a "
                "keras.random.SeedGenerator that is an attribute of the layer: a backup has its state.",
                ", ".join(found),
            )
        if found := self._state.unknown():
            _logger.warning(
                "The step changes variables that no backup has (%s): they begin anew in each process. Let what has "
                "them, such as a keras.random.SeedGenerator, be an attribute of the model or of a layer.",
                ", ".join(found),
            )

    def before_validation(self) -> None:
        """Capture the state for the case that the process ends during validation, which resets metrics."""
        found = self._found  # where no step of the epoch was left
        self.settle()
        self._input.validation_begins(self.model)
        faults.at("validation", self._steps)
        if step_clock().reporter is not None or self._preemption.is_watched:
            self._in_validation = self._capture() if found is None else self._again(found)

    def validation_ended(self) -> None:
        self._input.validation_ended()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.settle()
        self._undo()
        self._undo = lambda: None
        self._in_validation = None
        self._epochs += 1
        self._epoch, self._in_epoch = epoch + 1, False
        self._at = self._input.end_of_epoch(epoch + 1)
        faults.at("epoch-end", self._steps)
        if self._together.takes_part and (self._save_freq == "epoch" or self._memory is not None):
            self._submit(self._capture(), on_disk=self._save_freq == "epoch")

    def wait_for_saves(self) -> None:
        """Wait until all states that were submitted are on the disk."""
        with step_clock().doing(Activity.SAVING):
            self._writer.wait()

    def on_train_end(self, logs: Any = None) -> None:
        """Wait for the last save, and remove what is not needed any more."""
        self.settle()  # where nothing was left to train
        keras_trainer.set_initial_epoch(self.model, 0)
        step_clock().before_halt = None
        self._preemption.stop()
        if self._memory is not None:
            self._memory.close(discard=self._workers.is_chief)
        with step_clock().doing(Activity.SAVING):
            self._writer.wait()
            self._writer.close()
            if self._delete and self._workers.is_chief:
                self._disk.discard()
        if self._delete:
            run_identity.is_over(self._disk.url)
        if self._claim is not None:
            self._claim.close()
        step_clock().training_ends()

    @property
    def _number(self) -> int:
        return self._steps + self._epochs

    def _capture(self) -> _Taken:
        begun = time.perf_counter()
        keras_epochs.drain(self.model)
        local = local_steps.of(self.model)
        with contextlib.nullcontext() if local is None else local.own_shown():
            return self._captured(begun)

    def _captured(self, begun: float) -> _Taken:
        part = {**self._shards.capture(), **self._cuts.capture()}
        if not self._workers.is_chief:  # what all have the chief saves
            return _Taken(self._number, {}, {}, part, time.perf_counter() - begun)
        arrays, state = self._state.capture()
        arrays.update(self._input.arrays())
        state.update(
            version=VERSION,
            steps=self._steps,
            epochs=self._epochs,
            in_epoch=self._in_epoch,
            stop_training=bool(self.model.stop_training),
            logs=scalars(self._logs),
            logs_are_metrics=keras_trainer.logs_are_metrics(self.model),
            workers=self._workers.count,
            global_batch=self._input.global_batch,
            training=run_identity.mark(self._disk.url),
            time=time.time(),
            **{state_parts.COUNTS: self._shards.counts(), state_parts.CUT: self._cuts.exist},
            **self._input.state(self._at),
        )
        return _Taken(self._number, arrays, state, part, time.perf_counter() - begun)

    def _submit(self, taken: _Taken, *, on_disk: bool, is_last: bool = False) -> None:
        """Save a state; all workers that have parts of it must call this."""
        if self._memory is not None:
            self._memory.submit(taken.number, taken.arrays, taken.state, taken.part, seconds=taken.seconds)
        if not on_disk:
            return
        with step_clock().doing(Activity.SAVING):
            if is_last:
                self._writer.wait()
            if is_last or self._together.may_submit(self._writer):
                number, arrays, state, part, _ = taken
                left = {one: steps for one, steps in self._steps_of.items() if one >= (self._writer.written or 0)}
                self._steps_of = {**left, number: state.get("steps", 0)}
                self._together.submit(self._writer, number, arrays, state, part, is_shared=self._is_shared)
            if is_last or not self._asynchronous:
                self._writer.wait()

    def _save_now(self) -> None:
        """Save the current state and wait until the save is done; all workers stop here."""
        if not self._together.takes_part:
            return
        self._submit(
            self._in_validation or (self._capture() if self._found is None else self._again(self._found)),
            on_disk=True,
            is_last=True,
        )
        if self._memory is not None:
            self._memory.wait()

    def _again(self, found: candidates.Found) -> _Taken:
        """Return the state that was found, to resume from it once more: nothing was trained since."""
        counts = self._shards.counts()  # of the present replicas
        state = {**found.state, state_parts.COUNTS: counts, state_parts.CUT: self._cuts.exist}
        part = {**self._shards.capture(), **self._cuts.capture()}
        elsewhere = self._shards.names | self._cuts.names
        arrays = {name: array for name, array in found.arrays.items() if name not in elsewhere}
        return _Taken(state["steps"] + state["epochs"], arrays, state, part, 0.0)

    def _tell_the_agent(self, number: int) -> None:
        reporter, steps = step_clock().reporter, self._steps_of[number]
        if reporter is not None:
            reporter.saved(steps)


class _First(keras.callbacks.Callback):
    """The part of a session that comes before all other callbacks."""

    def __init__(self, session: BackupSession) -> None:
        super().__init__()
        self._session = session

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._session.before_batch(batch)

    def on_test_begin(self, logs: Any = None) -> None:
        self._session.before_validation()

    def on_test_end(self, logs: Any = None) -> None:
        self._session.validation_ended()

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        step_clock().begin(Kind.TEST)
        step_clock().pause()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        step_clock().end_paused()
