"""The position of a `fit` in its data, and how another process restores it.

For `tfdist.data.read` the position is a few numbers. Any other input is replayed: the same program makes the same input
again, and the consumed batches are taken from it once more. If it gives the same order, only iterators are made.
"""

import logging
from dataclasses import dataclass
from typing import Any

from tfdist.compat import random_states
from tfdist.compat.keras import epochs as keras_epochs
from tfdist.compat.keras.epochs import Fit
from tfdist.compat.tensorflow import tf_data
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
        self._validation = fit.validation if isinstance(fit.validation, CountedDataset) else None

    @property
    def global_batch(self) -> int | None:
        """The number of examples in a whole batch over all replicas, if it is known."""
        return self._reading.global_batch_size if self._reading is not None else self._fit.batch_size

    def place(self, *, epoch: int, step: int, ahead: int = 0) -> Place:
        taken = self._fit.batches_taken(ahead)
        return Place(epoch=epoch, step=step, taken=taken, since=max(0, taken - self._fit.batches_taken_before))

    def end_of_epoch(self, epoch: int) -> Place:
        """Return the place before an epoch, when the one before has ended."""
        if self._fit.epoch_iterator.steps_per_epoch:
            return self.place(epoch=epoch, step=0)
        return Place(epoch=epoch, step=0, taken=0, since=0)

    def state(self, place: Place) -> dict[str, Any]:
        """Return a place as JSON."""
        found: dict[str, Any] = {"epoch": place.epoch, "step": place.step, "taken": place.taken, "reading": None}
        found["steps_per_execution"] = self._fit.epoch_iterator.steps_per_execution  # older backups have none
        if self._reading is not None:
            found["reading"] = self._reading.state(batches=place.since or None)
        if self._validation is not None:
            found["validation"] = self._validation.state()
        return found

    def move_to(self, state: dict[str, Any]) -> None:
        """Let the next epoch, which is ``state["epoch"]``, begin after its first ``state["step"]`` steps."""
        if self._validation is not None and state.get("validation") is not None:
            self._validation.seek(state["validation"])
        epoch, step, taken = state["epoch"], state["step"], state["taken"]
        if self._reading is not None and state["reading"] is not None:
            self._reading.seek(state["reading"])
            if step or taken:
                consumed = state["reading"]["consumed"] == state["reading"]["examples"]
                keras_epochs.enter(self._fit, step=step, batches_taken=taken, has_ended=bool(step) and consumed)
            return
        before, now = state["global_batch"], self.global_batch
        if step and before and now and before != now:
            _logger.warning(
                "The backup is from step %d of an epoch with batches of %d examples, and batches have %d now: the "
                "epoch resumes after as many examples, rounded down to whole batches.",
                step,
                before,
                now,
            )
            step = step * before // now
        at_once = state.get("steps_per_execution") or self._fit.epoch_iterator.steps_per_execution
        epochs = epoch - self._fit.initial_epoch
        if not epochs and not step:
            return
        if random_states.global_seed() is None:
            _logger.warning(
                "The input is replayed up to epoch %d, step %d, and no seed is set: a shuffle without a seed gives "
                "another order than before, so examples may be repeated or left out in this epoch. Call "
                "keras.utils.set_random_seed(...) at the start of the script, or read with tfdist.data.read.",
                epoch,
                step,
            )
        keras_epochs.replay(self._fit, epochs=epochs, step=step, whole=self._is_hidden, steps_at_once=at_once)

    def nothing_left(self) -> None:
        """Let the next epoch have no steps."""
        keras_epochs.enter(self._fit, step=self._fit.steps or 2**62, batches_taken=0)
