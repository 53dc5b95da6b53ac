"""Takes copies of another host's states into a directory in memory of this one: each appears whole, or not at all."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tfdist.errors import ConfigError
from tfdist.jobs.connecting.tcp_joining import Joined, Rendezvous
from tfdist.jobs.connecting.wire import Wire
from tfdist.jobs.remote.copying import state_folders
from tfdist.storage.files import plain_name, temporary_name

_CLOSE_SECONDS = 1.0  # it may wait for a host that is gone; then it ends by itself
_LOOK_SECONDS = 0.5


class Receiver:
    """Listens for one host, which has to have the key, and keeps the newest copy of each training.

    Attributes:
        port: at which it listens.
    """

    def __init__(self, folder: Path, *, address: str, sender: str, key: bytes, tell: Callable[[str], None]) -> None:
        self._folder = folder
        self._sender = sender
        self._tell = tell
        self._has_told = False
        self._closed = threading.Event()
        self._joined: Joined | None = None
        try:
            self._rendezvous = Rendezvous(key, [sender], [(address, 0)])
        except ConfigError as error:
            raise ConfigError(
                f"this host cannot listen at {address} ({error.__cause__ or error}), where {sender} is to send copies "
                "of its state. Name an address of this host's own in --hosts, or ask for no copies: --copy-bandwidth 0",
                name="--hosts",
                received=address,
            ) from error
        self.port = int(self._rendezvous.addresses[0].rpartition(":")[2])
        self._thread = threading.Thread(target=self._run, name=f"copies of {sender}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no more; what is there stays."""
        self._closed.set()
        self._rendezvous.close()
        joined = self._joined
        if joined is not None:
            with contextlib.suppress(OSError):
                joined.connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._closed.is_set():
            joined = self._rendezvous.take(self._sender, timeout_seconds=_LOOK_SECONDS, give_up=self._closed.is_set)
            if joined is None:
                continue
            with joined.connection:
                self._joined = joined
                while not self._closed.is_set() and (message := joined.wire.receive()) is not None:
                    if not self._take(joined.wire, message):
                        break

    def _take(self, wire: Wire, message: dict[str, Any]) -> bool:
        """Do what is asked for; return False where no more can be understood."""
        try:
            if "drop" in message:
                state_folders.remove(self._folder, plain_name(message["drop"]))
                return True
            if not isinstance(message["copy"], list):
                return False
            training, name = map(plain_name, message["copy"])
            files = [(plain_name(file), int(size)) for file, size in message["files"]]
        except (ConfigError, LookupError, TypeError, ValueError):
            return False
        return self._take_copy(wire, training, name, files)

    def _take_copy(self, wire: Wire, training: str, name: str, files: list[tuple[str, int]]) -> bool:
        at = state_folders.place(self._folder, training)
        temporary = at / temporary_name(name)
        error: OSError | None = None
        try:
            try:
                temporary.mkdir(parents=True)
            except OSError as failure:
                error = failure
            for file, size in files:
                pieces = _pieces(wire, size)
                try:
                    if error is None:
                        with (temporary / file).open("xb") as out:
                            for piece in pieces:
                                out.write(piece)
                except OSError as failure:  # memory is full; what comes is passed over, and the copy before stands
                    error = failure
                for _ in pieces:
                    continue
            if error is None:
                state_folders.discard(at / name)  # the same step, saved before
                temporary.rename(at / name)
                state_folders.remove(self._folder, training, but=name)
        except _GoneError:
            return False
        except OSError as failure:
            error = failure
        finally:
            state_folders.discard(temporary)
        if error is not None and not self._has_told:
            self._has_told = True
            self._tell(f"a copy of the state of host {self._sender} cannot be kept in memory here: {error}")
        return True


class _GoneError(Exception):
    """The sender is gone in the middle of a copy."""


def _pieces(wire: Wire, size: int) -> Iterator[bytes]:
    """Yield what a file has; what is not asked for yet comes next."""
    while size > 0:
        piece = wire.receive_bytes()
        if not piece or len(piece) > size:
            raise _GoneError
        size -= len(piece)
        yield piece
