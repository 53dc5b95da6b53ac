"""The launcher `ray`: the launcher's side of a Ray cluster."""

import importlib.util
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from tfdist.errors import DeadlineError, MissingDependencyError, TfdistError
from tfdist.jobs.connecting.connection import Tail
from tfdist.jobs.connecting.tcp_joining import AGENT_MODULE, Ticket
from tfdist.jobs.connecting.wire import Wire, WireError
from tfdist.jobs.launchers.launcher import Launcher, StartedAgents
from tfdist.jobs.plan.host_plan import Demand, Host, NoRoomError, Remote
from tfdist.variables import ENDS_WITH_INPUT
from tfdist.waiting import end_process

DRIVER = "tfdist.jobs.launchers.ray.ray_driver"

_CONNECT_SECONDS = 60.0
_END_SECONDS = 10.0
_POLL_SECONDS = 0.1
_LEARN_SECONDS = 1.0  # for Ray to know why, after a connection's end


class RayLauncher(Launcher):
    """A launcher that lets Ray choose the nodes, and starts an agent on each in an actor of a placement group."""

    name = "ray"
    all_again = True
    without_hosts = "chooses the nodes itself"
    removed = ("RAY_", "OMP_NUM_THREADS")  # the second is Ray's for its own processes
    accepts = frozenset(field.name for field in fields(Demand))
    assigns_gpus = True
    takes_rendezvous = True
    ends_at_sigterm = True
    adds_workers = "as nodes have room"

    def require(self, shell: tuple[str, ...]) -> None:
        if importlib.util.find_spec("ray") is None:
            raise MissingDependencyError("--engine ray needs Ray, which is not installed: pip install 'tfdist[ray]'")

    def allocator(
        self,
        remote: Remote,
        environ: Mapping[str, str],
        *,
        name: str,
        say: Callable[[str], None],
        lose: Callable[[str], None],
    ) -> "Cluster":
        return Cluster(remote, environ, name=name, say=say, lose=lose)

    def shown(self, remote: Remote, count: int, environ: Mapping[str, str]) -> Iterator[str]:
        demand = _demand(remote)
        yield f"# placement group of Ray at {demand.address or 'auto'}, {demand.packing}"
        yield from (f"bundle {index}: {json.dumps(demand.resources)}" for index in range(count))
        yield "# an actor in each bundle; the first on each node runs there, where ports and folders are chosen"
        yield f"{remote.python or 'python'} -m {AGENT_MODULE}"


def _demand(remote: Remote) -> Demand:
    assert remote.demand is not None
    return remote.demand


@dataclass(eq=False, repr=False)
class Cluster:
    """A client that requests hosts and agents from Ray's driver, which runs in a separate process."""

    remote: Remote
    environ: Mapping[str, str]
    name: str
    say: Callable[[str], None]
    lose: Callable[[str], None]

    def __post_init__(self) -> None:
        self._driver: _Driver | None = None

    def allocate(
        self, count: int, *, interrupted: Callable[[], bool]
    ) -> tuple[tuple[Host, ...], tuple[dict[str, str], ...]]:
        demand = _demand(self.remote)
        if self._driver is None or self._driver.is_gone:
            self.close()
            self._driver = _Driver(self.environ, self.say, self.lose)
            self._driver.ask({"do": "connect", "address": demand.address or "auto"})
            self._driver.answer("connected", interrupted=interrupted, seconds=_CONNECT_SECONDS)
        asked = {"count": count, "resources": demand.resources, "packing": demand.packing, "name": self.name}
        self._driver.ask({"do": "allot", **asked, "wait_seconds": demand.wait_seconds})
        return grouped(self._driver.answer("allotted", interrupted=interrupted))

    def start(self, hosts: Sequence[Host], tickets: Sequence[Ticket]) -> "_Driver":
        assert self._driver is not None
        path = self.environ.get("PYTHONPATH")
        more = {ENDS_WITH_INPUT.name: "1", **({"PYTHONPATH": path} if path else {})}
        agents = {host.address: {**ticket.environment(), **more} for host, ticket in zip(hosts, tickets, strict=True)}
        python = self.remote.python or ""
        asked = {"agents": agents, "python": python, "arguments": ["-m", AGENT_MODULE], "call": self.remote.call}
        self._driver.serve({"do": "serve", **asked})
        return self._driver

    def close(self) -> None:
        if self._driver is not None:
            if self.remote.call is not None:
                self._driver.wait_for_agents(_END_SECONDS)
            self._driver.end()
            self._driver = None


def grouped(where: Sequence[Mapping[str, Any]]) -> tuple[tuple[Host, ...], tuple[dict[str, str], ...]]:
    """Return the hosts with their slots, and the variables of each process, host by host.

    Example:
        >>> hosts, variables = grouped([{"address": one, "devices": list(gpus)} for one, gpus in ("a0", "b1", "a2")])
        >>> [(host.name, host.slots) for host in hosts], [one["CUDA_VISIBLE_DEVICES"] for one in variables]
        ([('a', 2), ('b', 1)], ['0', '2', '1'])
    """
    places: dict[str, list[Mapping[str, Any]]] = {}
    for one in where:
        places.setdefault(one["address"], []).append(one)
    hosts = tuple(Host(name=address, address=address, slots=len(here)) for address, here in places.items())
    variables = tuple(  # without a GPU of its own a process sees none: they may be another job's
        {"CUDA_VISIBLE_DEVICES": ",".join(one["devices"])} for here in places.values() for one in here
    )
    return hosts, variables


class _Driver(StartedAgents):
    def __init__(self, environ: Mapping[str, str], say: Callable[[str], None], lose: Callable[[str], None]) -> None:
        self._say = say
        self._lose = lose
        self._process = subprocess.Popen(
            [sys.executable, "-m", DRIVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environ),
            start_new_session=True,  # Ctrl-C of the keyboard is for the launcher, which decides
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._wire = Wire(self._process.stdout.fileno(), self._process.stdin.fileno())
        self._errors = Tail(self._process.stderr)
        self._changed = threading.Condition()
        self._answers: dict[str, Any] = {}
        self._ended: dict[str, str] = {}
        self._agents: frozenset[str] = frozenset()  # addresses
        self.is_gone = False
        self._reader = threading.Thread(target=self._read, name="driver of Ray", daemon=True)
        self._reader.start()

    def ask(self, request: dict[str, Any]) -> None:
        with self._changed:
            self._answers.clear()
        try:
            self._wire.send(request)
        except WireError:  # the thread that reads finds out
            return

    def serve(self, request: dict[str, Any]) -> None:
        with self._changed:
            self._agents = frozenset(request["agents"])
            self._ended.clear()
        self.ask(request)

    def wait_for_agents(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.is_gone or self._agents <= self._ended.keys(), seconds)

    def answer(self, name: str, *, interrupted: Callable[[], bool], seconds: float | None = None) -> Any:
        deadline = None if seconds is None else time.monotonic() + seconds
        with self._changed:
            while not self._answers and not self.is_gone and not interrupted():
                if deadline is not None and time.monotonic() > deadline:
                    raise DeadlineError(
                        f"Ray's cluster has not answered within {seconds:g} s.{self._errors.quoted()}\nLook whether it "
                        "runs (ray status), or name another: --ray-address HOST:PORT"
                    )
                self._changed.wait(_POLL_SECONDS)
            answers = dict(self._answers)
        if name in answers:
            return answers[name]
        if "error" in answers:
            there_is = answers.get("room")
            raise TfdistError(answers["error"]) if there_is is None else NoRoomError(answers["error"], there_is)
        if self.is_gone:
            raise TfdistError(f"the driver of Ray has ended.{self._errors.quoted()}")
        raise TfdistError("the wait for Ray was interrupted.")

    def _read(self) -> None:
        try:
            self._wire.meet()
            while (message := self._wire.receive()) is not None:
                if "said" in message and "ended" not in message:
                    self._say(message["said"])
                    continue
                with self._changed:
                    if "ended" in message:
                        self._ended[message["ended"]] = message["said"]
                    else:
                        self._answers.update(message)
                    self._changed.notify_all()
                if message.get("lost"):  # its process may still run, on a node that is no longer the cluster's
                    self._lose(message["ended"])
        except WireError:
            pass
        with self._changed:
            self.is_gone = True
            self._changed.notify_all()

    def ended(self) -> str:
        if self.is_gone:
            return f"the driver of Ray has ended.{self._errors.quoted()}"
        with self._changed:
            said = "\n".join(self._ended.values())
        if "No module named" in said and "tfdist" in said:
            said += "\nInstall the same version of tfdist there, or name an interpreter that has it: --remote-python"
        return said

    def said(self) -> str:
        """Return the known reasons for the end of hosts; Ray may learn them a moment later."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self.is_gone, _LEARN_SECONDS)
            return "\n".join(self._ended.values())

    def end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        end_process(self._process, _END_SECONDS)
        self._reader.join(_END_SECONDS)
        self._process.stdout.close()
        self._errors.close()
