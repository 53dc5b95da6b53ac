"""Run an exporter in a thread behind a bounded queue, so that producers never wait for it."""

import time
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread

from tfdist.monitor.exporters.exporter import Exporter, Update

#: updates that wait for a slow or a dead server; then the oldest ones are left out
MOST = 64
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 30.0


class Outlet:
    """Hands updates to an exporter, which is made in its thread too.

    What cannot be handed over is told once, and tried again later: a server that comes back gets what it has missed, up
    to `MOST` updates.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Exporter],
        warn: Callable[[str], None],
        *,
        first_wait: float = FIRST_WAIT_SECONDS,
    ) -> None:
        self._name = name
        self._make = make
        self._warn = warn
        self._first_wait = first_wait
        self._waiting: deque[Update] = deque()
        self._changed = Condition()
        self._ends = False
        self._warned: set[str] = set()
        self._thread = Thread(target=self._run, name=f"export to {name}", daemon=True)
        self._thread.start()

    def put(self, update: Update) -> None:
        """Hand an update over; never waits."""
        with self._changed:
            if len(self._waiting) == MOST:
                self._waiting.popleft()
                self._once("slow", "does not keep up; some points are left out")
            self._waiting.append(update)
            self._changed.notify()

    def end(self, deadline: float) -> bool:
        """Let it hand over what waits, and close; return whether it has by this time on the monotonic clock."""
        with self._changed:
            self._ends = True
            self._changed.notify()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _run(self) -> None:
        exporter: Exporter | None = None
        wait = self._first_wait
        while (update := self._next()) is not None:
            try:
                if exporter is None:
                    exporter = self._make()
                exporter.write(update)
                wait = self._first_wait
            except Exception as error:  # noqa: BLE001 - any, of any library and server
                self._once("failed", f"cannot be written ({_in_short(error)}); the job goes on without it")
                with self._changed:
                    if not self._ends:
                        self._put_back(update)
                        self._changed.wait_for(lambda: self._ends, wait)
                wait = min(2 * wait, LONGEST_WAIT_SECONDS)
        if exporter is not None:
            try:
                exporter.close()
            except Exception as error:  # noqa: BLE001 - as above
                self._once("failed", f"cannot be closed ({_in_short(error)})")

    def _next(self) -> Update | None:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._ends)
            return self._waiting.popleft() if self._waiting else None

    def _put_back(self, update: Update) -> None:
        if len(self._waiting) < MOST:
            self._waiting.appendleft(update)

    def _once(self, what: str, text: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            self._warn(f"warning: export to {self._name}: {text}")


def _in_short(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}..."
