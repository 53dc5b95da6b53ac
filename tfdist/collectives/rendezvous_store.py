"""A small key-value store over HTTP, held by one worker for the workers of a job.

It implements the requests of Horovod's gloo (PUT, GET and DELETE of ``/scope/key``), and also keeps the age of each
key, which reveals a lost worker. Values are bytes, never pickles. The server listens on one address, loopback unless
the job spans hosts; as with TensorFlow's servers, any program that reaches it can read and write.
"""

import http.client
import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote

from tfdist.cluster.cluster_values import Cluster, split_address

_LARGEST_VALUE_BYTES = 16 << 20
_REQUEST_SECONDS = 5.0
_GONE_SECONDS = 30.0  # without an answer, after which the server counts as gone
_POLL_SECONDS = 0.02
_AGES = "ages"


class StoreServer:
    """The server of the store, in a thread of this process, until it is closed or the process ends.

    Example:
        >>> server = StoreServer("127.0.0.1", 0)
        >>> store = Store(server.address)
        >>> store.put("notes", "greeting", b"hello")
        >>> store.get("notes", "greeting")
        b'hello'
        >>> server.close()
    """

    def __init__(self, host: str, port: int) -> None:
        self._server = _Server((host, port), _Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), name="tfdist-store", daemon=True
        )
        self._thread.start()
        written = f"[{host}]" if ":" in host else host
        self.address = f"{written}:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Store:
    """The client of a worker for the store."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._host, self._port = split_address("the address of the store", address)

    def put(self, scope: str, key: str, value: bytes) -> None:
        self._request("PUT", _path(scope, key), value)

    def get(self, scope: str, key: str) -> bytes | None:
        """Return a value, or None before it is written."""
        return self._request("GET", _path(scope, key))

    def wait(self, scope: str, key: str, timeout_seconds: float) -> bytes | None:
        """Return a value as soon as it is written; None after the deadline, or when the server is gone.

        A server on a busy machine may fail to answer for a while; one that has ended refuses connections.
        """
        answered = time.monotonic()
        deadline = answered + timeout_seconds
        pause = _POLL_SECONDS / 16  # what is about to be written is seen at once
        while True:
            try:
                value, answered = self.get(scope, key), time.monotonic()
            except OSError as error:
                if isinstance(error, ConnectionRefusedError) or time.monotonic() > answered + _GONE_SECONDS:
                    return None
                value = None
            if value is not None or time.monotonic() > deadline:
                return value
            time.sleep(pause)
            pause = min(2 * pause, _POLL_SECONDS)

    def ages(self, scope: str) -> dict[str, float]:
        """Return the seconds since each key of the scope was last written."""
        answer = self._request("GET", _path(_AGES, scope))
        return {str(key): float(age) for key, age in json.loads(answer or b"{}").items()}

    def _request(self, method: str, path: str, body: bytes | None = None) -> bytes | None:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_REQUEST_SECONDS)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            content = response.read()
        except http.client.HTTPException as error:
            raise ConnectionError(f"the store at {self.address} gave no answer: {error!r}") from error
        finally:
            connection.close()
        if response.status == http.client.NOT_FOUND:
            return None
        if response.status != http.client.OK:
            raise ConnectionError(f"the store at {self.address} answered {response.status} to {method} {path}")
        return content


def _path(scope: str, key: str) -> str:
    return f"/{quote(scope, safe='')}/{quote(key, safe='')}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # a job that starts again at once must get its port
    allow_reuse_address = True
    # all workers of a job may connect at once; of more than the 5 of the standard library some would wait for seconds
    request_queue_size = 4096

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.lock = threading.Lock()
        self.values: dict[tuple[str, str], tuple[float, bytes]] = {}
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a new thread, or in the thread of the server at the exit of Python 3.12, which starts none."""
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            self.process_request_thread(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _REQUEST_SECONDS
    server: _Server

    def do_GET(self) -> None:
        if parts := self._parts():
            scope, key = parts
            found = self._ages(key) if scope == _AGES else self._value(parts)
            self._answer(404 if found is None else 200, found or b"")

    def do_PUT(self) -> None:
        if parts := self._parts():
            length = self.headers.get("Content-Length", "")
            bounded = length.isdecimal() and int(length) <= _LARGEST_VALUE_BYTES
            value = self.rfile.read(int(length)) if bounded else b""
            if not bounded or len(value) < int(length):
                self._answer(400, b"")
                return
            with self.server.lock:
                self.server.values[parts] = (time.monotonic(), value)
            self._answer(200, b"")

    def do_DELETE(self) -> None:
        # Horovod deletes its own key when it has connected, which another may still be about to read. Few bytes: kept.
        if self._parts():
            self._answer(200, b"")

    def log_message(self, *args: Any) -> None:
        """Log nothing."""

    def _value(self, parts: tuple[str, str]) -> bytes | None:
        with self.server.lock:
            found = self.server.values.get(parts)
        return None if found is None else found[1]

    def _ages(self, scope: str) -> bytes:
        now = time.monotonic()
        with self.server.lock:
            return json.dumps({k: now - at for (s, k), (at, _) in self.server.values.items() if s == scope}).encode()

    def _parts(self) -> tuple[str, str] | None:
        parts = self.path.split("/")
        if len(parts) != 3 or not all(parts[1:]):
            self._answer(400, b"")
            return None
        return unquote(parts[1]), unquote(parts[2])

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def variables(cluster: Cluster, store_address: str) -> dict[str, str]:
    """Return the variables that give Horovod's gloo the store and its ranks, as `horovodrun` sets them."""
    addresses = cluster.require_addresses()
    hosts = [split_address("address", address)[0] for address in addresses]
    distinct = list(dict.fromkeys(hosts))
    mine = hosts[cluster.worker_index]
    store_host, store_port = split_address("address", store_address)
    found = {
        "HOROVOD_RANK": str(cluster.worker_index),
        "HOROVOD_SIZE": str(cluster.num_workers),
        "HOROVOD_LOCAL_RANK": str([w for w, host in enumerate(hosts) if host == mine].index(cluster.worker_index)),
        "HOROVOD_LOCAL_SIZE": str(hosts.count(mine)),
        "HOROVOD_CROSS_RANK": str(distinct.index(mine)),
        "HOROVOD_CROSS_SIZE": str(len(distinct)),
        "HOROVOD_HOSTNAME": mine,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": store_host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(store_port),
    }
    interface = _interface_of(mine)
    return found | ({"HOROVOD_GLOO_IFACE": interface} if interface else {})


def _interface_of(host: str) -> str | None:
    import psutil

    try:
        wanted = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address.partition("%")[0] in wanted for address in addresses):
            return name
    return None
