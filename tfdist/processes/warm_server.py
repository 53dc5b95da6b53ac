"""Script of a warm process, which imports TensorFlow, Keras and tfdist, and forks a keeper for each job.

Usage: `python warm_server.py SOCKET IDLE_SECONDS READY MODULE ...`, with the identity of the process as JSON on the
standard input. The process detaches itself from its parent, and writes to the descriptor READY once it answers. It runs
no operation of TensorFlow and no code of a user, and has no thread. It ends after IDLE_SECONDS without a request for a
job, or when a file that it has imported has changed.

A keeper forks the workers of its job. It takes over the working directory, limits and control groups of the job's
agent. It is the parent of the workers, so it reports their ends to the agent, over one channel for each worker. Workers
end with their keeper, and a keeper ends with the agent's connection. All of them continue if this process ends.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from tfdist import cache
from tfdist.errors import TfdistError
from tfdist.processes import forking
from tfdist.processes.import_record import ImportRecord
from tfdist.processes.surroundings import Conditions
from tfdist.variables import WORKER_INDEX

KEEP, TELL, END = "keep", "tell", "end"  # the kinds of requests
_LOOK_SECONDS = 86400.0  # the longest wait at once: poll accepts at most 24 days
_PATIENCE_SECONDS = 2.0  # deadline for a request, which is sent at once
_PEER = struct.Struct("3i")  # numbers of process, user and group

Run = Callable[[], None]


def main(argv: list[str]) -> None:
    """Serve until requests stop; in a forked worker, run its command."""
    path, idle_seconds, ready, *modules = argv
    identity = json.load(sys.stdin)
    if os.fork():
        os._exit(0)
    for number in Conditions.here().ignored:  # a shell lets background processes ignore some signals
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if not sys.flags.safe_path:
        del sys.path[0]  # modules next to this file must not be imported by their short names
    record = _import(modules)
    with _bound(path) as server:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no code here waits for keepers
        os.write(int(ready), forking.READY)
        os.close(int(ready))
        run = _serve(server, record, identity, float(idle_seconds))
        if run is None:
            os._exit(0)  # nothing here needs an orderly end
    run()


def user_of(connection: socket.socket) -> int:
    """Return the number of the user whose process is at the other end."""
    return int(_PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))[1])


def send(connection: socket.socket, values: Mapping[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    """Send values and descriptors in the format of `forking.receive`."""
    body = json.dumps(values).encode()
    socket.send_fds(connection, [forking.NUMBER.pack(len(body))], descriptors)
    connection.sendall(body)


def _import(modules: list[str]) -> ImportRecord:
    record = ImportRecord()
    gc.disable()  # as in `forking`
    for name in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    record.close()
    gc.collect()
    gc.freeze()
    gc.enable()
    return record


def _bound(path: str) -> socket.socket:
    """Return a server socket at the path. An old socket there is dead, because the parent process holds a lock."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    server = socket.socket(socket.AF_UNIX)
    with cache.reachable(Path(path)) as name:
        server.bind(name)
    os.chdir("/")
    server.listen(16)
    return server


def _serve(server: socket.socket, record: ImportRecord, identity: Mapping[str, str], idle_seconds: float) -> Run | None:
    """Answer requests until they stop; in a worker, return the function to run."""
    begun, jobs = time.monotonic(), 0
    due = begun + idle_seconds
    poll = select.poll()
    poll.register(server, select.POLLIN)
    while (left := due - time.monotonic()) > 0:
        if not poll.poll(1000 * min(left, _LOOK_SECONDS)):
            continue
        with contextlib.suppress(OSError, KeyError, TypeError):
            connection, _ = server.accept()
            with connection, contextlib.ExitStack() as held:
                request, folders = _request(connection)
                for folder in folders:
                    held.callback(os.close, folder)
                changed = record.changed()
                if request["ask"] == KEEP and not changed:
                    if os.fork() == 0:
                        server.close()
                        held.pop_all()  # the keeper goes to the folder, and closes it
                        return _kept(connection, record, request, folders)
                    jobs, due = jobs + 1, time.monotonic() + idle_seconds
                else:
                    age = time.monotonic() - begun
                    about = {"pid": os.getpid(), "age_seconds": age, "jobs": jobs, "idle_seconds": idle_seconds}
                    refused = f"{changed} has changed since it was started" if changed else ""
                    send(connection, {**about, "identity": identity, "refused": refused})
                if request["ask"] == END or (request["ask"] == KEEP and changed):
                    return None
    return None


def _request(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return the request of a process of the same user, and the descriptors that it passed."""
    connection.settimeout(_PATIENCE_SECONDS)
    if user_of(connection) != os.geteuid():
        raise PermissionError("the request is another user's")
    return forking.receive(connection)


def _kept(connection: socket.socket, record: ImportRecord, request: Mapping[str, Any], folders: list[int]) -> Run:
    """Run as the keeper of a job; return only in its workers."""
    warm = os.getppid()
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        for folder in folders:
            os.fchdir(folder)
            os.close(folder)
        conditions = Conditions.from_json(request["conditions"])
        lacking = ", ".join(conditions.take())
        hidden = record.hidden_by(request["folder"])
        refused = f"it cannot take over {lacking}" if lacking else hidden and f"{hidden} hides what it has imported"
        connection.settimeout(None)
        send(connection, {"pid": os.getpid(), "warm": warm, "refused": refused})
        if not refused:
            return _Keeper(connection, record, conditions).serve()
    except BaseException:  # noqa: BLE001 - the child must never continue as a copy of the warm process
        os._exit(1)
    os._exit(0)


class _Keeper:
    """The parent of a job's workers."""

    def __init__(self, connection: socket.socket, record: ImportRecord, conditions: Conditions) -> None:
        self._connection, self._record, self._conditions = connection, record, conditions
        self._workers: dict[int, tuple[int, socket.socket]] = {}  # worker and channel, by the worker's descriptor
        self._ended: dict[int, tuple[int, socket.socket]] = {}  # not reaped yet; by the channel's descriptor
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def serve(self) -> Run:
        """Fork a worker for every request until the agent is gone; return only in a worker."""
        while True:
            for ready, _ in self._poll.poll():
                if ready in self._workers:
                    self._tell_end(ready)
                elif ready in self._ended:
                    self._forget(ready)
                elif (channels := self._asked()) is None:
                    self._end()
                elif channels and self._forked(channels[0]):
                    return self._worker(channels[0])

    def _asked(self) -> list[socket.socket] | None:
        """Return the channel of a new worker, none if no descriptor is free for it; None if the agent is gone."""
        try:
            data, channels, _, _ = socket.recv_fds(self._connection, 1, 1)
        except OSError:
            return None
        return [socket.socket(fileno=one) for one in channels] if data else None

    def _forked(self, channel: socket.socket) -> bool:
        """Fork a worker, which reports its number itself; return True in the worker."""
        try:
            pid = os.fork()
        except OSError as error:
            with channel, contextlib.suppress(OSError):
                channel.sendall(forking.NUMBER.pack(-(error.errno or 1)))
            return False
        if pid == 0:
            return True
        try:
            process = os.pidfd_open(pid)
        except OSError:  # without a descriptor its end would never be seen
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            channel.close()  # which the agent takes for the end of a worker that has reported its number
            return False
        self._workers[process] = pid, channel
        self._poll.register(process, select.POLLIN)
        return False

    def _tell_end(self, process: int) -> None:
        """Report the exit code of a worker, which keeps its number until the agent closes the channel."""
        pid, channel = self._workers.pop(process)
        self._poll.unregister(process)
        os.close(process)
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert found is not None
        code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        with contextlib.suppress(OSError):
            channel.sendall(forking.NUMBER.pack(code))
        self._ended[channel.fileno()] = pid, channel
        self._poll.register(channel, select.POLLIN)

    def _forget(self, number: int) -> None:
        pid, channel = self._ended.pop(number)
        self._poll.unregister(number)
        channel.close()
        os.waitpid(pid, 0)

    def _end(self) -> NoReturn:
        """Kill the remaining workers and exit, because the agent is gone or has closed the connection."""
        for pid, _ in (*self._workers.values(), *self._ended.values()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        os._exit(0)

    def _worker(self, channel: socket.socket) -> Run:
        """Become a worker, and close all descriptors of the keeper."""
        os.setsid()  # before the agent can send a signal to the worker's group
        channel.sendall(forking.NUMBER.pack(os.getpid()))
        self._connection.close()
        for process, (_, other) in self._workers.items():
            os.close(process)
            other.close()
        for _, other in self._ended.values():
            other.close()
        with channel:
            request, streams = forking.receive(channel)
        if request is None:
            os._exit(0)  # the worker was never needed
        environment, argv = request["environment"], request["argv"]
        forking.take(self._record.environment(environment), streams)
        self._conditions.take_signals()
        if not sys.flags.safe_path:
            sys.path.insert(0, "")  # `become` replaces this entry
        sys.orig_argv = [sys.executable, *argv]
        for module, name, value in (
            ("tempfile", "tempdir", None),
            ("multiprocessing.process", "ORIGINAL_DIR", os.getcwd()),
        ):
            if module in sys.modules:  # the module has stored a folder of the warm process
                setattr(sys.modules[module], name, value)
        self._record.watch(lambda variable, is_unseen: _begin_again(variable, argv, environment, is_unseen=is_unseen))
        return lambda: forking.become(argv)


def _begin_again(variable: str, argv: list[str], environment: Mapping[str, str], *, is_unseen: bool) -> None:
    """Run the script again in a fresh interpreter, because it sets a variable that an import would have read."""
    if not is_unseen:
        raise TfdistError(
            f"the script sets {variable}, which libraries read while they are imported, and the warm process of this "
            "worker has imported them already. The script cannot be begun again unseen, since it has changed files or "
            f"started something before. Set {variable} in its first lines, or give --no-warm."
        )
    if not WORKER_INDEX.read(environment):
        sys.stderr.write(f"tfdist: the script sets {variable}, so its workers begin again without the warm process.\n")
        sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *argv], dict(environment))


if __name__ == "__main__":
    main(sys.argv[1:])
