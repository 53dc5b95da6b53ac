"""Callbacks that can only watch, as their code shows."""

import functools
import time
from collections.abc import Callable
from typing import Any

import pytest

from tfdist.training.callback_analysis import only_watches


class Base:
    """A stand-in for Keras' callback, which is given a model."""

    def __init__(self) -> None:
        self.params: dict[str, Any] = {"epochs": 2}


SOMEBODY = object()
TIMES: list[float] = []


def helper(seconds: float) -> None:
    """Reach a list of the script's."""
    TIMES.append(seconds)


def stops() -> None:
    """Reach an object of the script's."""
    SOMEBODY.stopped = True  # type: ignore[attr-defined]


class Watches(Base):
    """Keeps times, by functions of its own, of Python's and of the script's."""

    unit = "seconds"

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, float]] = []

    @property
    def last(self) -> float:
        """Return the last time."""
        return self.seen[-1][1]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Keep a time."""
        self.seen.append((batch, time.monotonic()))
        helper(sum(seconds for _, seconds in self.seen))


class Asks(Base):
    """Names its model."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Ask in a function inside."""
        print((lambda: self.model.optimizer)())  # type: ignore[attr-defined]


class Given(Base):
    """Has its own way to be given the model."""

    def set_model(self, it: Any) -> None:
        """Keep it under another name."""
        self.it = it


class Holds(Base):
    """Holds an object that may be anything."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = {"it": [object()]}


class Calls(Base):
    """Calls a function of the script's that reaches an object that may be anything."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Call it."""
        stops()


class Looks(Base):
    """Looks for a name that is made as it runs."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Look."""
        getattr(self, "mo" + "del")


def closed_over(value: Any) -> Base:
    """Return a callback whose method closes over a value."""

    class Closed(Base):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            print(value)

    return Closed()


def with_function(function: Callable[..., None]) -> Base:
    """Return a callback with a function of its own, as a LambdaCallback has."""
    callback = Base()
    callback.on_train_batch_end = function  # type: ignore[attr-defined]
    return callback


@pytest.mark.parametrize(
    ("callback", "watches"),
    [
        (Base(), True),
        (Watches(), True),
        (closed_over([1.0, {"a": "b"}]), True),
        (with_function(lambda batch, logs: TIMES.append(batch)), True),
        (with_function(print), True),
        (Asks(), False),
        (Given(), False),
        (Holds(), False),
        (Calls(), False),
        (Looks(), False),
        (closed_over(SOMEBODY), False),
        (closed_over(Watches()), False),
        (with_function(lambda batch, logs: stops()), False),
        (with_function(functools.partial(setattr, SOMEBODY, "stopped")), False),
    ],
)
def test_what_a_callback_may_reach_is_read_off_its_code(callback: Any, watches: bool) -> None:
    vars(callback)["_model"] = object()  # as Keras gives it
    assert only_watches(callback) is watches
