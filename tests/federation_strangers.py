"""Attempts of strangers, and of clients that break a rule, on a federation's server over real sockets."""

import os
import socket
import ssl
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tfdist.federated.transport.array_frames import HEAD, pack, read_head, unpack
from tfdist.federated.transport.authenticated_streams import client_context, proof_statement
from tfdist.federated.transport.federation_keys import ClientKey, Federation

DEADLINE_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Target:
    """A server that listens on this machine; its list has at least berlin and paris, and not oslo."""

    port: int
    federation: Federation
    keys: Mapping[str, ClientKey]
    largest: int


@contextmanager
def raw(target: Target) -> Iterator[ssl.SSLSocket]:
    """A TLS connection that has not said anything."""
    plain = socket.create_connection(("127.0.0.1", target.port), timeout=DEADLINE_SECONDS)
    with plain, client_context().wrap_socket(plain) as connection:
        yield connection


def receive(connection: ssl.SSLSocket, largest: int = 1 << 20) -> dict[str, Any]:
    """The next message."""
    header, body = read_head(_exactly(connection, HEAD.size), largest=largest)
    return unpack(_exactly(connection, header), _exactly(connection, body))


def _exactly(connection: ssl.SSLSocket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        assert part, "the server has closed the connection"
        data += part
    return data


def ends(connection: ssl.SSLSocket) -> bool:
    """Whether the server closes the connection."""
    try:
        while connection.recv(1 << 16):
            pass
    except (ConnectionError, ssl.SSLError):
        pass
    return True


def introduced(
    target: Target, connection: ssl.SSLSocket, name: str = "berlin", key: ClientKey | None = None
) -> dict[str, Any]:
    """The answer to a proof of this name."""
    said = proof_statement(target.federation.fingerprint, receive(connection)["nonce"], name)
    signature = (key or target.keys[name]).private.sign(said)
    connection.sendall(b"".join(pack({"name": name, "signature": signature})))
    return receive(connection)


# --- strangers --------------------------------------------------------------------------------------------------------
def _plain_text(target: Target) -> None:
    with socket.create_connection(("127.0.0.1", target.port), timeout=DEADLINE_SECONDS) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        try:
            while connection.recv(1 << 16):
                pass
        except ConnectionError:
            pass


def _leaves(target: Target) -> None:
    socket.create_connection(("127.0.0.1", target.port)).close()


def _old_tls(target: Target) -> None:
    context = client_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    plain = socket.create_connection(("127.0.0.1", target.port), timeout=DEADLINE_SECONDS)
    with plain, pytest.raises((ssl.SSLError, ConnectionError)):
        context.wrap_socket(plain)


def _garbage(target: Target) -> None:
    with raw(target) as connection:
        connection.sendall(os.urandom(1000))
        assert ends(connection)


def _says_nothing_right(target: Target) -> None:
    for message in ({}, {"name": "berlin"}, {"name": 3, "signature": b""}, {"name": "berlin", "signature": "x"}):
        with raw(target) as connection:
            receive(connection)
            connection.sendall(b"".join(pack(message)))
            assert "refused" in receive(connection)
            assert ends(connection)


def _wrong_key(target: Target) -> None:
    with raw(target) as connection:
        assert "refused" in introduced(target, connection, key=target.keys["paris"])
        assert ends(connection)


def _unknown_name(target: Target) -> None:
    with raw(target) as connection:
        assert "refused" in introduced(target, connection, "oslo", target.keys["paris"])
        assert ends(connection)


def _replayed_proof(target: Target) -> None:
    """A proof that paris made for one connection is worth nothing in the next."""
    with raw(target) as first, raw(target) as second:
        said = proof_statement(target.federation.fingerprint, receive(first)["nonce"], "paris")
        receive(second)
        second.sendall(b"".join(pack({"name": "paris", "signature": target.keys["paris"].private.sign(said)})))
        assert "refused" in receive(second)
        assert ends(second)


def _proof_for_another_server(target: Target) -> None:
    with raw(target) as connection:
        said = proof_statement("00" * 32, receive(connection)["nonce"], "paris")
        connection.sendall(b"".join(pack({"name": "paris", "signature": target.keys["paris"].private.sign(said)})))
        assert "refused" in receive(connection)


def _too_much_at_once(target: Target) -> None:
    """A stranger has some kilobytes to prove itself, whatever its frame announces."""
    with raw(target) as connection:
        receive(connection)
        connection.sendall(HEAD.pack(b"tff1", 100, target.largest))
        assert ends(connection)


STRANGERS: tuple[Callable[[Target], None], ...] = (
    _plain_text,
    _leaves,
    _old_tls,
    _garbage,
    _says_nothing_right,
    _wrong_key,
    _unknown_name,
    _replayed_proof,
    _proof_for_another_server,
    _too_much_at_once,
)


def broken(largest: int) -> dict[str, bytes]:
    """Return messages of a client that break a rule, by name."""
    return {
        "too large": struct.pack("<4sIQ", b"tff1", 10, largest + 1),
        "no header": struct.pack("<4sIQ", b"tff1", 10, 0) + b"0123456789",
        "cut": b"".join(pack({"x": np.zeros(1000)}))[:-1],
        "noise": os.urandom(64),
    }
