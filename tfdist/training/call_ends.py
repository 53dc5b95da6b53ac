"""The end of a `fit`, `evaluate` or `predict` of one model, by whatever way: return, exception or interrupt.

Keras tells callbacks of the end of a call that went well, and nothing of one that did not. So a model that trains in a
scope has these three methods as attributes of its own, which call its class's. A call that a subclass makes to another
class's method directly has no end here, nor has the first `predict` of a model that was never compiled: the input of
such a call ends with the last reference to it, or with the process.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import keras

_METHODS = ("fit", "evaluate", "predict")
_CALLS = "_tfdist_calls"


def watch(model: keras.Model) -> None:
    """Let calls of this model's `fit`, `evaluate` and `predict` do at their end what `at_end` says."""
    own = vars(model)
    if _CALLS not in own:
        own[_CALLS] = []
        own.update({name: _with_end(model, name) for name in _METHODS})


def at_end(model: keras.Model, do: Callable[[], None]) -> None:
    """Do something at the end of the innermost call of this model that is running; nothing if none is known to run."""
    calls: list[contextlib.ExitStack] = vars(model).get(_CALLS, [])
    if calls:
        calls[-1].callback(do)


def _with_end(model: keras.Model, name: str) -> Callable[..., Any]:
    calls: list[contextlib.ExitStack] = vars(model)[_CALLS]
    given = vars(model).get(name)  # somebody may have given it another one

    @functools.wraps(getattr(model, name))
    def call(*args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as stack:
            calls.append(stack)
            stack.callback(calls.pop)
            method = given or functools.partial(getattr(type(model), name), model)
            return method(*args, **kwargs)

    return call
