"""Script of a process that imports the modules of a training, then forks a worker for every request.

Usage: `python forking.py CHANNEL FOLDER ENDS [modules ...]`. CHANNEL is the descriptor of a socket to the agent. FOLDER
is the first entry of the workers' `sys.path`. ENDS is the way in which workers end: "whole", as Python does, or "fast"
(`FastEnd`). The process runs no operation of TensorFlow and has no thread.

Each request passes a channel for the worker. The process forks twice, so that the worker becomes a child of the agent.
Over its channel the worker receives standard streams, an environment and a command, at once or later. It runs the
command as `python FILE ARGUMENTS`. All processes end when the agent closes their channels, or ends.
"""

import atexit
import contextlib
import errno
import gc
import importlib
import io
import json
import os
import socket
import struct
import sys
import threading
from types import FunctionType, ModuleType, NoneType
from typing import Any

NUMBER = struct.Struct("<q")  # the length of a request; in a reply, a process or the negative number of an error
READY = b"."  # sent before every request
WHOLE, FAST = "whole", "fast"
_NEEDED_AT_END = (ModuleType, FunctionType, type, str, bytes, int, float, NoneType)  # destructors may use these
_STREAMS = 3


def main(argv: list[str]) -> None:
    """Serve until the agent is gone; in a forked worker, run its command."""
    channel, folder, ends, *modules = argv
    end = FastEnd(folder)
    if ends == FAST:
        atexit.register(end)  # registered first, so that it is called last
    if not sys.flags.safe_path:
        sys.path[0] = folder  # modules next to this file must not be imported by their short names
    gc.disable()  # imported modules stay; garbage collection would take a quarter of the time of the imports
    for name in modules:
        with contextlib.suppress(Exception):  # if the script needs a broken or missing module, it fails there
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that garbage collection in workers does not copy shared pages
    gc.enable()
    end.known = frozenset(sys.modules)
    try:
        fork_workers(socket.socket(fileno=int(channel)))
    except SystemExit as error:
        end.is_due = error.code in (None, 0)
        raise
    end.is_due = True


class FastEnd:
    """The fast end of a worker that has succeeded, after its threads and its functions of `atexit`.

    It frees the objects of the script, so that files are closed, and leaves imported libraries to the system. Python
    would free the libraries too, and so copy each page that is shared with the forking process. A worker that still has
    a thread ends as Python does.
    """

    def __init__(self, folder: str) -> None:
        self._folder = os.path.join(folder, "")
        self.known: frozenset[str] = frozenset()
        self.is_due = False

    def __call__(self) -> None:
        if not self.is_due or threading.active_count() > 1:
            return
        for name, module in [*sys.modules.items()]:
            if name == "__main__" or self._is_own(name, module):
                found = vars(module)
                for known in [one for one, value in found.items() if not isinstance(value, _NEEDED_AT_END)]:
                    del found[known]
        gc.collect()
        for one in (sys.stdout, sys.stderr, *gc.get_objects()):
            if type(one) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
                with contextlib.suppress(OSError, ValueError):  # the file is closed, or its reader is gone
                    one.flush()
        os._exit(0)

    def _is_own(self, name: str, module: ModuleType) -> bool:
        file = getattr(module, "__file__", None)
        return name not in self.known and isinstance(file, str) and file.startswith(self._folder)


def fork_workers(agent: socket.socket) -> None:
    """Serve until the agent is gone, then exit; return only in a worker that has run its command."""
    with serve(agent) as own:
        request, streams = receive(own)
    if request is None:
        os._exit(0)  # the worker was never needed
    take(request["environment"], streams)
    become(request["argv"])


def serve(agent: socket.socket) -> socket.socket:
    """Fork a worker for every request; return only in the worker, with its channel."""
    with contextlib.suppress(OSError):
        agent.sendall(READY)
    while True:
        channels: list[int] = []
        with contextlib.suppress(OSError):
            _, channels, _, _ = socket.recv_fds(agent, 1, 1)
        if not channels:
            os._exit(0)  # the agent is gone, and nothing here needs an orderly end
        here, there = socket.socketpair()
        with socket.socket(fileno=channels[0]) as channel, here, there:
            try:
                between = os.fork()
            except OSError as error:
                answer = -(error.errno or errno.EAGAIN)
            else:
                if between == 0:
                    here.close()
                    agent.close()
                    _fork_again(there)
                    return channel.dup()
                there.close()
                answer = _worker_of(between, here)
            with contextlib.suppress(OSError):  # first: once the agent knows the worker, it depends on no process here
                here.sendall(READY)
            with contextlib.suppress(OSError):
                agent.sendall(NUMBER.pack(answer) + READY)  # sent together, so that the agent finds this process ready


def receive(channel: socket.socket) -> tuple[Any, list[int]]:
    """Receive a command and the standard streams; the command is None if the agent is gone."""
    streams: list[int] = []
    try:
        header, streams, _, _ = socket.recv_fds(channel, NUMBER.size, _STREAMS)
        body = bytearray(NUMBER.unpack(header)[0] if header else 0)
        view = memoryview(body)
        while view:
            count = channel.recv_into(view)
            view = view[count:] if count else memoryview(b"")
        return json.loads(body) if body else None, streams
    except (OSError, ValueError, struct.error):
        for stream in streams:
            os.close(stream)
        return None, []


def _worker_of(between: int, here: socket.socket) -> int:
    """Return the worker that a child has forked, once the agent has adopted it; or the negative number of an error."""
    try:
        said = here.recv(NUMBER.size)
    except OSError:
        said = b""
    os.waitpid(between, 0)
    return int(NUMBER.unpack(said)[0]) if len(said) == NUMBER.size else -errno.EAGAIN


def _fork_again(there: socket.socket) -> None:
    """End this process; return in its child, once the agent has adopted it."""
    try:
        child = os.fork()
    except OSError as error:
        there.sendall(NUMBER.pack(-(error.errno or errno.EAGAIN)))
        os._exit(1)
    if child != 0:
        os._exit(0)
    os.setsid()
    there.sendall(NUMBER.pack(os.getpid()))
    if there.recv(1) != READY:
        os._exit(1)
    there.close()


def take(environment: dict[str, str], streams: list[int]) -> None:
    """Set the environment, the standard streams and a new random seed."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)  # no stream is below 3, because descriptors 0 to 2 are open here
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    if "numpy" in sys.modules:  # Python itself seeds its generator anew after every fork
        sys.modules["numpy"].random.seed()


def become(command: list[str]) -> None:
    """Run a file as ``python FILE ARGUMENTS`` does; an exception of the file is raised here."""
    file = command[0]
    sys.argv = list(command)
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(file))
    module = ModuleType("__main__")
    module.__file__ = file
    sys.modules["__main__"] = module
    with open(file, "rb") as source:
        code = compile(source.read(), file, "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102 - the purpose of this file


if __name__ == "__main__":
    main(sys.argv[1:])
