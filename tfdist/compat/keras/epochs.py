"""Access to a running `fit` of Keras: its epochs, and the entry into the middle of an epoch.

Private names, read in Keras 3.15.1 (`keras/src/trainers/epoch_iterator.py`, `backend/tensorflow/trainer.py`):

- the local variables of `fit` (`epoch_iterator`, `callbacks`, `epochs`, `initial_epoch`, `val_x`), found in its frame,
  because a callback knows only its model
- `EpochIterator._enumerate_iterator`, which always numbers steps from 0; its `_current_iterator`, `_steps_seen`,
  `_num_batches` and `_distributed_dataset`; `data_adapter._dataset`
- `TFEpochIterator.catch_stop_iteration`, the block in which `fit`, `evaluate` and `predict` take their steps; the
  iterator is found in the frames that ask its dataset for a cardinality
- `Model._get_metrics_result_or_logs`, which makes the logs of an epoch
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TFEpochIterator

from tfdist.compat import planted
from tfdist.compat.keras import keras_frames, keras_trainer

_FRAMES = 24  # from a callback up to `fit`, through those of a subclass
_FIT_NAMES = {"self", "callbacks", "epochs", "initial_epoch", "epoch_iterator", "val_x"}


@dataclass(frozen=True)
class Fit:
    """A running call of `fit`; `validation` is the x of the user's validation data, or None."""

    callbacks: keras.callbacks.CallbackList
    epochs: int
    initial_epoch: int
    validation: Any
    epoch_iterator: Any

    @property
    def dataset(self) -> tf.data.Dataset | None:
        found = getattr(self.epoch_iterator.data_adapter, "_dataset", None)
        return found if isinstance(found, tf.data.Dataset) else None

    @property
    def batch_size(self) -> int | None:
        """The number of examples in a whole batch, if it is known."""
        return keras_trainer.batch_size_of(self.epoch_iterator)

    def batches_taken(self, ahead: int = 0) -> int:
        """Return the number of batches of this iteration over the data that were trained on by the end of a step."""
        # Keras counts all steps of an execution, also where the data end within it.
        seen, known = max(0, int(self.epoch_iterator._steps_seen) - ahead), self.epoch_iterator._num_batches
        return min(seen, known) if known else seen

    @property
    def batches_taken_before(self) -> int:
        """The number of batches of this iteration that an earlier process has trained on."""
        state = planted.of_iterator(self.epoch_iterator)
        is_same = state.entered is not None and state.entered is self.epoch_iterator._current_iterator
        return state.batches if is_same else 0

    @property
    def reads_on(self) -> bool:
        """Whether the next epoch takes further batches of this iteration over the data."""
        # Keras drops an iterator that has ended earlier than it knew
        return bool(self.epoch_iterator.steps_per_epoch) and self.epoch_iterator._current_iterator is not None

    @property
    def steps(self) -> int | None:
        found = self.epoch_iterator.num_batches
        return None if found is None else int(found)


def running_fit(model: keras.Model) -> Fit | None:
    code = keras_frames.code_of(keras.Model.fit)
    for frame in keras_frames.frames(2, _FRAMES):
        names = frame.f_locals
        if frame.f_code.co_name == "fit" and names.get("self") is model and "epoch_iterator" in names:
            found = names.get("callbacks")
            if not isinstance(found, keras.callbacks.CallbackList):
                found = keras_frames.innermost(keras.callbacks.CallbackList, _FRAMES)  # whose `__init__` is running
            return Fit(found, names["epochs"], names["initial_epoch"], names.get("val_x"), names["epoch_iterator"])
        if frame.f_code is code and (_FIT_NAMES - set(code.co_varnames + code.co_cellvars)):
            method = f"{type(model).__name__}.fit"
            raise keras_frames.refuse(method, seen="keeps what it trains with where it is not found")
    return None


def is_in_fit(frame: FrameType | None, model: keras.Model | None) -> bool:
    """Return whether a frame, of a signal for example, lies inside the `fit` of this model."""
    return any(
        one.f_code.co_name == "fit" and one.f_locals.get("self") is model for one in keras_frames.outwards(frame)
    )


def enter(fit: Fit, *, step: int, batches_taken: int, has_ended: bool = False) -> None:
    """Let the next epoch begin after its first ``step`` steps, to which its data have been moved."""
    iterator = fit.epoch_iterator
    ends = has_ended and iterator._num_batches is None  # which Keras will see when it asks for a batch
    once(iterator, lambda: _from(iterator, step, batches_taken, ends=ends))


def take_steps_in(block: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
    """Run the steps of the `fit`, `evaluate` or `predict` that is looking at a dataset, if one is, inside a block."""
    iterator = keras_frames.innermost(TFEpochIterator, _FRAMES)
    if iterator is not None:
        vars(iterator)["catch_stop_iteration"] = functools.partial(_catching, iterator, block)


@contextlib.contextmanager
def _catching(iterator: Any, block: Callable[[], contextlib.AbstractContextManager[None]]) -> Iterator[None]:
    with block(), type(iterator).catch_stop_iteration(iterator):
        yield


def once(iterator: Any, steps: Callable[[], Iterator[Any]]) -> None:
    """Let the next epoch of an iterator have these steps."""

    def enumerate_once() -> Iterator[Any]:
        del vars(iterator)["_enumerate_iterator"]
        return steps()

    vars(iterator)["_enumerate_iterator"] = enumerate_once


def _from(iterator: Any, first: int, seen: int, *, ends: bool) -> Iterator[Any]:
    """Yield the items of Keras' `_enumerate_iterator` from a step on; without a batch if the data end here."""
    iterator.data_adapter.on_epoch_begin()
    dataset = iterator._get_iterator()
    if ends:  # a strategy refers to an iterator weakly, which a generator allows
        dataset = dataset.take(0) if isinstance(dataset, tf.data.Dataset) else (one for one in list[Any]())
    iterator._current_iterator = iter(dataset)
    iterator._steps_seen = seen
    state = planted.of_iterator(iterator)
    state.entered, state.batches = iterator._current_iterator, seen
    yield from onward(iterator, first, iterator._current_iterator)


def onward(iterator: Any, first: int, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the steps of an epoch that has begun, from a step on; its batches before that have been taken."""
    at_once = iterator.steps_per_execution
    steps = iterator.steps_per_epoch or iterator._num_batches
    if steps:
        for step in range(first, steps, at_once):
            if iterator._num_batches and iterator._steps_seen >= iterator._num_batches:
                break
            iterator._steps_seen += at_once
            yield step, step + at_once - 1, iterator._current_iterator
        if iterator._num_batches and iterator._steps_seen >= iterator._num_batches:
            iterator._current_iterator = iter(iterator._get_iterator())
            iterator._steps_seen = 0
    else:
        step = first
        while True:
            iterator._steps_seen = step + at_once
            yield step, step + at_once - 1, batches
            step += at_once
    iterator.data_adapter.on_epoch_end()


def logs_where_no_step_ran(
    model: keras.Model, fit: Fit, step: int, logs: dict[str, Any], *, are_metrics: bool
) -> Callable[[], None]:
    """Let an epoch in which no step is left have the logs of its last step; return what undoes that."""
    own = vars(model)
    before = own.get("_get_metrics_result_or_logs")
    otherwise = before or type(model)._get_metrics_result_or_logs.__get__(model)

    def found(given: dict[str, Any]) -> dict[str, Any]:
        if given:
            return otherwise(given)
        for one in fit.callbacks.callbacks:
            if isinstance(one, keras.callbacks.ProgbarLogger):
                one.seen = step  # with none it would show no later epoch of an input of unknown length either
        return logs if are_metrics else otherwise(logs)

    def undo() -> None:
        if before is None:
            own.pop("_get_metrics_result_or_logs", None)
        else:
            own["_get_metrics_result_or_logs"] = before

    own["_get_metrics_result_or_logs"] = found
    return undo


def build(model: keras.Model, fit: Fit) -> None:
    spec = getattr(fit.epoch_iterator._distributed_dataset, "element_spec", None)
    if spec is not None:
        keras_trainer.symbolic_build(model, spec)


def drain(model: keras.Model) -> None:
    """Wait for the steps of a model that are under way, where steps are computed ahead (parameter servers)."""
    wait = getattr(model.train_function, "drain", None)
    if wait is not None:
        wait()
