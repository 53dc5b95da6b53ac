"""A read-only server of a job's page, and of its metrics for Prometheus, on the loopback interface.

    /            the page, which loads nothing from elsewhere
    /snapshot    the current state, as JSON
    /history     curves of earlier steps
    /events      the state as server-sent events, one for each look, until the job ends
    /metrics     in the text format of Prometheus

The job is observed once in each interval, for any number of clients.
"""

import json
import re
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any, Self

import numpy as np

from tfdist.errors import ConfigError
from tfdist.monitor.verdict.step_parts import Part, Timeline
from tfdist.monitor.watch.snapshot import Snapshot
from tfdist.waiting import LOOK_SECONDS

_LOCAL = re.compile(r"(127\.0\.0\.1|localhost)(:[0-9]{1,5})?", re.ASCII | re.IGNORECASE)
_PATIENCE_SECONDS = 60.0  # for a request that comes slowly, and for a client that takes an answer slowly
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"
#: points of a curve
POINTS = 150


def history(recorded: Timeline | None) -> dict[str, Any]:
    if recorded is None or not len(recorded.steps):
        return {"rate": [], "loss": [], "parts": []}
    places = np.array_split(np.arange(len(recorded.steps)), min(POINTS, len(recorded.steps)))
    return {
        "rate": [[_number(1.0 / max(one, 1e-9)) for one in recorded.step[place].mean(axis=0)] for place in places],
        "loss": [[_number(one) for one in recorded.loss[place[-1]]] for place in places],
        "parts": [{part.label: float(recorded.parts[place, :, part].mean()) for part in Part} for place in places],
    }


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


class Page:
    """A server of a job's page, in its own threads, until it is closed."""

    def __init__(self, look: Any, *, every: float = 1.0, port: int = 0) -> None:
        self._look: Callable[[], Snapshot | None] = look.look
        self._recorded: Callable[[], Timeline | None] = lambda: look.timeline
        self._every = every
        self._lock = threading.Lock()
        self._seen: Snapshot | None = None
        self._at = float("-inf")
        self._ended = threading.Event()
        self._closed = threading.Event()
        handler = type("Handler", (_Handler,), {"page": self})
        try:
            self._server = _Server(("127.0.0.1", port), handler)
        except OSError as error:
            raise ConfigError(
                f"--port is {port}, which cannot be listened on ({error}). Name another, or none.",
                name="--port",
                received=port,
            ) from error
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="page", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closed.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def wait(self) -> None:
        while self.snapshot() is not None:
            # a longer wait may miss Ctrl-C, which a thread that answers can have taken
            self._ended.wait(min(self._every, LOOK_SECONDS))

    def snapshot(self) -> Snapshot | None:
        """Return a snapshot of the job, not older than an interval; None when it has ended."""
        with self._lock:
            if not self._ended.is_set() and time.monotonic() - self._at >= self._every:
                self._seen, self._at = self._look(), time.monotonic()
                if self._seen is None:
                    self._ended.set()
            return self._seen

    def history(self) -> dict[str, Any]:
        self.snapshot()
        return history(self._recorded())

    def snapshots(self, send: Callable[[Snapshot], None]) -> None:
        """Send each snapshot until the job or the page ends; a job that has already ended has one."""
        while (found := self.snapshot()) is not None and not self._closed.is_set():
            send(found)
            self._closed.wait(self._every if found.is_running else None)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    page: Page
    protocol_version = "HTTP/1.1"
    timeout = _PATIENCE_SECONDS

    def do_GET(self) -> None:
        # a page of elsewhere whose name leads here has that name
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not _LOCAL.fullmatch(hosts[0].strip()):
            self._text(HTTPStatus.FORBIDDEN, "text/plain", "this page is for 127.0.0.1 alone\n")
        elif self.path == "/":
            html = resources.files("tfdist.monitor.watch").joinpath("page.html").read_text(encoding="utf-8")
            self._text(HTTPStatus.OK, "text/html; charset=utf-8", html)
        elif self.path == "/events":
            self._events()
        elif self.path in ("/snapshot", "/history", "/metrics"):
            found = self.page.snapshot()
            if found is None:
                self._text(HTTPStatus.GONE, "text/plain", "the job has ended\n")
            elif self.path == "/snapshot":
                self._text(HTTPStatus.OK, "application/json", json.dumps(found.as_json()))
            elif self.path == "/history":
                self._text(HTTPStatus.OK, "application/json", json.dumps(self.page.history()))
            else:
                self._metrics(found)
        else:
            self._text(HTTPStatus.NOT_FOUND, "text/plain", "there are /, /snapshot, /history, /events and /metrics\n")

    def _metrics(self, found: Snapshot) -> None:
        try:
            from tfdist.monitor.watch import prometheus_metrics
        except ImportError:
            cure = "prometheus_client is missing: pip install 'tfdist[monitor]'\n"
            self._text(HTTPStatus.NOT_IMPLEMENTED, "text/plain", cure)
            return
        self._text(HTTPStatus.OK, prometheus_metrics.CONTENT_TYPE, prometheus_metrics.text(found))

    def _events(self) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

        def send(found: Snapshot) -> None:
            self.wfile.write(f"data: {json.dumps(found.as_json())}\n\n".encode())
            self.wfile.flush()

        self.page.snapshots(send)
        self.wfile.write(b"event: end\ndata: {}\n\n")

    def _text(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", _POLICY)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's
        """Log nothing."""
