"""Input that is made again from its beginning, up to the step at which training was left.

Private names, read in Keras 3.15.1 (`keras/src/trainers/epoch_iterator.py`, `trainers/data_adapters/`):
`EpochIterator._enumerate_iterator`, `_num_batches` and `_steps_seen`; `TFEpochIterator.catch_stop_iteration`;
`GeneratorDataAdapter.generator`, `ArrayDataAdapter._inputs`; `PyDatasetAdapter.py_dataset`, `shuffle` and `enqueuer`,
whose threads begin with an epoch; `on_epoch_begin` and `on_epoch_end` of an adapter; `Model._eval_epoch_iterator`, the
input of the validations of a `fit`.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import keras
import tensorflow as tf

from tfdist.compat.keras import epochs as keras_epochs
from tfdist.compat.keras.epochs import Fit


class Course(Protocol):
    """The part of a backup that follows an input while it is read, and while it is read again."""

    def call(self, method: Callable[[], None], *, begins: bool) -> None:
        """Call what a `PyDataset` does at the beginning or the end of an epoch."""

    def replay_begins(self) -> None:
        """Note that past epochs are about to be read again."""

    def enter(self, *, step: int) -> None:
        """Note that all past epochs lie behind, and so many steps of the present one are about to be read again."""

    def before_first_batch(self) -> None:
        """Note that the first batch of the present epoch is about to be read again."""

    def replay_ends(self) -> None:
        """Note that the next batch is that of the step at which training resumes."""


def python_dataset(fit: Fit) -> keras.utils.PyDataset | None:
    """Return the `PyDataset` that a `fit` reads, if it reads one."""
    found: keras.utils.PyDataset | None = getattr(fit.epoch_iterator.data_adapter, "py_dataset", None)
    return found


def shuffled_batches(fit: Fit) -> int | None:
    """Return the number of batches whose order Keras draws from `random` in each epoch, if it does."""
    adapter = fit.epoch_iterator.data_adapter
    return fit.epoch_iterator._num_batches if python_dataset(fit) and adapter.shuffle else None


def begins_early(fit: Fit) -> bool:
    """Return whether threads draw the order of an epoch, and make batches, before its first step."""
    return getattr(fit.epoch_iterator.data_adapter, "enqueuer", None) is not None


def begins_anew(fit: Fit) -> bool:
    """Return whether each epoch begins the input anew; else it continues in the next epoch where it was."""
    return fit.epoch_iterator.steps_per_epoch is None


def follow(fit: Fit, course: Course) -> None:
    """Let a course follow the calls of a `PyDataset`."""
    adapter = fit.epoch_iterator.data_adapter
    if python_dataset(fit) is not None:
        begin, end = type(adapter).on_epoch_begin.__get__(adapter), type(adapter).on_epoch_end.__get__(adapter)
        vars(adapter)["on_epoch_begin"] = lambda: course.call(begin, begins=True)
        vars(adapter)["on_epoch_end"] = lambda: course.call(end, begins=False)


def replay(fit: Fit, course: Course, *, epochs: int, step: int, whole: bool, steps_at_once: int) -> None:
    """Let the next epoch be the one after so many, from a step on; what lies before is taken from the input again."""
    iterator = fit.epoch_iterator
    keras_epochs.once(iterator, lambda: _replayed(fit, course, epochs, step, whole, steps_at_once))


def pass_over(fit: Fit, course: Course, *, epochs: int, whole: bool) -> None:
    """Let an input be as it is after a `fit` of so many epochs, of which none is trained."""
    course.replay_begins()
    _pass(fit.epoch_iterator, epochs, course, take=whole or _is_generator(fit.epoch_iterator))
    course.enter(step=0)
    course.replay_ends()


def replay_validations(model: keras.Model, count: int, *, whole: bool) -> None:
    """Let the input of the validation that begins be as it is after so many validations of this `fit`."""
    iterator = getattr(model, "_eval_epoch_iterator", None)
    if iterator is None or getattr(iterator.data_adapter, "_inputs", None) is not None:
        return  # arrays have one order
    for _ in range(count):
        _pass(iterator, 1, None, take=whole or _is_generator(iterator))
        iterator.reset()


def _is_generator(iterator: Any) -> bool:
    return getattr(iterator.data_adapter, "generator", None) is not None


def _pass(iterator: Any, epochs: int, course: Course | None, *, take: bool, at_once: int | None = None) -> None:
    """Let some epochs of an input pass; their batches are taken where later ones depend on that."""
    adapter, at_once = iterator.data_adapter, at_once or iterator.steps_per_execution
    source = getattr(adapter, "py_dataset", None)
    call = course.call if course is not None else lambda method, begins: method()
    for _ in range(epochs):
        if source is not None and not take:  # the adapter would begin to make batches in threads
            call(source.on_epoch_begin, begins=True)
            call(source.on_epoch_end, begins=False)
        elif not take and iterator.num_batches is None:  # of which only the batches tell the end
            iter(iterator._get_iterator())
        else:
            with iterator.catch_stop_iteration():
                for _, _, batches in type(iterator)._enumerate_iterator(iterator):
                    if take:
                        _take(batches, at_once)


def _replayed(
    fit: Fit, course: Course, epochs: int, first: int, whole: bool, at_once: int
) -> Iterator[tuple[int, int, Any]]:
    """Yield the steps of an epoch from a step on, as Keras numbers them."""
    iterator = fit.epoch_iterator
    now = iterator.steps_per_execution
    iterator.steps_per_execution = at_once  # as these steps were done, of which an epoch may have more or fewer then
    course.replay_begins()
    try:
        take = whole or iterator.steps_per_epoch is not None or iterator._num_batches is None
        _pass(iterator, epochs, course, take=take, at_once=at_once)
        course.enter(step=first)
        for begin, _, batches in type(iterator)._enumerate_iterator(iterator):
            if begin == 0 and first:
                course.before_first_batch()
            if begin + at_once > first:
                break
            _take(batches, at_once)
        else:
            course.replay_ends()
            return  # all of this epoch lies behind
    finally:
        iterator.steps_per_execution = now
    iterator._steps_seen += first - begin - at_once
    if first > begin:
        _take(batches, first - begin)
    course.replay_ends()
    yield from keras_epochs.onward(iterator, first, batches)


def _take(batches: Iterator[Any], count: int) -> None:
    """Take some batches; raise StopIteration if there is none, as a step does."""
    if next(batches, None) is None:
        raise tf.errors.OutOfRangeError(None, None, "the input has ended")
    for _ in range(count - 1):
        next(batches, None)
