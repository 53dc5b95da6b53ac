"""The position of a `fit` in its data, and how another process restores it.

For `tfdist.data.read` the position is a few numbers. Any other input is replayed: the same program makes the same input
again, and the consumed batches are taken from it once more. If it gives the same order, only iterators are made.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from numpy.typing import NDArray

from tfdist.callbacks.backup.input_randomness import InputRandomness
from tfdist.compat import random_states
from tfdist.compat.keras import epochs as keras_epochs
from tfdist.compat.keras import keras_trainer, replayed_input
from tfdist.compat.keras.epochs import Fit
from tfdist.compat.tensorflow import tf_data
from tfdist.errors import ConfigError
from tfdist.training.global_batches import CountedDataset

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place between two steps.

    `taken` counts the batches of the current iteration over the data, which differs from `step` if `fit` has
    ``steps_per_epoch``; this process has trained on the last `since` of them.
    """

    epoch: int
    step: int
    taken: int
    since: int


class Input:
    def __init__(self, fit: Fit) -> None:
        self._fit = fit
        found = None if fit.dataset is None else tf_data.one_to_one_source(fit.dataset)
        self._reading = found if isinstance(found, CountedDataset) else None
        is_replayed = fit.dataset is not None and self._reading is None
        #: a dataset of tfdist is deeper inside the input, whose batches are not one to one its own
        self._is_hidden = is_replayed and any(isinstance(one, CountedDataset) for one in tf_data.sources(found))
        validation = fit.validation
        if isinstance(validation, tf.data.Dataset):
            validation = tf_data.one_to_one_source(validation)
        self._validation = validation if isinstance(validation, CountedDataset) else None
        self._validations = 0  # that have ended
        self._past_validations = 0  # of them, those of earlier processes that this one has not replayed
        self._random = InputRandomness(fit)

    @property
    def global_batch(self) -> int | None:
        """The number of examples in a whole batch over all replicas, if it is known."""
        return self._reading.global_batch_size if self._reading is not None else self._fit.batch_size

    @property
    def _seed(self) -> int | None:
        """The seed on which the order of the input may depend; Keras shuffles arrays in a graph, by the global one."""
        return random_states.global_seed() if self._fit.dataset is None else random_states.seed_of_shuffles()

    def place(self, *, epoch: int, step: int, ahead: int = 0) -> Place:
        taken = self._fit.batches_taken(ahead)
        return Place(epoch=epoch, step=step, taken=taken, since=max(0, taken - self._fit.batches_taken_before))

    def end_of_epoch(self, epoch: int) -> Place:
        """Return the place before an epoch, when the one before has ended."""
        if self._fit.reads_on:
            return self.place(epoch=epoch, step=0)
        return Place(epoch=epoch, step=0, taken=0, since=0)

    def state(self, place: Place) -> dict[str, Any]:
        """Return a place as JSON."""
        found: dict[str, Any] = {"epoch": place.epoch, "step": place.step, "taken": place.taken, "reading": None}
        found["steps_per_execution"] = self._fit.epoch_iterator.steps_per_execution  # older backups have none
        if self._reading is not None:
            found["reading"] = self._reading.state(batches=place.since or None)
        if self._validation is not None:
            found["validation"] = where_next_begins(self._validation)
        found["reading_matters"] = self._random.reading_matters
        found["validations"], found["steps_per_epoch"] = self._validations, self._fit.steps
        found["seed"] = self._seed
        return found

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that belong to `state`."""
        return self._random.arrays() if self._reading is None else {}

    def remember(self) -> int:
        """Note the random states of the script, before those of a backup take their place; return their digest."""
        self._random.remember()
        return self._random.digest()

    def epoch_begins(self) -> None:
        """Note that the first step of an epoch is about to take its batch."""
        self._random.epoch_begins()

    def validation_begins(self, model: keras.Model) -> None:
        """Let the validation have the examples that it would have, had this process made all validations before it."""
        count, self._past_validations = self._past_validations, 0
        if count and self._validation is None:
            dataset = self._fit.validation
            matters = isinstance(dataset, tf.data.Dataset) and tf_data.reading_matters(dataset)
            held = random_states.of_python()
            replayed_input.replay_validations(model, count, whole=matters)
            random_states.restore(held)

    def validation_ended(self) -> None:
        self._validations += 1

    def move_to(self, state: dict[str, Any], arrays: Mapping[str, NDArray[Any]], *, is_over: bool = False) -> None:
        """Let the next epoch, which is ``state["epoch"]``, begin after its first ``state["step"]`` steps.

        With `is_over` no epoch follows in this `fit`, and the input is left as it was at the end.
        """
        self._validations = self._past_validations = state.get("validations", 0)
        if self._validation is not None and state.get("validation") is not None:
            self._validation.seek(state["validation"])
        epoch, step, taken = state["epoch"], state["step"], state["taken"]
        if self._reading is not None and state["reading"] is not None:
            self._reading.seek(state["reading"])
            if (step or taken) and not is_over:
                has_ended = self._reading.state(batches=0)["epoch"] != state["reading"]["epoch"]
                batches = keras_trainer.batches_of(self._fit.epoch_iterator)
                if batches and state["global_batch"] != self.global_batch:  # as many examples are other batches
                    taken = max(0, batches - (0 if has_ended else self._reading.steps))
                    step = step if self._fit.epoch_iterator.steps_per_epoch else taken
                keras_epochs.enter(self._fit, step=step, batches_taken=taken, has_ended=has_ended)
            return
        step = self._step_of(state)
        epochs = epoch - self._fit.initial_epoch
        if not epochs and not step:
            return
        seed = self._seed
        if (seed is None or seed != state.get("seed", seed)) and not is_over:
            _logger.warning(
                "The input is replayed up to epoch %d, step %d, and %s: a shuffle without a seed gives another order "
                "than before, so examples may be repeated or left out in this epoch. Call "
                "keras.utils.set_random_seed(...) at the start of the script, or read with tfdist.data.read.",
                *(epoch, step, "no seed is set" if seed is None else "the seed is not that of the backup"),
            )
        matters = state.get("reading_matters", False)
        self._random.move_to(arrays, reading_matters=matters)
        dataset = self._fit.dataset
        whole = matters or self._is_hidden or (epochs > 0 and dataset is not None and tf_data.reading_matters(dataset))
        if is_over:
            replayed_input.pass_over(self._fit, self._random, epochs=epochs, whole=whole)
            return
        at_once = state.get("steps_per_execution") or self._fit.epoch_iterator.steps_per_execution
        replayed_input.replay(self._fit, self._random, epochs=epochs, step=step, whole=whole, steps_at_once=at_once)

    def _step_of(self, state: Mapping[str, Any]) -> int:
        """Return the step after which the epoch resumes; warn if the script has changed, and it may be another."""
        step: int = state["step"]
        if (self._reading is None) != (state["reading"] is None):
            was, now = ("with", "without") if self._reading is None else ("without", "with")
            _logger.warning(
                "The backup was made %s tfdist.data.read, and fit reads %s it now: what was read before is unknown. "
                "Training resumes after step %d of epoch %d of the input that it has now.",
                *(was, now, step, state["epoch"] + 1),
            )
        before, now_batch = state["global_batch"], self.global_batch
        steps_before, steps = state.get("steps_per_epoch"), self._fit.steps
        if step and before and now_batch and before != now_batch:
            _logger.warning(
                "The backup is from step %d of an epoch with batches of %d examples, and batches have %d now: the "
                "epoch resumes after as many examples, rounded down to whole batches.",
                step,
                before,
                now_batch,
            )
            return step * before // now_batch
        if step and steps_before and steps and steps_before != steps:
            _logger.warning(
                "The backup is from step %d of an epoch of %d steps, and an epoch has %d now: the input is another, or "
                "its batches are. The epoch resumes after as many steps of the input that it has now; to train on all "
                "of it, resume with the former input up to the end of the epoch.",
                step,
                steps_before,
                steps,
            )
        return step

    def nothing_left(self) -> None:
        """Let the next epoch have no steps."""
        keras_epochs.enter(self._fit, step=self._fit.steps or 2**62, batches_taken=0)


def where_next_begins(validation: CountedDataset) -> dict[str, Any]:
    """Return where the next validation begins: behind the last one, or where that began if it left examples out."""
    begun = validation.state(batches=0)
    try:
        ended = validation.state()
    except ConfigError:  # outside of a strategy nobody counts batches before the end
        return begun
    return ended if ended["consumed"] == ended["examples"] else begun
