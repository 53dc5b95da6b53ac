"""Callbacks that change and have no `get_state` are told by name in another process, and in no other case."""

from typing import Any

import keras
import numpy as np
import pytest

from tfdist.callbacks.backup import unsaved_attributes
from tfdist.callbacks.backup.unsaved_attributes import Unsaved


class Counts(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.count, self.best, self.seen, self.fixed = 0, np.zeros(2), {"a": [1.0]}, [1, 2]

    def step(self) -> None:
        self.count += 1
        self.best += 1
        self.seen["a"][0] += 1


class Keeps(Counts):
    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        pass


class Busy(dict[str, list[float]]):
    """A dict that another thread changes while it is looked at."""

    def items(self) -> Any:
        for pair in super().items():
            self[f"{len(self)}"] = [1.0]
            yield pair


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    monkeypatch.setattr(unsaved_attributes._logger, "warning", lambda text, *about: found.append(about))
    return found


def state_after(callback: Counts, steps: int) -> dict[str, Any]:
    unsaved = Unsaved([callback, keras.callbacks.EarlyStopping()])
    callback.step()  # before training begins, as in `on_train_begin`
    unsaved.begin()
    for _ in range(steps):
        callback.step()
    return unsaved.state()


def test_what_has_changed_is_told_in_another_process(said: list[tuple[Any, ...]]) -> None:
    state = state_after(Counts(), 1)
    Unsaved([Counts()]).tell(state)
    assert said == []  # the same process has the object still
    Unsaved([Counts(), Keeps()]).tell({**state, "process": "another"})
    ((name, attributes),) = said
    assert name.endswith(".Counts")
    assert attributes == "best, count, seen"


@pytest.mark.parametrize(("callback", "steps"), [(Counts(), 0), (Keeps(), 3)])
def test_what_has_not_changed_or_is_kept_is_not_told(said: list[tuple[Any, ...]], callback: Counts, steps: int) -> None:
    Unsaved([Counts(), Keeps()]).tell({**state_after(callback, steps), "process": "another"})
    Unsaved([Counts()]).tell(None)  # of a backup that an earlier version has written
    assert said == []


def test_what_a_thread_changes_while_it_is_looked_at_ends_no_training() -> None:
    callback = Counts()
    callback.seen = Busy(a=[1.0])
    assert state_after(callback, 0)["changed"] == {}
