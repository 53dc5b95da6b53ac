"""The placement on several hosts, each reached by a link, and the status channel to all of them."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tfdist import __version__
from tfdist.cluster.job_files import progress_file
from tfdist.errors import ConfigError, TfdistError
from tfdist.jobs.connecting.serialization import config_to_json, passed_on
from tfdist.jobs.connecting.tcp_joining import key_of_workers
from tfdist.jobs.launchers.launcher_table import LAUNCHERS
from tfdist.jobs.placement.placement_protocol import Handle, Site
from tfdist.jobs.plan.host_plan import Host, NoRoomError, Remote, places
from tfdist.jobs.plan.launch_config import LaunchConfig
from tfdist.jobs.plan.worker_spec import WorkerSpec
from tfdist.jobs.remote.host_connector import HostConnector
from tfdist.jobs.remote.host_link import HostLink, RemoteSteps
from tfdist.jobs.remote.remote_process import RemoteProcess
from tfdist.jobs.remote.state_copies import ring
from tfdist.monitor.status import StatusTable, WorkerStatus
from tfdist.waiting import join_heeding_signals

AGAIN_SECONDS = 30.0  # for a host that was lost, to join again where the job can continue without it
MEET_SECONDS = 120.0  # a host may have to import what it needs from a slow disk


@dataclass(eq=False, repr=False)
class RemotePlacement:
    """A placement on other hosts, which also prepare restarts; the next start reaches a lost host again."""

    config: LaunchConfig
    remote: Remote
    job_id: str
    say: Callable[[str], None]
    key: str = ""
    interrupted: Callable[[], bool] = lambda: False
    memory: Path | None = None
    end: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._terminated: set[str] = set()  # hosts whose agents have received SIGTERM
        self._recorded = None if self.memory is None else RemoteSteps(self.memory)
        self._launcher = LAUNCHERS[self.remote.launcher]
        self._links: dict[str, HostLink] = {}
        self._reached = 0  # counts connections: leftovers of an earlier agent have another name
        self._hosts = self.remote.hosts
        self._variables: tuple[Mapping[str, str], ...] = ()  # of each process, where the launcher says so
        self._connector = HostConnector(
            self._launcher, self.remote, self.key, os.environ, self.say, name=f"tfdist-{self.job_id}"
        )
        self._versions: Mapping[str, str] | None = None
        self._known: set[str] = set()  # names of the hosts that have been reached
        self._without: dict[str, str] = {}  # why the job continues without a host, by its name
        self._places: tuple[Host, ...] = ()  # of the last processes that were placed
        self._copying: list[HostLink] = []  # to the hosts that copy states, each to the next

    def addresses(self, count: int, *, but: Collection[str] = ()) -> list[tuple[str, int]]:
        if self.remote.demand is not None:
            self._allocate(count)
        wanted = self._places = self._reached_places(count)
        hosts = list(dict.fromkeys(wanted))
        self._compare(hosts)
        self._copy_between(hosts)
        ports: dict[Host, list[int]] = {}
        for host in hosts:
            link, needed = self._links[host.name], wanted.count(host)
            try:
                ports[host] = [int(port) for _, port in link.ask("ports", count=needed, but=list(but))]
            except TfdistError:
                if not link.is_lost:
                    raise
                ports[host] = [10_000 + one for one in range(needed)]  # where nothing will be started
        return [(host.address, ports[host].pop(0)) for host in wanted]

    def site(self, host: str) -> Site:
        report = self._link(host).report
        assert report is not None
        return Site(
            directory=Path(report.directory), memory=Path(report.memory), python=report.python, agent_pid=report.pid
        )

    def start(self, spec: WorkerSpec, *, reserve: bool = False) -> Handle:
        """Start a process; without a host, on the first one."""
        more = self._variables[spec.index] if self._variables else {}
        spec = replace(spec, environment={**spec.environment, **more})
        return self._link(spec.host).start(spec, reserve=reserve)

    def end_leftovers(self, handles: Sequence[Handle], *, grace_seconds: float) -> int:
        """End leftover processes as in the protocol; a lost host ends its processes itself."""
        numbers: dict[HostLink, list[int]] = {}
        for handle in handles:
            assert isinstance(handle, RemoteProcess)
            numbers.setdefault(handle.link, []).append(handle.number)
        counts: list[int] = []

        def end(link: HostLink, ended: list[int]) -> None:
            with contextlib.suppress(TfdistError):
                counts.append(link.ask("leftovers", handles=ended, grace_seconds=grace_seconds))

        _at_once([partial(end, link, ended) for link, ended in numbers.items()])
        return sum(counts)

    def status(
        self, number: int, hosts: Sequence[str], *, workers: int, chief: bool, reserve: bool = False
    ) -> "RemoteStatus":
        links = [self._link(host) for host in hosts[:workers]]
        return RemoteStatus(number, links, chief=chief, reserve=reserve, memory=self.memory)

    # As `placement.worker_factory` prepares for restarts on one host

    def prepare(self, pid: int) -> None:
        for link in self._links.values():
            link.tell("prepare")

    def tend(self, workers: int) -> None:
        """Do nothing: hosts keep as many workers forked as they had."""

    @property
    def waiting(self) -> int:
        """The number of forked workers on the hosts of the last start; 0 unless there are enough."""
        for host in dict.fromkeys(self._places):
            link = self._links[host.name]
            if link.is_lost or link.waiting < self._places.count(host):
                return 0
        return len(self._places)

    def wait(self, interrupted: Callable[[], bool]) -> None:
        """Do nothing: hosts wait for their preparations when they start workers."""

    def close(self) -> None:
        self._end_links()
        self._connector.close()
        if self._recorded is not None:
            self._recorded.close()

    def _link(self, host: str) -> HostLink:
        for link in self._links.values():
            if not host or host in (link.host.address, link.host.name):
                return link
        raise ConfigError(f"host {host!r} is none of the job's: {', '.join(self._links)}.")

    def _allocate(self, count: int) -> None:
        """Let the launcher choose hosts, unless the present ones are alive and as many."""
        if len(self._variables) == count and not any(link.is_lost for link in self._links.values()):
            return
        self._end_links()
        self._hosts, self._variables = self._connector.allocate(count, interrupted=self.interrupted)

    def _end_links(self) -> None:
        _at_once([link.close for link in self._links.values()])
        self._links.clear()
        self._terminated.clear()

    def _reached_places(self, count: int) -> tuple[Host, ...]:
        """Return connected hosts with places for this many processes; lost hosts are left out."""
        if sum(host.slots for host in self._left()) < count:
            self._without.clear()  # they are needed, so they are tried again
        before = set(self._without)
        while True:
            left = self._left()
            if self._without and (room := sum(host.slots for host in left)) < count:
                raise NoRoomError(
                    "\n".join(self._without.values())
                    + f"\n{count} processes are asked for, and the other hosts have places for {room}. Places to spare "
                    "in --hosts, or --min-workers, let a job continue.",
                    room,
                )
            wanted = places(left, count, servers=self.config.parameter_servers)
            hosts = list(dict.fromkeys(wanted))
            unreached = self._reach(hosts, in_a_hurry=self._can_do_without(hosts, count))
            if not unreached and not all(map(self._is_reached, hosts)):
                continue  # one was lost while another one came back, for which a pod takes minutes
            if not unreached:
                for name in self._without.keys() - before:
                    self.say(f"{self._without[name]}\nThe job continues without it.")
                return wanted
            if not self._launcher.does_without or not self._places or self.interrupted():
                raise TfdistError("\n".join(sorted(set(unreached.values()))))
            for name, why in unreached.items():
                how = "was lost, and cannot be reached again" if name in self._known else "cannot be reached"
                self._without[name] = f"host {name} {how}: {why}"

    def _is_reached(self, host: Host) -> bool:
        link = self._links.get(host.name)
        return link is not None and not link.is_lost

    def _left(self) -> list[Host]:
        """Return the hosts that the job may use; those that will be taken away come last."""
        leaving = {name for name, link in self._links.items() if link.leaves}
        left = [host for host in self._hosts if host.name not in self._without]
        return sorted(left, key=lambda host: host.name in leaving)

    def _can_do_without(self, hosts: Sequence[Host], count: int) -> bool:
        """True if the job could continue without the unreached ones of these hosts; it begins with all."""
        least = count if self.config.parameter_servers else self.config.range[0]
        unreached = [host for host in hosts if not self._is_reached(host)]
        room = sum(host.slots for host in self._left()) - sum(host.slots for host in unreached)
        return self._launcher.does_without and bool(self._places) and room >= least

    def _reach(self, hosts: Sequence[Host], *, in_a_hurry: bool) -> dict[str, str]:
        """Connect to unconnected hosts in parallel; return failures by name."""
        missing = [host for host in hosts if not self._is_reached(host)]
        if missing and self._launcher.all_again:  # all end with one
            missing = list(hosts)
            self._end_links()
        errors: dict[str, str] = {}

        def reach(host: Host) -> None:
            try:
                old = self._links.get(host.name)
                if old is not None:
                    old.close()
                seconds = AGAIN_SECONDS if in_a_hurry else None
                connection = self._connector.connection(host, interrupted=self.interrupted, join_seconds=seconds)
                terminated = partial(self._note_sigterm, host)
                link = HostLink(host, connection, say=self.say, recorded=self._recorded, terminated=terminated)
                self._links[host.name] = link
                hello = self._hello(host)
                try:
                    link.meet(hello, timeout_seconds=MEET_SECONDS, interrupted=self.interrupted)
                except TfdistError:
                    link.close()
                    raise
            except TfdistError as error:
                errors[host.name] = str(error)
            else:
                self._known.add(host.name)

        if missing:
            self._reached += 1
            self._connector.begin(missing)
            _at_once([partial(reach, host) for host in missing])
        return errors

    def _note_sigterm(self, host: Host) -> None:
        """End the job once SIGTERM has come to the agents of all connected hosts."""
        self._terminated.add(host.name)
        if self._terminated == self._links.keys():
            self._terminated.clear()
            program = self._launcher.program
            self.say(f"the agents of all hosts received SIGTERM from the program that started them ({program})")
            self.end()

    def _copy_between(self, hosts: Sequence[Host]) -> None:
        """Let each host copy its workers' newest states into the memory of the next."""
        config = self.config
        if not (self.key and config.is_elastic and config.copy_bandwidth) or config.parameter_servers:
            return
        links = [self._links[host.name] for host in hosts]
        if len(links) == 1:  # a connected host without workers
            links += [link for link in self._links.values() if link not in links and not link.is_lost][:1]
        if links == self._copying:
            return
        self._copying = links
        key = key_of_workers(bytes.fromhex(self.key), self.job_id)
        for sender, taker in ring(links):
            try:
                port = taker.ask("take copies", sender=sender.host.name, key=taker.key_for(key))
            except TfdistError as error:
                self.say(f"the state of host {sender.host.name} is not copied to another host's memory: {error}")
                continue
            at = f"{taker.host.address}:{port}"
            sender.tell("send copies", to=at, name=sender.host.name, key=sender.key_for(key))

    def _hello(self, host: Host) -> dict[str, Any]:
        own = {name: value for name, value in os.environ.items() if name not in self._launcher.of_each_host}
        return {
            "version": __version__,
            "folder": os.getcwd(),
            "address": host.address,
            "ends_at_sigterm": self._launcher.ends_at_sigterm,
            "passes_sigterm_on": self._launcher.passes_sigterm_on,
            "ends_the_job_at_sigterm": self._launcher.ends_the_job_at_sigterm,
            "removed": self._launcher.removed,
            "job": self.job_id,
            "guard": f"{self.job_id}-{self._hosts.index(host)}-{self._reached}",
            "environment": passed_on(own, self.remote.passed),
            "config": config_to_json(self.config),
        }

    def _compare(self, hosts: Sequence[Host]) -> None:
        reports = {host: self._links[host.name].report for host in hosts}
        versions = None
        for host, report in reports.items():
            assert report is not None
            if report.is_loopback and len(self._hosts) > 1 and not host.address.startswith("127."):
                raise ConfigError(
                    f"{host.address} is, on host {host.name}, an address by which no other host can reach it. Name "
                    f"one: --hosts {host.name}=ADDRESS:{host.slots}"
                )
            versions = versions or report.versions
            if report.versions != versions and self._versions is None:
                self.say(
                    f"warning: host {host.name} has {_shown(report.versions)}, and host {hosts[0].name} "
                    f"{_shown(versions)}; install the same versions, for equal numbers"
                )
        self._versions = versions


def _shown(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" if version else f"no {name}" for name, version in versions.items())


def _at_once(calls: Sequence[Callable[[], None]]) -> None:
    """Make all calls, each in a thread of its own; once all have ended, raise the first error."""
    errors: list[Exception] = []

    def make(call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=make, args=(call,), name="host", daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:  # which look whether a signal has come, and start processes
        join_heeding_signals(thread)
    if errors:
        raise errors[0]


class Reserving:
    def __init__(self, placement: RemotePlacement) -> None:
        self._placement = placement
        self.addresses = placement.addresses
        self.site = placement.site
        self.end_leftovers = placement.end_leftovers

    def start(self, spec: WorkerSpec) -> Handle:
        return self._placement.start(spec, reserve=True)


class RemoteStatus:
    """The status channel to other hosts' tables; a request to halt counts once the host has confirmed it."""

    def __init__(
        self, number: int, links: Sequence[HostLink], *, chief: bool, reserve: bool = False, memory: Path | None = None
    ) -> None:
        self._number = number
        self._links = links
        self._requests = 0
        self._asked = 0
        self._took_over = 0.0  # clock time
        with contextlib.ExitStack() as opened:
            for link in dict.fromkeys(links):
                here = [worker for worker, other in enumerate(links) if other is link]
                try:
                    link.ask("open", number=number, workers=len(links), chief=chief, here=here, reserve=reserve)
                except TfdistError:
                    if not link.is_lost:  # the workers of a lost host fail when they are started
                        raise
                opened.callback(link.tell, "close table", number=number)
            self._tables = opened.pop_all()
        self._memory = memory
        self._chief = chief
        self._table: StatusTable | None = None
        if not reserve:
            self._show()

    def _show(self) -> None:
        if self._memory is not None:
            self._table = StatusTable(progress_file(self._memory, self._number), len(self._links), chief=self._chief)

    def read(self, worker: int) -> WorkerStatus:
        said = self._links[worker].status(self._number, worker, self._asked)
        if self._table is not None:
            self._table.show(worker, self._links[worker].shown(self._number, worker))
        # the time in reserve does not count as a lack of progress
        return replace(said, changed=max(said.changed, self._took_over)) if self._took_over else said

    def new_warnings(self) -> list[str]:
        links = dict.fromkeys(self._links)
        return [sentence for link in links for sentence in link.new_warnings(self._number)]

    def ask_to_halt(self) -> None:
        self._requests += 1
        self._asked = self._requests
        self._tell("halt")

    def take_back(self) -> None:
        self._asked = 0
        self._tell("take back")

    def set_target(self, step: int) -> None:
        self._tell("target", step)

    def take_over(self) -> None:
        self._took_over = time.monotonic()
        self._tell("take over")
        self._show()

    def end(self) -> None:
        self._tell("end")

    def close(self) -> None:
        self._tables.close()
        if self._table is not None:
            self._table.close()
            self._table = None

    def _tell(self, what: str, step: int = 0) -> None:
        for link in dict.fromkeys(self._links):
            link.tell("table", number=self._number, what=what, step=step)
