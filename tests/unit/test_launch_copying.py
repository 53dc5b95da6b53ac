"""Copies of states in the memory of another host: whole, of one step, the newest, from who has the key alone."""

import contextlib
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.refusals import absent, refused
from tfdist.checkpoint import Store, checkpoint_manifest
from tfdist.checkpoint.checkpoint_store import Checkpoint
from tfdist.cluster.job_files import copies_folder, state_folder
from tfdist.errors import ConfigError
from tfdist.jobs.connecting.tcp_joining import Ticket, join
from tfdist.jobs.remote import state_copies
from tfdist.jobs.remote.state_copies import Copies, Sender

SECONDS = 120.0
KEY, OTHER = "01" * 32, "02" * 32
FAST = 1 << 40
HERE = "127.0.0.1"


def until(found: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Host:
    """A host with a directory in memory."""

    def __init__(self, memory: Path) -> None:
        self.memory = memory
        self.told: list[str] = []
        self.copies = Copies(memory, HERE, bytes_per_second=FAST, tell=self.told.append)

    def store(self, training: str = "1f") -> Store:
        return Store(state_copies.place(state_folder(self.memory), training), keep=2, durable=False)

    def save(self, step: int, training: str = "1f", size: int = 50_000) -> None:
        self.store(training).save(step, {name: np.full(size, step) for name in "ab"}, {"step": step})
        self.copies.look()

    def copied(self, training: str = "1f") -> Checkpoint | None:
        return Store(state_copies.place(copies_folder(self.memory), training), durable=False).newest()

    def has_copy(self, step: int, training: str = "1f") -> bool:
        found = self.copied(training)
        return found is not None and found.step == step


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    found = Host(tmp_path / "one"), Host(tmp_path / "two")
    for host in found:
        host.memory.mkdir()
    yield found
    for host in found:
        host.copies.close()


def joined(sender: Host, taker: Host, key: str = KEY) -> None:
    port = taker.copies.take("one", KEY)
    sender.copies.send(f"{HERE}:{port}", "one", key)


def test_a_copy_is_always_that_of_one_step_and_in_the_end_the_newest(
    hosts: tuple[Host, Host], caplog: pytest.LogCaptureFixture
) -> None:
    one, two = hosts
    joined(one, two)
    with caplog.at_level(logging.WARNING):
        for step in range(1, 60):
            one.save(step)
            found = two.copied()
            if found is not None:
                assert {value for array in found.arrays.values() for value in np.unique(array).tolist()} == {found.step}
                assert found.state == {"step": found.step}
        until(lambda: two.has_copy(59))
    assert not caplog.records, "a copy was not whole"
    until(lambda: os.listdir(state_copies.place(copies_folder(two.memory), "1f")) == ["step-000000000059"])
    assert (one.told, two.told) == ([], [])


def test_what_ends_or_is_saved_again_is_so_there_too_and_each_training_has_its_own(hosts: tuple[Host, Host]) -> None:
    one, two = hosts
    joined(one, two)
    one.save(5)
    one.save(7, "2f")
    until(lambda: two.has_copy(5) and two.has_copy(7, "2f"))
    one.store().save(5, {"a": np.zeros(3)}, {"step": "again"})
    one.copies.look()
    until(lambda: (found := two.copied()) is not None and found.state == {"step": "again"})
    one.store().discard()
    one.copies.look()
    until(lambda: two.copied() is None)
    assert two.has_copy(7, "2f")


def test_a_state_that_is_being_removed_or_made_is_not_copied(tmp_path: Path) -> None:
    store = Store(state_copies.place(tmp_path, "1f"), durable=False)
    store.save(1, {"a": np.zeros(3)}, {})
    folder = state_copies.place(tmp_path, "1f") / "step-000000000001"
    with state_copies.opened(folder) as files:
        assert [name for name, _, _ in files] == ["arrays.safetensors", state_copies.LAST]
        store.discard()  # what is open can still be read
        assert all(len(os.pread(file, size, 0)) == size for _, file, size in files)
    store.save(1, {"a": np.zeros(3)}, {})
    (folder / state_copies.LAST).unlink()  # what is removed first
    with pytest.raises(FileNotFoundError), state_copies.opened(folder):
        pass
    (folder.parent / ".step-000000000002.0123456789abcdef.tmp").mkdir()
    assert state_copies.states(tmp_path, "1f") == [folder.name]
    assert state_copies.LAST == checkpoint_manifest.NAME


def test_a_state_that_cannot_be_read_is_tried_again_after_a_pause(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    again = threading.Event()
    tried: list[Path] = []

    def opened(folder: Path) -> contextlib.AbstractContextManager[list[tuple[str, int, int]]]:
        tried.append(folder)
        if len(tried) > 1:
            again.set()
        raise OSError("no descriptor is free")

    monkeypatch.setattr(state_copies, "opened", opened)
    monkeypatch.setattr(state_copies, "_TURN_SECONDS", SECONDS)
    one, two = hosts
    joined(one, two)
    one.save(1)
    until(lambda: tried)
    assert not again.wait(0.1), "the next attempt came at once"


def test_a_sender_that_dies_within_a_copy_leaves_the_one_before(hosts: tuple[Host, Host]) -> None:
    one, two = hosts
    joined(one, two)
    one.save(1)
    until(lambda: two.has_copy(1))
    one.copies.close()
    port = two.copies.take("one", KEY)
    connection, wire = join(_ticket(port))
    with connection:
        wire.send({"copy": ["1f", "step-000000000002"], "files": [[state_copies.LAST, 10], ["a.safetensors", 10]]})
        wire.send_bytes(b"0123456789")
        wire.send_bytes(b"01234")
        at = state_copies.place(copies_folder(two.memory), "1f")
        until(lambda: len(os.listdir(at)) == 2)
    until(lambda: os.listdir(at) == ["step-000000000001"])
    assert two.has_copy(1)


@pytest.mark.parametrize(
    "message",
    [
        {"copy": ["../1f", "step-000000000002"], "files": []},
        {"copy": ["1f", "/step"], "files": []},
        {"copy": ["1f", "step-000000000002"], "files": [["../a", 1]]},
        {"copy": "1f", "files": []},
        {"drop": ".."},
        {},
    ],
)
def test_names_that_lead_elsewhere_end_the_connection(message: dict[str, object], hosts: tuple[Host, Host]) -> None:
    one, two = hosts
    one.save(1)
    before = sorted(two.memory.parent.rglob("*"))
    connection, wire = join(_ticket(two.copies.take("one", KEY)))
    with connection:
        wire.send(message)
        assert select.select([connection], [], [], SECONDS)[0], "the connection goes on"
        assert wire.receive() is None
    assert sorted(two.memory.parent.rglob("*")) == before


def test_who_has_another_key_gives_nothing_and_says_so_once(hosts: tuple[Host, Host]) -> None:
    one, two = hosts
    one.save(1)
    joined(one, two, key=OTHER)
    until(lambda: one.told)
    assert not absent(one.told[0], "not copied", "another key", "--copy-bandwidth 0")
    assert "01" * 4 not in one.told[0]
    assert two.copied() is None


def test_an_address_of_another_host_is_refused_with_the_cure(tmp_path: Path) -> None:
    with refused(ConfigError, name="--hosts", received="192.0.2.1", mentions=["--copy-bandwidth 0"]):
        Copies(tmp_path, "192.0.2.1", bytes_per_second=FAST, tell=print).take("one", KEY)


def test_memory_that_takes_no_copy_is_said_and_the_next_is_tried(hosts: tuple[Host, Host]) -> None:
    one, two = hosts
    copies_folder(two.memory).write_text("no folder")
    joined(one, two)
    one.save(1)
    until(lambda: two.told)
    assert not absent(two.told[0], "host one", "Not a directory")
    copies_folder(two.memory).unlink()
    one.save(2)
    until(lambda: two.has_copy(2))
    assert len(two.told) == 1


def test_a_host_that_took_over_drops_the_copies_that_it_needs_no_more(hosts: tuple[Host, Host]) -> None:
    one, two = hosts
    joined(one, two)
    one.save(4)
    until(lambda: two.has_copy(4))
    one.copies.close()
    port = one.copies.take("two", KEY)
    two.copies.send(f"{HERE}:{port}", "two", KEY)
    two.save(3)  # it began anew, from an older state
    until(lambda: one.has_copy(3))
    assert two.has_copy(4)
    two.save(5)
    until(lambda: one.has_copy(5) and two.copied() is None)


def test_a_bound_holds_a_copy_up_and_closing_does_not_wait_for_it(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    one, two = hosts
    one.save(1, size=1_000_000)
    port = two.copies.take("one", KEY)
    states, other = state_folder(one.memory), copies_folder(one.memory)
    sender = Sender(states, other, _ticket(port), bytes_per_second=1.0, tell=one.told.append)
    at = state_copies.place(copies_folder(two.memory), "1f")
    until(at.exists)  # its first piece is there, and the next is due in days
    with contextlib.closing(sender):
        assert two.copied() is None
    until(lambda: not os.listdir(at))


def test_states_that_are_left_out_are_told_once_where_copies_take_long(
    hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = hosts
    meanwhile: list[int] = []  # steps that are saved while others are copied, one with each piece

    class Saving:
        def __init__(self, rate: float) -> None: ...

        def delay(self, count: int) -> float:
            if meanwhile:
                one.save(meanwhile.pop(0))
            return 0.0

    monkeypatch.setattr(state_copies, "Pace", Saving)
    joined(one, two)
    one.save(1)
    until(lambda: two.has_copy(1))
    monkeypatch.setattr(state_copies, "_SLOW_SECONDS", 0.0)
    one.save(2)
    until(lambda: two.has_copy(2))
    assert not one.told, "nothing was left out"
    meanwhile += range(4, 24)
    one.save(3)
    until(lambda: two.has_copy(23))
    [told] = one.told
    assert not absent(told, "host one", "0.8 MB", "left out", "--copy-bandwidth")


def _ticket(port: int) -> Ticket:
    return Ticket(addresses=(f"{HERE}:{port}",), name="one", key=state_copies._key(KEY), wait_seconds=SECONDS)
