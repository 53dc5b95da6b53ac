"""The host agent, which starts workers on its host as `tfdist run` does locally, and reports on them.

`python -m tfdist.jobs.remote.host_agent` speaks with the job's agent over its standard streams, or, if
TFDIST_RENDEZVOUS is set, over a connection that it opens. Workers use folders, memory and a status table of this host.
When the connection ends, or nothing has arrived for a minute, all processes are ended. If this process is killed, its
guardian ends them.
"""

import contextlib
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from tfdist import __version__
from tfdist.cluster.job_files import progress_file
from tfdist.cluster.ports import loopback
from tfdist.errors import ConfigError, TfdistError
from tfdist.jobs.connecting.serialization import KEY_IS_DERIVED, config_from_json, spec_from_json
from tfdist.jobs.connecting.tcp_joining import UNFINISHED, Ticket, join, key_of_workers
from tfdist.jobs.connecting.wire import BEAT_SECONDS, SILENCE_SECONDS, Wire, WireError
from tfdist.jobs.placement.local_placement import LocalPlacement
from tfdist.jobs.placement.placement_protocol import Handle
from tfdist.jobs.placement.worker_factory import WorkerFactory
from tfdist.jobs.plan.launch_config import require_script
from tfdist.jobs.remote.host_reports import Forward, Steps, Tables
from tfdist.jobs.remote.state_copies import Copies
from tfdist.processes import guardian
from tfdist.processes.job_resources import Guard, guarded
from tfdist.variables import ENDS_WITH_INPUT, ERROR_FILE, JOB_PART, JOIN_SECONDS

PACKAGES = ("tensorflow", "keras", "numpy")

_TELL_SECONDS = 0.02
_TELL_WHILE_HALTING_SECONDS = 0.002
_STEPS_SECONDS = 0.5
_CLOSE_SECONDS = 5.0
_CHUNK = 1 << 15
_why_sigterm = ["was asked to end (SIGTERM)"]  # the reason to report at SIGTERM


def main() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # Ray's processes block SIGINT, and workers would inherit that
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # the agent decides; if ignored, workers would inherit that
    signal.signal(signal.SIGTERM, _exit_once)
    if ENDS_WITH_INPUT.read(os.environ):
        del os.environ[ENDS_WITH_INPUT.name]  # not for workers
        threading.Thread(target=_end_with, args=(os.dup(0),), name="end of input", daemon=True).start()
    try:
        ticket = Ticket.from_environment(os.environ)
        if ticket is None:
            wire, key = Wire(os.dup(0), os.dup(1)), None
        else:
            connection, wire = join(ticket)
            key = ticket.key
            for name in (*ticket.environment(), JOIN_SECONDS.name):  # not for workers
                os.environ.pop(name, None)
    except TfdistError as error:
        sys.exit(str(error))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # whatever is printed here is no message
    code = UNFINISHED
    with contextlib.suppress(WireError):
        wire.begin()
        code = serve(wire, key)
    if ticket is not None:
        connection.close()
    os._exit(code)  # do not wait for threads that still forward output


def _exit_once(number: int, _frame: object) -> NoReturn:
    """Exit at the first signal; a second one, as service managers send it, must not interrupt the end of workers."""
    signal.signal(number, lambda *_: None)
    sys.exit(128 + number)


def _end_with(descriptor: int) -> None:
    """End this process as by SIGTERM at the end of its input."""
    with contextlib.suppress(OSError):  # the other end has broken off
        while os.read(descriptor, _CHUNK):
            pass
    _why_sigterm[0] = "has ended with what had started it"
    os.kill(os.getpid(), signal.SIGTERM)


def serve(wire: Wire, key: bytes | None = None) -> int:
    """Serve an agent until it is gone; afterwards, no process of the job is left on this host."""
    hello = wire.receive()
    if hello is None or "version" not in hello:
        if hello is not None and "refused" in hello:
            sys.stderr.write(f"{hello['refused']}\n")
            return 1
        return UNFINISHED
    with contextlib.ExitStack() as stack:
        try:
            agent = _begun(hello, wire, stack, key)
        except TfdistError as error:
            wire.send({"refused": str(error)})
            sys.stderr.write(f"{error}\n")
            return 1
        stack.callback(agent.end)
        try:
            return 0 if agent.run() else UNFINISHED
        except SystemExit:  # SIGTERM
            agent.tell_why_it_ends()
            raise


def _begun(hello: dict[str, Any], wire: Wire, stack: contextlib.ExitStack, key: bytes | None) -> "HostAgent":
    if hello["version"] != __version__:
        raise ConfigError(
            f"tfdist {__version__} is installed there, and {hello['version']} here; the launcher and all hosts must "
            "have the same."
        )
    try:
        os.chdir(hello["folder"])
    except OSError as error:
        raise ConfigError(
            f"the folder {hello['folder']} cannot be entered there ({error.strerror}). All hosts must have the script "
            "and its folder at the same path: by a shared file system, or a copy."
        ) from error
    if not hello["ends_at_sigterm"]:  # the launcher program sends it to every process; the agent decides
        signal.signal(signal.SIGTERM, lambda *_: None)
    for name in [name for name in os.environ if name.startswith(tuple(hello["removed"]))]:
        del os.environ[name]
    os.environ.update(hello["environment"])
    config = config_from_json(hello["config"])
    require_script(config)
    is_loopback = loopback(hello["address"])
    guard = stack.enter_context(guarded(hello["guard"], in_memory=True))
    factory = stack.enter_context(contextlib.closing(WorkerFactory(config, guard)))
    placement = LocalPlacement(guard, starter=factory.start, host=hello["address"])
    reserving = LocalPlacement(guard, starter=factory.fork, host=hello["address"])
    wire.send(
        {
            "python": sys.executable,
            "pid": os.getpid(),
            "directory": str(guard.directory),
            "memory": str(guard.memory),
            "versions": {name: _version(name) for name in PACKAGES},
            "is_loopback": is_loopback,
        }
    )
    key_of_all = "" if key is None else key_of_workers(key, hello["job"])

    def tell(text: str) -> None:
        with contextlib.suppress(WireError):
            wire.send({"say": text})

    copies = Copies(guard.memory, hello["address"], bytes_per_second=config.copy_bandwidth, tell=tell)
    steps = Steps(guard.memory) if config.monitor else None
    agent = HostAgent(wire, guard, placement, factory, copies, reserving=reserving, steps=steps, key=key_of_all)
    if hello["passes_sigterm_on"]:
        signal.signal(signal.SIGTERM, lambda *_: agent.ask("notice"))
    if hello["ends_the_job_at_sigterm"]:
        signal.signal(signal.SIGTERM, lambda *_: agent.ask("tell of sigterm"))
    return agent


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


@dataclass(eq=False, repr=False)
class HostAgent:
    wire: Wire
    guard: Guard
    placement: LocalPlacement
    factory: WorkerFactory
    copies: Copies
    reserving: LocalPlacement
    steps: Steps | None = None
    key: str = ""

    def __post_init__(self) -> None:
        self._steps_due = 0.0
        self._requests: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._gone = threading.Event()
        self._finished = False  # the agent has said so
        self._heard = time.monotonic()
        self._handles: dict[int, Handle] = {}
        self._outputs: dict[tuple[int, int], Forward] = {}
        self._recorded: set[int] = set()
        self._lock = threading.Lock()
        self._tables = Tables()
        self._telling = threading.Lock()  # later reports are newer
        self._told: tuple[list[Any], list[int], int] | None = None
        self._told_at = 0.0
        self._states: list[int] = []
        self._awaited = 0  # workers that are to wait in a fork
        self._does: dict[str, Callable[[dict[str, Any]], Any]] = {
            "ports": lambda asked: self.placement.addresses(asked["count"], but=asked["but"]),
            "open": self._open,
            "start": self._start,
            "signal": lambda asked: self._handles[asked["handle"]].signal(asked["number"]),
            "taken": self._taken,
            "close": self._close,
            "prepare": self._prepare,
            "take copies": lambda asked: self.copies.take(asked["sender"], self._key_of(asked["key"])),
            "send copies": lambda asked: self.copies.send(asked["to"], asked["name"], self._key_of(asked["key"])),
            "table": lambda asked: self._tables.tell(asked["number"], asked["what"], asked["step"]),
            "notice": self._notice,
            "tell of sigterm": lambda asked: self._send({"sigterm": True}),
            "close table": self._close_table,
            "beat": lambda asked: None,
        }

    def run(self) -> bool:
        """Serve until the agent is gone; True if it no longer needs this host."""
        for name, run in (("requests", self._read), ("reports", self._tell)):
            threading.Thread(target=run, name=name, daemon=True).start()
        while not self._gone.is_set():
            try:
                request = self._requests.get(timeout=0.2)
            except queue.Empty:
                if self._awaited:
                    self.factory.tend(self._awaited)
                if time.monotonic() - self._heard > SILENCE_SECONDS:
                    break
                continue
            if request is None or request["do"] == "end":
                break
            if request["do"] == "leftovers":  # takes its time, in which signals have to be passed on
                threading.Thread(
                    target=self._answer, args=(request, self._leftovers), name="leftovers", daemon=True
                ).start()
            else:
                self._answer(request, self._does[request["do"]])
        return self._finished

    def ask(self, do: str) -> None:
        """Queue a request to this agent itself, for handlers of signals."""
        self._requests.put({"do": do})

    def tell_why_it_ends(self) -> None:
        """Report that this process was asked to end, which is not a failure of its workers."""
        self._gone.set()
        with contextlib.suppress(WireError):
            self.wire.send({"note": f"what acts for the launcher there {_why_sigterm[0]}"})

    def end(self) -> None:
        """End every process and the processes that it has left behind."""
        self._gone.set()
        self.copies.close()
        handles = list(self._handles.values())
        for handle in handles:
            handle.signal(signal.SIGKILL)
        self.placement.end_leftovers(handles, grace_seconds=0.0)
        for handle in handles:
            handle.close(_CLOSE_SECONDS)

    def _read(self) -> None:
        while (message := self.wire.receive()) is not None:
            self._heard = time.monotonic()
            self._finished = self._finished or message["do"] == "end"
            self._requests.put(message)
        self._gone.set()
        self._requests.put(None)

    def _answer(self, request: dict[str, Any], do: Callable[[dict[str, Any]], Any]) -> None:
        value, error = None, ""
        try:
            value = do(request)
        except TfdistError as failure:
            error = str(failure)
        except Exception as failure:  # noqa: BLE001 - any error is the answer
            error = repr(failure)
        if "id" in request:
            self._send({"answer": request["id"], "value": value, "error": error})
        elif error:  # nobody waits for an answer
            self._send({"note": f"{request['do']}: {error}"})

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self.wire.send(message)
        except WireError:
            self._gone.set()

    def _open(self, asked: dict[str, Any]) -> None:
        number, reserve = asked["number"], asked["reserve"]
        if number and not reserve:  # restarted workers are forked, once TensorFlow is imported
            self.factory.wait(self._gone.is_set)
        if self.steps is not None:
            self.steps.open(number)
        path = progress_file(self.guard.memory, number)
        self._tables.open(number, path, asked["workers"], chief=asked["chief"], here=asked["here"], reserve=reserve)

    def _close_table(self, asked: dict[str, Any]) -> None:
        self._tables.close(asked["number"])
        if self.steps is not None:
            self.steps.close(asked["number"])

    def _start(self, asked: dict[str, Any]) -> int:
        spec, number = spec_from_json(asked["spec"]), asked["handle"]
        key = self._key_of(spec.key)
        spec = replace(spec, environment={**spec.environment, JOB_PART.name: self.guard.job_id}, key=key)
        handle = (self.reserving if asked["reserve"] else self.placement).start(spec)
        with self._lock:
            self._handles[number] = handle
        for stream, descriptor in handle.outputs.items():
            forward = Forward(os.dup(descriptor), number, stream, self._send)
            with self._lock:
                self._outputs[number, stream] = forward
            threading.Thread(target=forward.run, name=f"output {stream} of {number}", daemon=True).start()
        threading.Thread(target=self._watch, args=(number, handle), name=f"watch {spec.task}", daemon=True).start()
        return handle.pid

    def _key_of(self, told: str) -> str:
        return self.key if told == KEY_IS_DERIVED else told

    def _watch(self, number: int, handle: Handle) -> None:
        returncode = handle.wait()
        clock = time.monotonic()
        if self._gone.is_set():  # the agent is to see the end of this host
            return
        self._tell_record(number, handle)
        self._tell_once()  # its progress is reported before its end
        self._tell_steps()
        unasked = handle.ended_unasked
        self._send({"ended": number, "returncode": returncode, "unasked": unasked, "clock": clock})

    def _tell_record(self, number: int, handle: Handle) -> None:
        path = ERROR_FILE.read(handle.spec.environment)
        if not path:
            return
        with self._lock:
            if number in self._recorded:
                return
            try:
                content = Path(path).read_text(encoding="utf-8")
            except OSError:
                return
            self._recorded.add(number)
            self._send({"record": number, "content": content})

    def _taken(self, asked: dict[str, Any]) -> None:
        forward = self._outputs.get((asked["handle"], asked["stream"]))
        if forward is not None:
            forward.give(asked["bytes"])

    def _close(self, asked: dict[str, Any]) -> None:
        with self._lock:
            handle = self._handles.pop(asked["handle"])
            self._recorded.discard(asked["handle"])
            outputs = [self._outputs.pop((asked["handle"], stream)) for stream in handle.outputs]
        for forward in outputs:
            forward.give(1 << 62)  # a process that still writes is not held up
        handle.close(_CLOSE_SECONDS)
        path = ERROR_FILE.read(handle.spec.environment)
        if path:
            Path(path).unlink(missing_ok=True)  # it was sent; a standby worker uses the same path
            guardian.remove_listed(f"{path}{guardian.LISTING}")

    def _leftovers(self, asked: dict[str, Any]) -> int:
        with self._lock:  # the number of a closed process may be reused
            handles = {number: self._handles[number] for number in asked["handles"] if number in self._handles}
            outputs = [one for (number, _), one in self._outputs.items() if number in handles]
        count = self.placement.end_leftovers(list(handles.values()), grace_seconds=asked["grace_seconds"])
        for forward in outputs:
            forward.finish()
        return count

    def _notice(self, _: dict[str, Any]) -> None:
        self._send({"leaves": True})
        for handle in self._running().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(handle.pid, signal.SIGTERM)  # from outside, as far as the agent is concerned

    def _prepare(self, asked: dict[str, Any]) -> None:
        running = list(self._running().values())
        if running:
            self.factory.prepare(running[0].pid)
            self._awaited = len(running)

    def _tell(self) -> None:
        while not self._gone.is_set():
            for number, handle in self._running().items():
                self._tell_record(number, handle)
            self._tell_once()
            states = self._tables.states()
            if states != self._states:
                self._states = states
                self.copies.look()
            if time.monotonic() >= self._steps_due:
                self._steps_due = time.monotonic() + _STEPS_SECONDS
                self._tell_steps()
            time.sleep(_TELL_WHILE_HALTING_SECONDS if self._tables.is_halting else _TELL_SECONDS)

    def _tell_once(self) -> None:
        with self._telling:
            for message in self._tables.new_warnings():
                self._send(message)
            stopped = [number for number, handle in self._running().items() if handle.is_stopped]
            said, now = (self._tables.said(), stopped, self.factory.waiting), time.monotonic()
            if said != self._told or now - self._told_at >= BEAT_SECONDS:
                self._told, self._told_at = said, now
                self._send({"tables": said[0], "stopped": stopped, "waiting": said[2], "clock": time.monotonic()})

    def _tell_steps(self) -> None:
        """Report recorded steps, after this host's clock."""
        for message in () if self.steps is None else self.steps.new():
            self._send(message)

    def _running(self) -> dict[int, Handle]:
        with self._lock:
            handles = dict(self._handles)
        return {number: handle for number, handle in handles.items() if handle.wait(0.0) is None}


if __name__ == "__main__":
    main()
