"""Copies the newest states of this host's trainings to another host, while they train."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tfdist.errors import TfdistError
from tfdist.jobs.connecting.tcp_joining import Ticket, join
from tfdist.jobs.connecting.wire import Wire, WireError
from tfdist.jobs.remote.copying import state_folders
from tfdist.jobs.remote.copying.rate_limiter import Pace
from tfdist.validation import shown_bytes

_CLOSE_SECONDS = 1.0  # it may wait for a host that is gone; then it ends by itself
_AGAIN_SECONDS = 1.0
_SLOW_SECONDS = 10.0  # as much training as nobody minds to repeat
_PIECE = 256 << 10  # bytes that are sent at once: what the bound is kept in steps of


class Sender:
    """A thread that sends the newest state of each training, one after the other, whole; it looks when it is told to.

    Of states that follow each other faster than they can be sent, those in between are left out. That is told, once,
    where a copy takes so long that much would be repeated.
    """

    def __init__(
        self, states: Path, copies: Path, ticket: Ticket, *, bytes_per_second: float, tell: Callable[[str], None]
    ) -> None:
        self._states = states
        self._copies = copies
        self._ticket = ticket
        self._rate = bytes_per_second
        self._pace = Pace(bytes_per_second)
        self._tell = tell
        self._told: set[str] = set()
        self._look = threading.Event()
        self._closed = threading.Event()
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="copies to another host", daemon=True)
        self._thread.start()
        self.look()

    def look(self) -> None:
        """Look for states that are new, or gone."""
        self._look.set()

    def close(self) -> None:
        """Send no more, and wait for the end of what does."""
        self._closed.set()
        self._look.set()
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(_CLOSE_SECONDS)

    def _is_to_look(self) -> bool:
        """Wait until there is something to look for; return False when this is closed."""
        self._look.wait()
        self._look.clear()
        if self._closed.is_set():
            self._look.set()  # whoever asks next is not to wait either
            return False
        return True

    def _run(self) -> None:
        while self._is_to_look():
            if not state_folders.newest(
                self._states
            ):  # a host without a chief has nothing to send, and connects to nobody
                continue
            try:
                connection, wire = join(self._ticket)
                with connection:
                    self._connection = connection
                    self._send_all(wire)
            except (TfdistError, WireError) as error:
                self._tell_once(
                    "failure",
                    "the state of the training is not copied to another host's memory, at "
                    f"{self._ticket.addresses[0]}: {error}\nHosts have to reach each other at any port above "
                    "10,000; --copy-bandwidth 0 asks for no copies.",
                )
                self._closed.wait(_AGAIN_SECONDS)
                self.look()

    def _send_all(self, wire: Wire) -> None:
        """Send what is new, until this is closed."""
        sent: dict[str, tuple[str, int]] = {}
        while True:
            found = state_folders.newest(self._states)
            for training in sent.keys() - found.keys():  # it has come to its end
                wire.send({"drop": training})
                del sent[training]
            for training, state in found.items():
                if sent.get(training) == state:
                    continue
                begun = time.monotonic()
                size = self._send(wire, training, state[0])
                if size is None:
                    self.look()
                    continue
                sent[training] = state
                self._drop_older(training, state[0])
                if state_folders.newest(self._states).get(training, state) != state:
                    self._tell_if_slow(time.monotonic() - begun, size)
            if not self._is_to_look():
                return

    def _tell_if_slow(self, seconds: float, size: int) -> None:
        if seconds > _SLOW_SECONDS:
            self._tell_once(
                "slow",
                f"a copy of the state of host {self._ticket.name} ({size / 1e6:.1f} MB) took {seconds:.0f} s to get to "
                "another host's memory, and newer states were there by then: those in between are left out, and if "
                "this host is lost, what was trained meanwhile is repeated. --copy-bandwidth lets more than "
                f"{shown_bytes(int(self._rate))} a second through.",
            )

    def _tell_once(self, what: str, text: str) -> None:
        if what not in self._told and not self._closed.is_set():
            self._told.add(what)
            self._tell(text)

    def _send(self, wire: Wire, training: str, name: str) -> int | None:
        """Send a state; return its size, or None where there is a newer one by now."""
        try:
            with state_folders.opened(state_folders.place(self._states, training) / name) as files:
                wire.send({"copy": [training, name], "files": [[file, size] for file, _, size in files]})
                for _, descriptor, size in files:
                    self._send_file(wire, descriptor, size)
                return sum(size for _, _, size in files)
        except WireError:
            raise
        except OSError:
            return None

    def _send_file(self, wire: Wire, descriptor: int, size: int) -> None:
        for at in range(0, size, _PIECE):
            piece = os.pread(descriptor, min(_PIECE, size - at), at)
            if self._closed.wait(self._pace.delay(len(piece))):
                raise WireError("it is not needed any more")
            wire.send_bytes(piece)

    def _drop_older(self, training: str, name: str) -> None:
        """Remove copies, of which this host has had the newest when it took over, and has newer states by now."""
        if (copies := state_folders.states(self._copies, training)) and copies[-1] <= name:
            state_folders.remove(self._copies, training)
