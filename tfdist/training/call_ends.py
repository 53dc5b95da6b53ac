"""The end of inputs: with the `fit`, `evaluate` or `predict` that reads them, or with the process.

Keras notifies callbacks of the end of successful calls only. So a model that trains in a scope gets these three methods
as its own attributes, which call those of its class. Some inputs have no such end: of a call that a subclass makes to
another class's method, of the first `predict` of a model that was never compiled, and of a loop of the user's own.
Python's last collection would free them, and may wait for ever (`tfdist.compat.tensorflow.tf_data`). They end before
it, while other threads still get Python's lock.

At the end of the process a warning also names a strategy that the script made and never used, because Keras then
trains in each process by itself, and nothing else notices.
"""

import atexit
import contextlib
import functools
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

import keras

from tfdist.compat import planted
from tfdist.compat.tensorflow import tf_data
from tfdist.waiting import Flag

END_SECONDS = 10.0  # for elements that are being made when a call or the script ends

_METHODS = ("fit", "evaluate", "predict")
_USED = "_is_used"  # the place of a strategy's flag, which is set once the script uses it
_log = logging.getLogger("tfdist")


def watch(model: keras.Model) -> None:
    """Let calls of this model's methods run the functions given to `at_end` when they end."""
    state = planted.of_model(model)
    if state.calls is None:
        state.calls = []
        vars(model).update({name: _with_end(model, name, state.calls) for name in _METHODS})


def at_end(model: keras.Model, do: Callable[[], None]) -> None:
    """Call ``do`` at the end of the innermost call of this model that is known to run."""
    if calls := planted.of_model(model).calls:
        calls[-1].callback(do)


def _with_end(model: keras.Model, name: str, calls: list[contextlib.ExitStack]) -> Callable[..., Any]:
    given = vars(model).get(name)  # a script may have set its own

    @functools.wraps(getattr(model, name))
    def call(*args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as stack:
            calls.append(stack)
            stack.callback(calls.pop)
            method = given or functools.partial(getattr(type(model), name), model)
            return method(*args, **kwargs)

    return call


def expect_use(strategy: Any) -> None:
    """Warn at the end of this process if the script succeeds without ever using this strategy."""
    if strategy.num_replicas_in_sync > 1:
        used = vars(strategy)[_USED] = Flag()  # not the strategy itself, which may be freed before
        name = f"{type(strategy).__name__} of {strategy.num_replicas_in_sync} replicas"
        atexit.register(_tell_if_unused, os.getpid(), name, used)


def note_use(strategy: Any) -> None:
    """Note that the script uses a strategy: its scope, a loop of its own, or its workers."""
    if (used := vars(strategy).get(_USED)) is not None:
        used.set()


def _tell_if_unused(process: int, name: str, used: Flag) -> None:
    has_failed = hasattr(sys, "last_type")  # as Python notes it of an uncaught exception
    if os.getpid() == process and not used.is_set() and not has_failed:
        _log.warning(
            "tfdist: the %s was made and never used: what this process has trained, it has trained by itself. "
            "Create and compile the model under `with strategy.scope():`.",
            name,
        )


def end_inputs_with_process() -> None:
    """End every iterator over a dataset when this process ends."""
    _expect_end(os.getpid())


@functools.cache
def _expect_end(process: int) -> None:
    atexit.register(_end_inputs, process, tf_data.EndThreads())


def _end_inputs(process: int, threads: tf_data.EndThreads) -> None:
    if os.getpid() != process:
        return  # a fork has none of these threads, nor those that iterators wait for
    if count := threads.end(tf_data.alive(), seconds=END_SECONDS):
        _log.warning(
            "tfdist: %d input(s) still make an element %g s after the script has ended; the process ends without them.",
            count,
            END_SECONDS,
        )
