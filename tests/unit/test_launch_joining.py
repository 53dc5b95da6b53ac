"""Hosts that join over TCP: strangers, other keys and messages that are sent again have no effect."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.refusals import absent, refused
from tfdist.errors import ConfigError, DeadlineError, TfdistError
from tfdist.jobs.connecting import tcp_joining
from tfdist.jobs.connecting.tcp_joining import Rendezvous, Ticket, join
from tfdist.jobs.connecting.wire import Seal, Wire
from tfdist.jobs.launchers.launcher import Launcher, StartedAgents
from tfdist.jobs.plan.host_plan import Host, Remote
from tfdist.jobs.remote.host_connector import HostConnector
from tfdist.variables import JOB_KEY

KEY, OTHER = bytes(range(32)), bytes(32)
SECONDS = 60.0


@pytest.fixture
def rendezvous() -> Iterator[Rendezvous]:
    with contextlib.closing(Rendezvous(KEY, ["a", "b"], [("127.0.0.1", 0)])) as one:
        yield one


def ticket(rendezvous: Rendezvous, name: str = "a", key: bytes = KEY, wait_seconds: float = SECONDS) -> Ticket:
    return Ticket(addresses=rendezvous.addresses, name=name, key=key, wait_seconds=wait_seconds)


def stranger(rendezvous: Rendezvous) -> socket.socket:
    host, _, port = rendezvous.addresses[0].partition(":")
    return socket.create_connection((host, int(port)), timeout=SECONDS)


def exchanged(rendezvous: Rendezvous, name: str = "a") -> None:
    """Let a host join, and both say something."""
    connection, wire = join(ticket(rendezvous, name))
    joined = rendezvous.take(name, timeout_seconds=SECONDS)
    assert joined is not None
    with connection, joined.connection:
        for sender, receiver in ((wire, joined.wire), (joined.wire, wire)):
            sender.send({"is": name})
            assert receiver.receive() == {"is": name}


def test_hosts_join_whoever_else_connects(rendezvous: Rendezvous) -> None:
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(stranger(rendezvous)) for _ in range(8)]
        for data in (b"", b"GET / HTTP/1.1\r\n\r\n", tcp_joining._MAGIC, tcp_joining._MAGIC + bytes(32), bytes(1000)):
            one = stack.enter_context(stranger(rendezvous))
            one.sendall(data)
        for name in ("a", "b", "a"):
            exchanged(rendezvous, name)
        assert silent


def test_hosts_join_after_no_thread_could_be_started(rendezvous: Rendezvous, monkeypatch: pytest.MonkeyPatch) -> None:
    start, failures = threading.Thread.start, iter(range(2 * tcp_joining._MOST_STRANGERS))

    def failing(thread: threading.Thread) -> None:
        if thread.name == "joining host" and next(failures, None) is not None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", failing)
    for _ in range(2 * tcp_joining._MOST_STRANGERS):
        with stranger(rendezvous) as one:
            assert one.recv(1) == b""
    exchanged(rendezvous)


def test_who_has_not_the_key_is_no_host(rendezvous: Rendezvous) -> None:
    with refused(TfdistError, name="a", mentions=["another key"]):
        join(ticket(rendezvous, key=OTHER))
    assert rendezvous.take("a", timeout_seconds=0.0) is None
    with stranger(rendezvous) as one:  # says what the protocol asks for, and guesses the proof
        one.sendall(tcp_joining._MAGIC + bytes(32))
        assert len(one.recv(64, socket.MSG_WAITALL)) == 64
        one.sendall(tcp_joining._LENGTH.pack(1) + b"a" + bytes(32))
        assert one.recv(1) == b""
    assert rendezvous.take("a", timeout_seconds=0.0) is None


def test_a_greeting_that_is_sent_again_is_none(rendezvous: Rendezvous) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as between:
        address = f"127.0.0.1:{between.getsockname()[1]}"
        said = _heard(between, rendezvous, Ticket(addresses=(address,), name="a", key=KEY, wait_seconds=SECONDS))
    joined = rendezvous.take("a", timeout_seconds=SECONDS)
    assert joined is not None
    joined.connection.close()
    with stranger(rendezvous) as one:
        one.sendall(said)
        while one.recv(1 << 10):
            pass
    assert rendezvous.take("a", timeout_seconds=0.0) is None


def _heard(between: socket.socket, rendezvous: Rendezvous, given: Ticket) -> bytes:
    """Let a host join through a listener between; return all that the host has said."""
    said = bytearray()

    def hand_on() -> None:
        host, _ = between.accept()
        with host, stranger(rendezvous) as launcher:
            for size, source, target in ((48, host, launcher), (64, launcher, host), (2 + 1 + 32, host, launcher)):
                data = source.recv(size, socket.MSG_WAITALL)
                target.sendall(data)
                if source is host:
                    said.extend(data)

    thread = threading.Thread(target=hand_on)
    thread.start()
    connection, _ = join(given)
    connection.close()
    thread.join(SECONDS)
    return bytes(said)


@pytest.mark.parametrize("way", ["again", "in another order", "changed", "sent back", "left out"])
def test_messages_that_were_touched_end_the_connection(way: str) -> None:
    here, there = socket.socketpair()
    with here, there:
        sending = Wire(here.fileno(), here.fileno(), Seal(b"a", b"b"))
        records = []
        for number in range(3):
            sending.send({"number": number})
            records.append(there.recv(1 << 16))
        touched: dict[str, list[bytes]] = {
            "again": [records[0], records[0]],
            "in another order": [records[1]],
            "changed": [records[0].replace(b"0", b"7")],
            "sent back": [records[0]],
            "left out": [records[0], records[2]],
        }
        keys = (b"a", b"b") if way == "sent back" else (b"b", b"a")
        receiving = Wire(there.fileno(), there.fileno(), Seal(*keys))
        here.sendall(b"".join(touched[way]))
        found: list[Any] = [receiving.receive() for _ in touched[way]]
        assert found[-1] is None
        assert found[:-1] == [{"number": 0}] * (len(found) - 1)


def test_a_host_that_the_job_has_not_is_told_so(rendezvous: Rendezvous) -> None:
    connection, wire = join(ticket(rendezvous, "Übermut"))
    with connection:
        message = wire.receive()
        assert message is not None
        assert list(message) == ["refused"]
        assert not absent(message["refused"], "'Übermut'", "a, b")


def test_of_two_that_say_they_are_one_the_later_counts(rendezvous: Rendezvous) -> None:
    first, _ = join(ticket(rendezvous))
    with first:
        first.settimeout(SECONDS)
        deadline = time.monotonic() + SECONDS
        while "a" not in rendezvous._waiting:  # a host is told before the launcher has noted it
            assert time.monotonic() < deadline
        second, wire = join(ticket(rendezvous))
        with second:
            assert first.recv(1) == b""
            joined = rendezvous.take("a", timeout_seconds=SECONDS)
            assert joined is not None
            with joined.connection:
                joined.wire.send({"is": "later"})
                assert wire.receive() == {"is": "later"}


def test_nobody_is_there() -> None:
    with contextlib.closing(Rendezvous(KEY, ["a"], [("127.0.0.1", 0)])) as gone:
        nowhere = ticket(gone, wait_seconds=0.0)
    with refused(TfdistError, name="a", mentions=["0 s", "Connection refused"]):
        join(nowhere)


def test_a_host_that_does_not_join_in_time_is_an_error_with_what_to_try() -> None:
    said, cure = "ssh asks for a password", "This has to work: mpirun hostname"

    class Waits(StartedAgents):
        def said(self) -> str:
            return said

        def cure(self) -> str:
            return cure

    host = Host(name="a", address="127.0.0.1")

    class Waiting(Launcher):
        def start(self, *_: object) -> Waits:
            return Waits()

    connector = HostConnector(Waiting(), Remote(hosts=(host,)), key=KEY.hex(), environ={}, say=lambda text: None)
    with contextlib.closing(connector):
        connector.begin([host])
        with refused(DeadlineError, name="a", mentions=["within 0 s"]) as caught:
            connector.connection(host, interrupted=lambda: False, join_seconds=0.0)
    assert str(caught.value).splitlines()[1:] == [f"  {said}", cure]


@pytest.mark.parametrize(
    ("name", "value"), [(JOB_KEY.name, ""), ("TFDIST_RENDEZVOUS", "a"), ("TFDIST_JOIN_SECONDS", "soon")]
)
def test_variables_that_cannot_be(name: str, value: str) -> None:
    right = {"TFDIST_RENDEZVOUS": "a:1", "TFDIST_HOST_NAME": "n", JOB_KEY.name: KEY.hex()}
    assert Ticket.from_environment(right) is not None
    with refused(ConfigError, name=name):
        Ticket.from_environment({**right, name: value})


def test_a_ticket_shows_no_key() -> None:
    one = Ticket(addresses=("a:1",), name="n", key=KEY)
    assert KEY.hex() not in repr(one)
    assert str(KEY) not in repr(one)
    assert sorted(one.environment()) == ["TFDIST_HOST_NAME", "TFDIST_JOB_KEY", "TFDIST_RENDEZVOUS"]
