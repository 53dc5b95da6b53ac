"""Functions that find and start warm processes of this user, and get workers from them; see `warm_server`.

The sockets of warm processes are in a private folder of the cache. A socket is named after the identity of its process.
So processes of several versions and environments can run side by side, and only one that fits is asked.
"""

import contextlib
import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tfdist
from tfdist import cache
from tfdist.errors import TfdistError
from tfdist.processes import forking, warm_server
from tfdist.processes.fork_server import hand_over
from tfdist.processes.surroundings import Conditions, differences, digest, identity
from tfdist.waiting import readable

_REPLY_SECONDS = 5.0  # deadline for replies, which usually take hundredths of a second
_START_SECONDS = 120.0  # deadline for the imports on a busy machine


@dataclass(frozen=True, kw_only=True)
class WarmProcess:
    """A warm process that answers. ``refused`` is the reason if it can serve no more jobs, or else empty."""

    path: Path
    pid: int
    age_seconds: float
    jobs: int
    idle_seconds: float
    identity: Mapping[str, str]
    refused: str


class Keeper:
    """The process that forks the workers of one job. Workers end with it, and `close` ends it."""

    def __init__(self, connection: socket.socket, pid: int, warm: int) -> None:
        self.pid, self.warm = pid, warm
        self._connection = connection

    def spawn(
        self, argv: Sequence[str], environment: Mapping[str, str], *, stdin: int, stdout: int, stderr: int
    ) -> "Kept":
        """Fork a worker as `ForkServer.spawn` does, but not as a child of this process."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._connection.settimeout(_REPLY_SECONDS)
                socket.send_fds(self._connection, [forking.READY], [theirs.fileno()])
            ours.settimeout(_REPLY_SECONDS)
            (pid,) = forking.NUMBER.unpack(ours.recv(forking.NUMBER.size))
            if pid < 0:
                raise OSError(-pid, os.strerror(-pid))
            hand_over(ours, argv, environment, (stdin, stdout, stderr))
        except (OSError, ValueError, struct.error) as error:
            ours.close()
            raise TfdistError(f"no worker can be forked from the warm process ({error}).") from error
        ours.settimeout(0.0)
        return Kept(pid, ours)

    def close(self) -> None:
        self._connection.close()


class Kept:
    """A worker that a keeper has forked."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self._channel = channel
        self._code: int | None = None

    def ended(self) -> int | None:
        """Return the exit code, in the form of `subprocess.Popen.returncode`; None while the worker runs.

        The number of the process is not reused before `collect`.
        """
        if self._code is None:
            try:
                said = self._channel.recv(forking.NUMBER.size)
            except BlockingIOError:
                return None
            except OSError:
                said = b""
            whole = len(said) == forking.NUMBER.size
            self._code = forking.NUMBER.unpack(said)[0] if whole else -signal.SIGKILL  # killed when its keeper ended
        return self._code

    def collect(self, seconds: float) -> None:
        """Let the system reuse the number of the process."""
        self._channel.close()


def keeper(environ: Mapping[str, str], environment: Mapping[str, str], folder: str) -> Keeper | None:
    """Return a keeper for workers with this environment and first entry of `sys.path`; None if no warm process runs.

    If the running ones do not fit, raise a `TfdistError` with the reason.
    """
    wanted = identity(environment)
    path = _folder(environ) / f"{digest(wanted)}.sock"
    here = os.open(".", os.O_PATH | os.O_DIRECTORY)
    try:
        request = {"conditions": Conditions.here().to_json(), "folder": folder}
        connection, said = _asked(path, warm_server.KEEP, request, (here,))
    except (TimeoutError, ConnectionResetError):
        raise TfdistError(f"the process at {path} does not answer") from None
    except OSError:
        others = list(running(environ))
        if not others:
            return None
        names = min((differences(wanted, one.identity) for one in others), key=len)
        raise TfdistError(f"not the same here and there: {', '.join(names) or 'what it answers'}") from None
    finally:
        os.close(here)
    if said["refused"]:
        connection.close()
        raise TfdistError(said["refused"])
    return Keeper(connection, said["pid"], said["warm"])


def running(environ: Mapping[str, str]) -> Iterator[WarmProcess]:
    """Yield the warm processes of this user that answer."""
    for path in sorted(_folder(environ).glob("*.sock")):
        with contextlib.suppress(OSError, TypeError):
            connection, said = _asked(path, warm_server.TELL)
            connection.close()
            yield WarmProcess(path=path, **said)


def stop(one: WarmProcess) -> None:
    """End a warm process; running jobs continue."""
    with contextlib.suppress(OSError):
        _asked(one.path, warm_server.END)[0].close()


def start(
    environ: Mapping[str, str],
    environment: Mapping[str, str],
    *,
    idle_seconds: float,
    modules: Sequence[str] = tfdist.PRELOADED,
) -> tuple[WarmProcess, bool]:
    """Return the warm process for this environment, and whether this call has started it and waited for its imports."""
    folder = _folder(environ)
    cache.make(folder.parent, (folder.name,))
    folder.chmod(0o700)
    known = identity(environment)
    path = folder / f"{digest(known)}.sock"

    def found() -> WarmProcess | None:
        return next((one for one in running(environ) if one.path == path), None)

    with cache.locked(folder / "lock", timeout_seconds=_START_SECONDS, on_wait=lambda holder: None):
        _remove_dead(folder)
        present = found()
        if present is not None and not present.refused:
            return present, False
        if present is not None:
            stop(present)
        _begin([str(path), str(idle_seconds)], modules, environment, known)
        present = found()
        if present is None:
            raise TfdistError(f"the warm process at {path} has ended. Start it again: tfdist warm")
        return present, True


def _begin(words: list[str], modules: Sequence[str], environment: Mapping[str, str], known: Mapping[str, str]) -> None:
    """Start a warm process, and wait until it answers."""
    reads, writes = os.pipe()
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as errors, open(reads, "rb", 0) as ready:
        given.write(json.dumps(dict(known)).encode())
        given.seek(0)
        try:
            subprocess.run(
                [sys.executable, warm_server.__file__, *words, str(writes), *modules],
                env=dict(environment),
                stdin=given,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=[writes],
                start_new_session=True,
                check=False,
            )
        finally:
            os.close(writes)
        if not readable(ready, _START_SECONDS) or not ready.read(1):
            errors.seek(0)
            text = errors.read().decode(errors="replace")[-2000:]
            raise TfdistError(f"the warm process has not started in {_START_SECONDS:g} s. It wrote:\n{text}")


def _folder(environ: Mapping[str, str]) -> Path:
    return cache.folder(environ) / "warm"


def _remove_dead(folder: Path) -> None:
    """Remove the sockets of processes that have ended; the caller holds the lock for starting one."""
    for path in folder.glob("*.sock"):
        with socket.socket(socket.AF_UNIX) as connection, cache.reachable(path) as name:
            try:
                connection.settimeout(_REPLY_SECONDS)
                connection.connect(name)
            except ConnectionRefusedError:
                path.unlink()
            except OSError:  # the process is busy
                continue


def _asked(
    path: Path, what: str, more: Mapping[str, Any] | None = None, descriptors: tuple[int, ...] = ()
) -> tuple[socket.socket, dict[str, Any]]:
    """Return a connection to this user's process at a socket, and its answer; raise `OSError` if there is none."""
    about = path.parent.stat(follow_symlinks=False)
    if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o077:
        raise PermissionError(f"{path.parent} is not private")
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_REPLY_SECONDS)
        with cache.reachable(path) as name:
            connection.connect(name)
        if warm_server.user_of(connection) != os.geteuid():
            raise PermissionError("it is another user's")
        warm_server.send(connection, {"ask": what, **(more or {})}, descriptors)
        said, _ = forking.receive(connection)
        if said is None:
            raise ConnectionResetError("it has ended")
    except BaseException:
        connection.close()
        raise
    return connection, said
