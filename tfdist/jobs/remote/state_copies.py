"""Copies of states between hosts: each host sends its newest states to one other, and keeps those of another.

`tfdist.checkpoint` writes the states of each training into a folder in memory, one folder for each state, which gets
its name once it is complete and immutable. Hidden names are incomplete. Later states have greater names.
"""

import contextlib
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tfdist.cluster import job_key
from tfdist.cluster.job_files import copies_folder, state_folder
from tfdist.errors import ConfigError, TfdistError
from tfdist.jobs.connecting.tcp_joining import Joined, Rendezvous, Ticket, join
from tfdist.jobs.connecting.wire import Wire, WireError
from tfdist.storage.files import plain_name, temporary_name
from tfdist.validation import shown_bytes

_WAIT_SECONDS = 5.0
_Host = TypeVar("_Host")
_CLOSE_SECONDS = 1.0  # it may wait for a host that is gone; then it ends by itself
_LOOK_SECONDS = 0.5
_AGAIN_SECONDS = 1.0
_SLOW_SECONDS = 10.0  # an acceptable amount of training to repeat
_TURN_SECONDS = 0.05  # for a state that cannot be read now to be replaced, or to be readable
_PIECE = 256 << 10  # bytes that are sent at once: the granularity of the bound


def ring(hosts: Sequence[_Host]) -> list[tuple[_Host, _Host]]:
    """Return pairs of sender and receiver: each host sends to the next; none for a single host."""
    return [(host, hosts[(at + 1) % len(hosts)]) for at, host in enumerate(hosts)] if len(hosts) > 1 else []


class Copies:
    def __init__(self, memory: Path, address: str, *, bytes_per_second: float, tell: Callable[[str], None]) -> None:
        self._memory = memory
        self._address = address
        self._rate = bytes_per_second
        self._tell = tell
        self._sender: Sender | None = None
        self._receiver: Receiver | None = None

    def take(self, sender: str, key: str) -> int:
        if self._receiver is not None:
            self._receiver.close()
        self._receiver = Receiver(
            copies_folder(self._memory), address=self._address, sender=sender, key=_key(key), tell=self._tell
        )
        return self._receiver.port

    def send(self, to: str, name: str, key: str) -> None:
        if self._sender is not None:
            self._sender.close()
        ticket = Ticket(addresses=(to,), name=name, key=_key(key), wait_seconds=_WAIT_SECONDS)
        self._sender = Sender(
            state_folder(self._memory),
            copies_folder(self._memory),
            ticket,
            bytes_per_second=self._rate,
            tell=self._tell,
        )

    def look(self) -> None:
        sender = self._sender
        if sender is not None:
            sender.look()

    def close(self) -> None:
        for one in (self._sender, self._receiver):
            if one is not None:
                one.close()


def _key(key: str) -> bytes:
    return job_key.derived(bytes.fromhex(key), "copies", [])


class Receiver:
    """A receiver that keeps the newest whole copy of each training of one host, which must have the key."""

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
        """Handle a message; False if it is invalid."""
        try:
            if "drop" in message:
                remove(self._folder, plain_name(message["drop"]))
                return True
            if not isinstance(message["copy"], list):
                return False
            training, name = map(plain_name, message["copy"])
            files = [(plain_name(file), int(size)) for file, size in message["files"]]
        except (ConfigError, LookupError, TypeError, ValueError):
            return False
        return self._take_copy(wire, training, name, files)

    def _take_copy(self, wire: Wire, training: str, name: str, files: list[tuple[str, int]]) -> bool:
        at = place(self._folder, training)
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
                except OSError as failure:  # memory is full: skip this copy, and keep the earlier one
                    error = failure
                for _ in pieces:
                    continue
            if error is None:
                discard(at / name)  # the same step, saved before
                temporary.rename(at / name)
                remove(self._folder, training, but=name)
        except _GoneError:
            return False
        except OSError as failure:
            error = failure
        finally:
            discard(temporary)
        if error is not None and not self._has_told:
            self._has_told = True
            self._tell(f"a copy of the state of host {self._sender} cannot be kept in memory here: {error}")
        return True


class _GoneError(Exception):
    """Raised if the sender is gone in the middle of a copy."""


def _pieces(wire: Wire, size: int) -> Iterator[bytes]:
    while size > 0:
        piece = wire.receive_bytes()
        if not piece or len(piece) > size:
            raise _GoneError
        size -= len(piece)
        yield piece


class Sender:
    """A thread that sends the newest state of each training as a whole, when told to look.

    States that are replaced before they can be sent are left out. That is reported once if copies take so long that
    much training would be repeated.
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
        self._look.set()

    def close(self) -> None:
        self._closed.set()
        self._look.set()
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(_CLOSE_SECONDS)

    def _is_to_look(self) -> bool:
        """Wait for `look`; False once closed."""
        self._look.wait()
        self._look.clear()
        if self._closed.is_set():
            self._look.set()  # the next caller must not wait either
            return False
        return True

    def _run(self) -> None:
        while self._is_to_look():
            if not newest(self._states):  # a host without a chief has nothing to send, and does not connect
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
        sent: dict[str, tuple[str, int]] = {}
        while True:
            found = newest(self._states)
            for training in sent.keys() - found.keys():  # it has come to its end
                wire.send({"drop": training})
                del sent[training]
            for training, state in found.items():
                if sent.get(training) == state:
                    continue
                begun = time.monotonic()
                size = self._send(wire, training, state[0])
                if size is None:
                    self._closed.wait(_TURN_SECONDS)
                    self.look()
                    continue
                sent[training] = state
                # older copies, which this host had as the newest ones when it took over
                if (copies := states(self._copies, training)) and copies[-1] <= state[0]:
                    remove(self._copies, training)
                if newest(self._states).get(training, state) != state:
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
        """Send a state; return its size, or None if it was replaced or cannot be read now."""
        try:
            with opened(place(self._states, training) / name) as files:
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


class Pace:
    """A limiter of sending, so that the rate stays below a bound over any period.

    Example:
        >>> now = iter([0.0, 0.0, 5.0])
        >>> pace = Pace(100, clock=lambda: next(now))
        >>> pace.delay(200), pace.delay(50), pace.delay(50)        # the pause before the last is long over
        (0.0, 2.0, 0.0)
    """

    def __init__(self, bytes_per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._free = 0.0  # clock time from which more may be sent

    def delay(self, count: int) -> float:
        """Return the seconds to wait before sending this many bytes, which must then be sent."""
        now = self._clock()
        begin = max(now, self._free)
        self._free = begin + count / self._rate
        return begin - now


# Written last and removed first: while it exists, all other files of the state do.
LAST = "manifest.json"
_STATE = "state"


def place(root: Path, training: str) -> Path:
    return root / training / _STATE


def states(root: Path, training: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(place(root, training)) if not name.startswith("."))
    except OSError:
        return []


def newest(root: Path) -> dict[str, tuple[str, int]]:
    """Return the newest state of each training, with an inode that identifies it."""
    found = {}
    try:
        trainings = os.listdir(root)
    except OSError:
        return {}
    for training in trainings:
        if names := states(root, training):
            try:
                found[training] = (names[-1], os.stat(place(root, training) / names[-1]).st_ino)
            except OSError:  # a newer one has taken its place
                continue
    return found


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[list[tuple[str, int, int]]]:
    """Yield name, descriptor and size of each file of a state, readable even if it is removed meanwhile."""
    with contextlib.ExitStack() as stack:

        def descriptor(name: str, flags: int, within: int | None = None) -> int:
            found = os.open(name, flags | os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
            stack.callback(os.close, found)
            return found

        within = descriptor(str(folder), os.O_DIRECTORY)
        names = sorted(os.listdir(within))
        last = descriptor(LAST, 0, within)  # while it exists nothing has been removed
        files = [(name, last if name == LAST else descriptor(name, 0, within)) for name in names]
        yield [(name, file, os.fstat(file).st_size) for name, file in files]


def remove(root: Path, training: str, *, but: str | None = None) -> None:
    for name in states(root, training):
        if name != but:
            discard(place(root, training) / name)


def discard(folder: Path) -> None:
    """Remove a state in the order in which no reader takes it for a damaged one."""
    with contextlib.suppress(OSError):
        (folder / LAST).unlink()
    shutil.rmtree(folder, ignore_errors=True)
