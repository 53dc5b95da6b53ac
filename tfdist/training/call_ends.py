"""The end of inputs: with the `fit`, `evaluate` or `predict` that reads them, or with the process.

Keras notifies callbacks of the end of successful calls only. So a model that trains in a scope gets these three methods
as its own attributes, which call those of its class. Some inputs have no such end: of a call that a subclass makes to
another class's method, of the first `predict` of a model that was never compiled, and of a loop of the user's own.
Python's last collection would free them, and may wait for ever (`tfdist.compat.tensorflow.tf_data`). They end before
it, while other threads still get Python's lock.
"""

import atexit
import contextlib
import functools
import logging
import os
from collections.abc import Callable
from typing import Any

import keras

from tfdist.compat import planted
from tfdist.compat.tensorflow import tf_data

END_SECONDS = 10.0  # for elements that are being made when a call or the script ends

_METHODS = ("fit", "evaluate", "predict")
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


@functools.cache
def end_inputs_with_process() -> None:
    """End every iterator over a dataset when this process ends."""
    atexit.register(_end_inputs, os.getpid())


def _end_inputs(process: int) -> None:
    if os.getpid() != process:
        return  # a fork has none of the threads that iterators wait for
    if count := tf_data.end(tf_data.alive(), seconds=END_SECONDS):
        _log.warning(
            "tfdist: %d input(s) still make an element %g s after the script has ended; the process ends without them.",
            count,
            END_SECONDS,
        )
