"""The store by which workers find each other: what Horovod's gloo asks of it, and what it must not do."""

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator

import pytest

from tfdist.collectives.rendezvous_store import Store, StoreServer


@pytest.fixture
def server() -> Iterator[StoreServer]:
    made = StoreServer("127.0.0.1", 0)
    yield made
    made.close()


@pytest.fixture
def store(server: StoreServer) -> Store:
    return Store(server.address)


def request(server: StoreServer, method: str, path: str, body: bytes = b"", **headers: str) -> int:
    connection = http.client.HTTPConnection(*server.address.rsplit(":", 1), timeout=200)
    try:
        connection.request(method, path, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_values_are_bytes_and_keys_are_text(store: Store) -> None:
    for key in ("0", "a/b?c=d#e", "größe %2F", " "):
        store.put("notes", key, bytes(range(256)))
        assert store.get("notes", key) == bytes(range(256))
    assert store.get("notes", "other") is None
    assert store.get("others", "0") is None


def test_it_answers_where_no_thread_starts_any_more(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is at the exit of Python 3.12, while other workers still ask for the cause of a failure."""

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    store.put("causes", "first", b"worker 1 was killed")
    monkeypatch.setattr(threading.Thread, "start", refused)
    assert store.get("causes", "first") == b"worker 1 was killed"


def test_many_workers_connect_at_once(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refused)  # so that the first one, which says nothing, holds it up
    host, port = server.address.rsplit(":", 1)
    with contextlib.ExitStack() as held:
        for _ in range(64):
            held.enter_context(socket.create_connection((host, int(port)), timeout=0.9))


def test_the_last_value_holds(store: Store) -> None:
    store.put("s", "k", b"one")
    store.put("s", "k", b"")
    assert store.get("s", "k") == b""


def test_a_wait_ends_with_the_value_or_the_time(store: Store) -> None:
    assert store.wait("s", "k", 0.05) is None
    store.put("s", "k", b"here")
    assert store.wait("s", "k", 0.05) == b"here"


def test_a_wait_outlasts_a_request_that_fails(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    faults, request = [ConnectionResetError(), TimeoutError()], store._request

    def fail_first(*arguments: str) -> bytes | None:
        if faults:
            raise faults.pop()
        return request(*arguments)

    store.put("s", "k", b"here")
    monkeypatch.setattr(store, "_request", fail_first)
    assert store.wait("s", "k", 60.0) == b"here"


def test_ages_are_those_of_one_scope(store: Store) -> None:
    store.put("beats", "0", b"")
    store.put("beats", "1", b"")
    store.put("other", "2", b"")
    ages = store.ages("beats")
    assert set(ages) == {"0", "1"}
    assert 0 <= ages["1"] <= ages["0"] < 60
    assert store.ages("nothing") == {}


def test_what_horovod_deletes_stays_for_those_who_connect_later(server: StoreServer, store: Store) -> None:
    store.put("global", "1", b"address")
    assert request(server, "DELETE", "/global/1") == 200
    assert store.get("global", "1") == b"address"


@pytest.mark.parametrize("path", ["/", "/scope", "/scope/", "//key", "/a/b/c"])
def test_other_paths_are_refused(server: StoreServer, path: str) -> None:
    assert request(server, "PUT", path, b"x") == 400
    assert request(server, "GET", path) == 400


@pytest.mark.parametrize("length", ["-1", "x", str(1 << 40)])
def test_a_length_that_cannot_be_is_refused_before_it_is_read(server: StoreServer, length: str) -> None:
    assert request(server, "PUT", "/s/k", b"", **{"Content-Length": length}) == 400


def test_a_client_that_goes_away_harms_nobody(server: StoreServer, store: Store) -> None:
    host, port = server.address.split(":")
    with socket.create_connection((host, int(port))) as half:
        half.sendall(b"PUT /s/k HTTP/1.1\r\nContent-Length: 100\r\n\r\nonly this")
    store.put("s", "other", b"works")
    assert store.get("s", "other") == b"works"
    assert store.get("s", "k") is None


def test_no_server_is_an_error_and_no_wait(server: StoreServer) -> None:
    store = Store(server.address)
    server.close()
    with pytest.raises(ConnectionRefusedError):
        store.get("s", "k")
    assert store.wait("s", "k", 60.0) is None


def test_it_listens_on_the_address_it_was_given_alone(server: StoreServer) -> None:
    assert server.address.startswith("127.0.0.1:")
