"""Connections of a federation, over real sockets: only known clients come in, and no connection harms another."""

import asyncio
import errno
import json
import os
import queue
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.federation_strangers import STRANGERS, Target, broken, ends, introduced, raw
from tests.refusals import refused
from tfdist.errors import ConfigError, ConfigTypeError, DeadlineError, MissingFileError
from tfdist.federated.transport import federation_keys, server_link
from tfdist.federated.transport.array_frames import pack
from tfdist.federated.transport.client_hub import Came, ClientHub, Event, Gone, Said
from tfdist.federated.transport.federation_keys import ClientKey, Federation, ServerKey
from tfdist.federated.transport.server_link import ServerLink

DEADLINE_SECONDS = 60.0
LARGEST = 8 << 20
SERVER = federation_keys.new_server_key()
KEYS = {name: ClientKey(name, Ed25519PrivateKey.generate()) for name in ("berlin", "paris")}
LIST = Federation(SERVER.fingerprint, {name: key.public for name, key in KEYS.items()})


class Server:
    """A hub of this test, and what it refused."""

    def __init__(self, **options: Any) -> None:
        self.reasons: list[str] = []
        self.hub = ClientHub(
            "127.0.0.1",
            options.pop("port", 0),
            SERVER,
            LIST,
            largest=LARGEST,
            refused=lambda _, reason: self.reasons.append(reason),
            **options,
        )
        self.target = Target(port=self.hub.port, federation=LIST, keys=KEYS, largest=LARGEST)

    def event(self) -> Event:
        found = self.hub.take(DEADLINE_SECONDS)
        assert found is not None, "no event in time"
        return found


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    with closing(made.hub):
        yield made


def link(server: Server, name: str = "berlin", key: ClientKey | None = None, **options: Any) -> "closing[ServerLink]":
    made = ServerLink("127.0.0.1", server.hub.port, key or KEYS[name], LIST, largest=LARGEST, **options)
    return closing(made)


def test_messages_go_both_ways_while_strangers_are_turned_away(server: Server) -> None:
    """Attempts on other connections do not disturb a conversation."""
    weights = np.arange(1 << 20, dtype=np.float32)
    with link(server) as client:
        assert server.event() == Came("berlin")
        for number, stranger in enumerate(STRANGERS):
            stranger(server.target)
            server.hub.send("berlin", {"round": number, "weights": weights})
            found = client.take(DEADLINE_SECONDS)
            assert found is not None
            assert (found["round"], found["weights"].tobytes()) == (number, weights.tobytes())
            assert client.send({"update": found["weights"] + 1})
            said = server.event()
            assert isinstance(said, Said)
            assert (said.message["update"] == weights + 1).all()
    assert isinstance(server.event(), Gone)


@pytest.mark.parametrize("sent", broken(LARGEST).values(), ids=broken(LARGEST))
def test_a_client_that_breaks_a_rule_loses_its_own_connection(server: Server, sent: bytes) -> None:
    with link(server) as good, raw(server.target) as connection:
        assert server.event() == Came("berlin")
        assert introduced(server.target, connection, "paris") == {"admitted": "paris"}
        assert server.event() == Came("paris")
        server.hub.send("berlin", {})
        assert good.take(DEADLINE_SECONDS) == {}
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        gone = server.event()
        assert isinstance(gone, Gone)
        assert gone.client == "paris"
        assert good.send({"still": "here"})
        assert server.event() == Said("berlin", {"still": "here"})


def test_another_certificate_is_refused_before_anything_is_said() -> None:
    other = federation_keys.new_server_key()
    hub = ClientHub("127.0.0.1", 0, other, Federation(other.fingerprint, LIST.clients), largest=LARGEST)
    with closing(hub), closing(ServerLink("127.0.0.1", hub.port, KEYS["berlin"], LIST, largest=LARGEST)) as client:
        with refused(ConfigError, name="--server", received=other.fingerprint):
            client.take(DEADLINE_SECONDS)
        assert hub.take(0.0) is None


def test_an_unknown_client_is_told_so_and_does_not_try_again(server: Server) -> None:
    stranger = ClientKey("berlin", Ed25519PrivateKey.generate())
    with link(server, key=stranger) as client, refused(ConfigError, name="berlin", mentions=(stranger.public.hex(),)):
        client.take(DEADLINE_SECONDS)


def test_a_client_connects_again_to_a_server_that_comes_back() -> None:
    first = Server()
    with closing(first.hub), link(first) as client:
        assert first.event() == Came("berlin")
        port = first.hub.port
        first.hub.close()
        second = Server(port=port)
        with closing(second.hub):
            assert second.event() == Came("berlin")
            second.hub.send("berlin", {"welcome": "back"})
            assert client.take(DEADLINE_SECONDS) == {"welcome": "back"}


def test_a_connection_that_is_closed_after_the_end_is_not_lost() -> None:
    server, told = Server(), list[str]()
    with link(server, told=told.append, wait_seconds=0.1) as client:
        assert server.event() == Came("berlin")
        server.hub.send("berlin", {"kind": "end"})
        assert client.take(DEADLINE_SECONDS) == {"kind": "end"}
        server.hub.close()
        assert client.take(DEADLINE_SECONDS) is None, "it has not tried again"
    assert len(told) == 1


def test_a_server_that_stays_away_is_an_error() -> None:
    gone = Server()
    gone.hub.close()
    with link(gone, wait_seconds=0.1) as client, refused(DeadlineError, name="--server"):
        client.take(DEADLINE_SECONDS)
        client.take(DEADLINE_SECONDS)


def test_a_new_connection_takes_the_place_of_the_old(server: Server) -> None:
    with raw(server.target) as old:
        introduced(server.target, old)
        assert server.event() == Came("berlin")
        with link(server) as client:
            assert server.event() == Came("berlin")
            assert ends(old)
            server.hub.send("berlin", {})
            assert client.take(DEADLINE_SECONDS) == {}
            assert client.send({"x": 1})
            assert server.event() == Said("berlin", {"x": 1})


def test_two_processes_with_one_key_do_not_replace_each_other_at_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_link, "_FIRST_PAUSE_SECONDS", 1000.0)
    told = queue.Queue[str]()
    with link(server, told=told.put):
        assert server.event() == Came("berlin")
        told.get(timeout=DEADLINE_SECONDS)
        with link(server) as second:
            assert server.event() == Came("berlin")
            told.get(timeout=DEADLINE_SECONDS)  # that it is replaced
            for number in range(3):
                server.hub.send("berlin", {"number": number})
                assert second.take(DEADLINE_SECONDS) == {"number": number}
                assert second.send({"number": number})
                assert server.event() == Said("berlin", {"number": number})
            assert server.hub.take(0.2) is None


def test_a_message_that_cannot_be_sent_is_an_error_of_the_sender(server: Server) -> None:
    with link(server) as client:
        assert server.event() == Came("berlin")
        with pytest.raises(ConfigTypeError):
            server.hub.send("berlin", {"x": np.array(["a text"])})
        server.hub.send("berlin", {"x": 1})
        assert client.take(DEADLINE_SECONDS) == {"x": 1}


def test_an_array_that_is_called_a_heartbeat_is_a_message(server: Server) -> None:
    with link(server) as client:
        assert server.event() == Came("berlin")
        server.hub.send("berlin", {"kind": np.zeros(2)})
        found = client.take(DEADLINE_SECONDS)
        assert found is not None
        assert found["kind"].shape == (2,)
        assert client.send({"kind": np.zeros(3)})
        said = server.event()
        assert isinstance(said, Said)
        assert said.message["kind"].shape == (3,)
    assert isinstance(server.event(), Gone)


def test_an_event_stays_behind_those_that_wait_for_room(server: Server) -> None:
    """A client that comes back while its end waits is not taken for gone."""
    hub = server.hub

    async def put() -> None:
        while not hub._events.full():
            hub._events.put_nowait(Said("paris", {}))
        waiting = asyncio.create_task(hub._put(Gone("berlin", "cut")))
        await asyncio.sleep(0)
        later = asyncio.create_task(hub._put(Came("berlin")))  # in the very moment when there is room
        hub._events.get_nowait()
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not later.done():
                await asyncio.sleep(0)
                taken.append(hub._events.get_nowait())
            await waiting

    taken = list[Event]()
    hub._loop.call(put())
    while (event := hub.take(0.0)) is not None:
        taken.append(event)
    assert [one for one in taken if one.client == "berlin"] == [Gone("berlin", "cut"), Came("berlin")]


def test_a_peer_that_stops_in_the_middle_is_dropped_and_holds_nobody_up() -> None:
    """One client has sent half a frame, and takes nothing of what the server sends; another is served meanwhile."""
    made = Server(silence_seconds=5.0)
    with closing(made.hub), raw(made.target) as slow:
        introduced(made.target, slow, "paris")
        assert made.event() == Came("paris")
        slow.sendall(b"".join(pack({"x": np.zeros(1000)}))[:3000])
        for _ in range(20):
            made.hub.send("paris", {"weights": np.zeros(1 << 18)})
        with link(made) as client:
            assert made.event() == Came("berlin")
            made.hub.send("berlin", {})
            assert client.take(DEADLINE_SECONDS) == {}
            assert client.send({"x": 1})
            found = [made.event(), made.event()]
        assert Said("berlin", {"x": 1}) in found
        assert [event.client for event in found if isinstance(event, Gone)] == ["paris"]


def test_a_client_that_sends_faster_than_the_server_works_has_to_wait(server: Server) -> None:
    """It sends much more than the server and the sockets keep."""

    async def is_full() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not server.hub._events.full():
                await asyncio.sleep(0)

    with link(server) as client, ThreadPoolExecutor(1) as threads:
        assert server.event() == Came("berlin")
        server.hub.send("berlin", {})
        assert client.take(DEADLINE_SECONDS) == {}  # now the client knows that it is connected
        numbers = range(64)
        sent = threads.submit(lambda: [client.send({"number": one, "x": np.zeros(1 << 18)}) for one in numbers])
        server.hub._loop.call(is_full())
        assert not sent.done()
        taken = [server.event() for _ in numbers]
        assert [isinstance(one, Said) and one.message["number"] for one in taken] == list(numbers)
        assert all(sent.result())


def test_keys_are_made_kept_and_added(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    berlin = federation_keys.make_client_key(folder, "berlin")
    first = federation_keys.make_federation(folder, {"berlin": berlin.public})
    again = federation_keys.make_federation(folder, {"paris": KEYS["paris"].public})
    assert again.fingerprint == first.fingerprint == federation_keys.read_server_key(folder / "server.key").fingerprint
    assert federation_keys.read_federation(folder / "federation.json") == again
    assert sorted(again.clients) == ["berlin", "paris"]
    assert federation_keys.read_client_key(folder / "berlin.key").public == berlin.public
    assert federation_keys.make_client_key(folder, "berlin").public == berlin.public
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in folder.iterdir()} == {
        "server.key": "0o600",
        "berlin.key": "0o600",
        "federation.json": "0o644",
    }
    with refused(ConfigError, name="berlin"):
        federation_keys.make_federation(folder, {"berlin": KEYS["paris"].public})


def test_a_key_that_does_not_reach_the_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        federation_keys.make_client_key(tmp_path, "berlin")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "server", "a" * 65, "ä", "a b", 3])
def test_names_that_are_no_file_names_are_refused(tmp_path: Path, name: str) -> None:
    with refused(ConfigError, name="client"):
        federation_keys.make_client_key(tmp_path, name)


def test_files_of_keys_are_checked(tmp_path: Path) -> None:
    federation_keys.make_client_key(tmp_path, "berlin")
    key, listed = tmp_path / "berlin.key", tmp_path / "federation.json"
    federation_keys.make_federation(tmp_path, {})
    with refused(MissingFileError, path=tmp_path / "rome.key"):
        federation_keys.read_client_key(tmp_path / "rome.key")
    for wrong in (listed, tmp_path / "server.key"):
        with pytest.raises(ConfigError):
            federation_keys.read_client_key(wrong)
    key.chmod(0o644)
    with refused(ConfigError, path=key, mentions=("chmod 600",)):
        federation_keys.read_client_key(key)
    key.chmod(0o600)
    for content in ("", "{}", "[]", '{"format": "tfdist federation 1", "client": "berlin", "private": "xyz"}'):
        key.write_text(content)
        with refused(ConfigError, path=key):
            federation_keys.read_client_key(key)
    found = json.loads(listed.read_text())
    for change in ({"server": "00"}, {"clients": {"berlin": "00"}}, {"clients": []}, {"clients": {"../x": "00"}}):
        listed.write_text(json.dumps(found | change))
        with pytest.raises(ConfigError):
            federation_keys.read_federation(listed)


def test_a_list_and_a_key_that_do_not_belong_together_are_refused() -> None:
    with refused(ConfigError, name="--keys"):
        ClientHub("127.0.0.1", 0, SERVER, Federation("00" * 32, {}), largest=1)
    mixed = ServerKey(certificate=SERVER.certificate, private=federation_keys.new_server_key().private)
    with refused(ConfigError):
        ClientHub("127.0.0.1", 0, mixed, LIST, largest=1)


def test_a_port_in_use_is_refused(server: Server) -> None:
    with refused(ConfigError, name="--listen", received=f"127.0.0.1:{server.hub.port}"):
        Server(port=server.hub.port)
