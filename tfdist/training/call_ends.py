"""The end of a `fit`, `evaluate` or `predict` of one model, by whatever way: return, exception or interrupt.

Keras tells callbacks of the end of a call that went well, and nothing of one that did not. So a model that trains in a
scope has these three methods as attributes of its own, which call its class's. A call that a subclass makes to another
class's method directly has no end here, nor has the first `predict` of a model that was never compiled: the input of
such a call ends with the last reference to it, or with the process.
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
from tfdist.compat.tensorflow import tf_data as tf_data

_METHODS = ("fit", "evaluate", "predict")


def watch(model: keras.Model) -> None:
    """Let calls of this model's `fit`, `evaluate` and `predict` do at their end what `at_end` says."""
    state = planted.of_model(model)
    if state.calls is None:
        state.calls = []
        vars(model).update({name: _with_end(model, name, state.calls) for name in _METHODS})


def at_end(model: keras.Model, do: Callable[[], None]) -> None:
    """Do something at the end of the innermost call of this model that is running; nothing if none is known to run."""
    if calls := planted.of_model(model).calls:
        calls[-1].callback(do)


def _with_end(model: keras.Model, name: str, calls: list[contextlib.ExitStack]) -> Callable[..., Any]:
    given = vars(model).get(name)  # somebody may have given it another one

    @functools.wraps(getattr(model, name))
    def call(*args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as stack:
            calls.append(stack)
            stack.callback(calls.pop)
            method = given or functools.partial(getattr(type(model), name), model)
            return method(*args, **kwargs)

    return call


END_SECONDS = 10.0  # for elements that are being made when the script ends

_log = logging.getLogger("tfdist")


@functools.cache
def end_inputs_with_process() -> None:
    """End every iterator over a dataset when this process ends; once is enough."""
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
