"""Saving in the background: training never waits, the newest wins, and a disk that fails ends nothing."""

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import refused
from tfdist.checkpoint import Store, Writer
from tfdist.errors import ConfigError, DeadlineError, StorageError

DEADLINE_SECONDS = 200


class SlowStore(Store):
    """A store whose saves wait until they may go on, and may fail."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, durable=False)
        self.begun, self.may_go_on = threading.Semaphore(0), threading.Semaphore(0)
        self.error: BaseException | None = None
        self.saved: list[int] = []

    def save(self, step: int, arrays: Any, state: Any, **parts: Any) -> None:
        self.begun.release()
        assert self.may_go_on.acquire(timeout=DEADLINE_SECONDS)
        if self.error is not None:
            raise self.error
        super().save(step, arrays, state, **parts)
        self.saved.append(step)


@pytest.fixture
def store(tmp_path: Path) -> SlowStore:
    return SlowStore(tmp_path / "backup")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def writer(store: SlowStore, said: list[str]) -> Iterator[Writer]:
    made = Writer(store, warn=said.append)
    yield made
    store.may_go_on.release(100)
    store.error = None
    made.close(DEADLINE_SECONDS)


def submit(writer: Writer, step: int) -> None:
    writer.submit(step, {"x": np.full(10, step)}, {"step": step})


def begun(store: SlowStore) -> None:
    assert store.begun.acquire(timeout=DEADLINE_SECONDS)


def test_what_waits_is_replaced_and_what_is_being_saved_is_finished(store: SlowStore, writer: Writer) -> None:
    submit(writer, 1)
    begun(store)
    for step in (2, 3, 4):
        submit(writer, step)
    store.may_go_on.release(2)
    writer.wait(DEADLINE_SECONDS)
    assert store.saved == [1, 4]
    assert writer.written == 4
    found = store.newest()
    assert found is not None
    assert (found.step, found.state, found.arrays["x"].tolist()) == (4, {"step": 4}, [4] * 10)


def test_the_state_is_that_of_the_submission(store: SlowStore, writer: Writer) -> None:
    history = {"loss": [1.0]}
    writer.submit(1, {}, {"history": history})
    begun(store)
    history["loss"].append(2.0)
    store.may_go_on.release()
    writer.wait(DEADLINE_SECONDS)
    found = store.newest()
    assert found is not None
    assert found.state == {"history": {"loss": [1.0]}}


def test_waiting_has_a_deadline(store: SlowStore, writer: Writer) -> None:
    writer.wait(0)
    submit(writer, 1)
    begun(store)
    with refused(DeadlineError, path=store.url, mentions=["0.01 seconds"]):
        writer.wait(0.01)
    store.may_go_on.release()
    writer.wait(DEADLINE_SECONDS)
    assert store.saved == [1]


def test_closing_saves_what_waits(store: SlowStore, writer: Writer) -> None:
    submit(writer, 1)
    begun(store)
    submit(writer, 2)
    store.may_go_on.release(2)
    writer.close(DEADLINE_SECONDS)
    assert store.saved == [1, 2]
    writer.close()
    with refused(ConfigError, path=store.url):
        submit(writer, 3)


def test_a_writer_that_was_never_used(tmp_path: Path) -> None:
    writer = Writer(Store(tmp_path), warn=print)
    writer.wait()
    writer.close()
    assert (writer.written, writer.last_error, writer.failures) == (None, None, 0)


def full() -> StorageError:
    return StorageError(errno.ENOSPC, "the disk is full. Free some space.")


def test_a_disk_that_fails_ends_nothing_and_is_said_once(store: SlowStore, writer: Writer, said: list[str]) -> None:
    store.may_go_on.release(100)
    submit(writer, 1)
    writer.wait(DEADLINE_SECONDS)
    store.error = full()
    for step in (2, 3):
        submit(writer, step)
        writer.wait(DEADLINE_SECONDS)
    assert (writer.failures, writer.last_error, writer.written) == (2, store.error, 1)
    [message] = said
    assert "checkpoint of step 2" in message
    assert "that of step 1" in message
    assert str(store.error) in message
    store.error = StorageError(errno.EROFS, "it is read-only")
    submit(writer, 4)
    writer.wait(DEADLINE_SECONDS)
    assert len(said) == 2
    store.error = None
    submit(writer, 5)
    writer.wait(DEADLINE_SECONDS)
    assert (writer.failures, writer.last_error, writer.written) == (3, None, 5)
    store.error = full()  # what failed, was well, and fails again is news
    submit(writer, 6)
    writer.wait(DEADLINE_SECONDS)
    assert len(said) == 3


def test_a_mistake_is_not_silent(store: SlowStore, writer: Writer, said: list[str]) -> None:
    store.may_go_on.release(100)
    store.error = ZeroDivisionError("a mistake")
    submit(writer, 1)
    with pytest.raises(ZeroDivisionError, match="a mistake"):
        writer.wait(DEADLINE_SECONDS)
    store.error = None
    submit(writer, 2)
    writer.wait(DEADLINE_SECONDS)
    assert store.saved == [2]
    assert said == []


def test_what_cannot_be_saved_is_refused_at_once(store: SlowStore, writer: Writer) -> None:
    for arrays, state in (({"x": np.array(["a"])}, {}), ({}, {"x": {1: 2}})):
        with pytest.raises(ConfigError):
            writer.submit(1, arrays, state)
    writer.wait(0)
    assert store.saved == []


def test_each_save_is_announced_when_it_is_whole(tmp_path: Path) -> None:
    store, seen = Store(tmp_path, durable=False), list[tuple[int, Any]]()
    writer = Writer(store, warn=print, on_written=lambda step: seen.append((step, store.peek())))
    for step in (1, 2):
        submit(writer, step)
        writer.wait(DEADLINE_SECONDS)
    writer.close(DEADLINE_SECONDS)
    assert [(step, peeked[0]) for step, peeked in seen] == [(1, 1), (2, 2)]


def test_arrays_are_let_go_when_they_are_saved(store: SlowStore, writer: Writer) -> None:
    import weakref

    array = np.zeros(1000)
    watched = weakref.ref(array)
    writer.submit(1, {"x": array}, {})
    del array
    begun(store)
    assert watched() is not None
    store.may_go_on.release()
    writer.wait(DEADLINE_SECONDS)
    assert watched() is None


def test_a_handler_may_submit_while_its_thread_does(store: SlowStore, writer: Writer) -> None:
    """A signal's handler runs between two lines of whatever its thread does, also inside of `submit`."""
    store.may_go_on.release(100)
    with writer._changed:
        submit(writer, 1)
        writer.wait(DEADLINE_SECONDS)
    assert store.saved == [1]
