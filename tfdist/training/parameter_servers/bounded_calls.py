"""Calls to parameter servers, which may never return: each has a deadline, so that none holds its caller for ever."""

import queue
import threading
from collections.abc import Callable
from typing import Any

from tfdist.compat.tensorflow import servers as tf_servers
from tfdist.errors import DeadlineError


class BoundedCalls:
    """Runs calls in a thread of its own, and waits for each."""

    def __init__(self, timeout_seconds: float, require_servers: Callable[[], None]) -> None:
        self._timeout_seconds = timeout_seconds
        self._require_servers = require_servers
        self._calls: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def __call__(self, call: Callable[[], Any]) -> Any:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tfdist-apply", daemon=True)
            self._thread.start()
        self._calls.put(call)
        try:
            value, error = self._answers.get(timeout=self._timeout_seconds)
        except queue.Empty:
            self._require_servers()
            raise DeadlineError(
                f"the parameter servers have not applied a step within {self._timeout_seconds:g} s. One of them hangs "
                "or is stopped: end it, and start the job again, which goes on from its last backup."
            ) from None
        if error is not None:
            if tf_servers.is_loss(error):
                self._require_servers()
            raise error
        return value

    def _run(self) -> None:
        tf_servers.own_executor()
        while True:
            call = self._calls.get()
            try:
                self._answers.put((call(), None))
            except BaseException as error:  # noqa: BLE001 - the caller's, who raises it
                self._answers.put((None, error))
            del call
