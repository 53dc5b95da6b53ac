"""Resources and settings shared by all starts of a job, and its standby workers.

Standby workers have run the script up to its first step and replace workers that failed, so the cost of a restart
(strategy, model, connections) is paid in advance. The price is memory, and a script that runs up to `fit` beside the
job. They are forked like restarted ones, and wait in `StatusReporter.stand_by`.
"""

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, cast

from tfdist.cluster import job_key
from tfdist.cluster.job_files import progress_file, steps_folder
from tfdist.errors import TfdistError
from tfdist.jobs.agent import running_jobs
from tfdist.jobs.agent.monitoring import Monitoring
from tfdist.jobs.agent.restart_reporter import RestartReporter
from tfdist.jobs.agent.worker_group import Events, StatusChannel, WorkerGroup, announce, started
from tfdist.jobs.output.output_forwarder import Output
from tfdist.jobs.placement.placement_protocol import Factory, Placement
from tfdist.jobs.plan.job_plan import plan
from tfdist.jobs.plan.launch_config import LaunchConfig
from tfdist.jobs.plan.roles import roles_of, tasks
from tfdist.jobs.plan.worker_spec import BOTH, WorkerSpec
from tfdist.jobs.supervision.supervise import History
from tfdist.jobs.supervision.supervisor_state import Event, Rules
from tfdist.monitor.phases import Activity
from tfdist.monitor.status import StatusTable
from tfdist.processes.job_resources import Guard

if TYPE_CHECKING:
    from tfdist.jobs.remote.remote_placement import RemotePlacement


@dataclass(frozen=True, kw_only=True)
class Reserve:
    """The workers in reserve; `held` closes their channel and their processes."""

    specs: tuple[WorkerSpec, ...]
    channel: StatusChannel
    group: WorkerGroup
    held: contextlib.ExitStack


class Standby:
    def __init__(self, placement: Placement, out: Output, factory: Factory, *, verbose: bool) -> None:
        self._placement = placement
        self._out = out
        self._factory = factory
        self._verbose = verbose
        self._reserve: Reserve | None = None
        self._events = _Relay()
        self._tried = False
        self._goes_on = False  # before it was taken

    def tend(self, workers: int, plan: Callable[[], tuple[Sequence[WorkerSpec], StatusChannel]]) -> None:
        """Start the reserve once until workers step anew: its script may end early. End it with its first worker."""
        if self._reserve is not None:
            if self._events.kept or len(self._reserve.specs) != workers:
                self.close()
        elif not self._tried and self._factory.waiting >= workers:
            self._tried = True
            try:
                planned = plan()
            except (TfdistError, OSError):  # a host has just been lost, or memory is full
                return
            self._start(*planned)

    @property
    def is_starting(self) -> bool:
        """True if there will be a reserve but is none yet; asked only if one is wanted."""
        if self._reserve is None:
            return not self._tried
        return not self._events.kept and not self.is_ready

    @property
    def is_ready(self) -> bool:
        """True if all of the reserve waits to take over."""
        if self._reserve is None or self._events.kept:
            return False
        channel, count = self._reserve.channel, len(self._reserve.specs)
        return all(channel.read(worker).activity is Activity.RESERVE for worker in range(count))

    def go_on(self, workers: int) -> None:
        """Let the reserve continue, if it has this many live workers; `take` and `admit` follow.

        It restores the state while the agent still cleans up after its predecessors.
        """
        if (reserve := self._fitting(workers)) is not None:
            self._goes_on = True
            reserve.channel.take_over()

    def take(self, workers: int) -> Reserve | None:
        """Hand the reserve over to the caller, if it has this many live workers.

        One that has continued is handed over in any case: `admit` hands on what has failed since, which counts as any
        other failure.
        """
        self._tried = False
        reserve = self._reserve if self._goes_on else self._fitting(workers)
        if reserve is None:
            self.close()
        self._reserve = None
        return reserve

    def _fitting(self, workers: int) -> Reserve | None:
        reserve = self._reserve
        if reserve is None or self._events.kept or reserve.group.ended() or len(reserve.specs) != workers:
            return None
        return reserve

    def admit(self, reserve: Reserve, events: Events) -> None:
        """Let the reserve take part: its ends become events, and its output is shown."""
        self._events.connect(events)
        self._events = _Relay()
        if reserve.group.pump is not None:
            reserve.group.pump.release()
        if not self._goes_on:
            reserve.channel.take_over()
        self._goes_on = False

    def close(self) -> None:
        """End the reserve; its output is not shown."""
        if self._reserve is not None:
            self._reserve.held.close()
            for spec in self._reserve.specs:
                spec.error_file.unlink(missing_ok=True)
        self._reserve, self._events, self._goes_on = None, _Relay(), False

    def _start(self, specs: Sequence[WorkerSpec], channel: StatusChannel) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(channel.close)
            try:
                group = stack.enter_context(
                    started(specs, self._placement, self._out, self._events, verbose=self._verbose, held=True)
                )
            except (TfdistError, OSError):  # the job continues without a reserve
                self._events = _Relay()
                return
            self._reserve = Reserve(specs=tuple(specs), channel=channel, group=group, held=stack.pop_all())


class _Relay:
    def __init__(self) -> None:
        self.kept: list[Event] = []
        self._to: Events | None = None
        self._lock = threading.Lock()

    def put(self, event: Event) -> None:
        with self._lock:
            if self._to is None:
                self.kept.append(event)
            else:
                self._to.put(event)

    def connect(self, to: Events) -> None:
        with self._lock:
            self._to = to
            for event in self.kept:
                to.put(event)


@dataclass(kw_only=True)
class Job:
    """The state that all starts share; `step_seconds` and `addresses` are the last one's, `key` identifies workers."""

    config: LaunchConfig
    guard: Guard
    out: Output
    events: "SimpleQueue[Any]"
    verbose: bool
    reporter: RestartReporter
    factory: Factory
    placement: Placement
    standby: Standby
    control: running_jobs.Control | None
    monitoring: Monitoring | None = None
    begun: float = field(default_factory=time.monotonic)
    step_seconds: tuple[float, ...] = ()
    addresses: tuple[str, ...] = ()
    key: str = field(default_factory=job_key.drawn, repr=False)

    def say(self, text: str) -> None:
        announce(self.out, text)

    def sized(self, workers: int) -> LaunchConfig:
        """Return the request with this number of workers, within the bounds of the original."""
        if self.config.parameter_servers:
            return self.config
        least, most = self.config.range  # their defaults follow from the number of workers
        # eviction was checked with the original request, and need not be valid for fewer workers
        return replace(self.config, workers=workers, min_workers=least, max_workers=most, evict_stragglers=False)

    def rules(self, workers: int) -> Rules:
        config = self.sized(workers)
        least, most = config.range
        return Rules(
            roles=roles_of(config),
            grace_seconds=config.grace_seconds,
            max_restarts=config.max_restarts,
            min_workers=least,
            max_workers=most,
        )

    def plan(
        self, workers: int, starts: int, *, piped: frozenset[int] = BOTH, reserve: bool = False
    ) -> tuple[tuple[WorkerSpec, ...], StatusChannel]:
        """Return the processes to start, at addresses that earlier ones did not have, and a new status channel."""
        config = self.sized(workers)
        places = self.placement.addresses(len(tasks(config)), but=self.addresses)
        self.addresses = tuple(f"{host}:{port}" for host, port in places)
        if config.monitor:
            steps_folder(self.guard.memory, starts).mkdir(exist_ok=True)
            # it has a megabyte for each worker, and only the last start's is read
            shutil.rmtree(steps_folder(self.guard.memory, starts - 2), ignore_errors=True)
        sites = [self.placement.site(host) for host, _ in places]
        specs_at = {  # equal except for what differs between hosts
            site: plan(
                config,
                addresses=places,
                job_id=self.guard.job_id,
                directory=site.directory,
                python=site.python,
                agent_pid=site.agent_pid,
                memory=site.memory,
                restarts=starts,
                key=self.key,
            )
            for site in dict.fromkeys(sites)
        }
        specs = [specs_at[site][index] for index, site in enumerate(sites)]
        reporting = next(role for role in roles_of(config) if role.runs_script)
        workers, chief = reporting.count, not reporting.in_step
        if config.remote is not None:
            hosts, elsewhere = [host for host, _ in places], cast("RemotePlacement", self.placement)
            channel: StatusChannel = elsewhere.status(starts, hosts, workers=workers, chief=chief, reserve=reserve)
        else:
            channel = StatusTable(progress_file(self.guard.memory, starts), workers, reserve=reserve, chief=chief)
        # error files of remote workers are copied here
        return tuple(
            replace(spec, piped=piped, error_file=self.guard.directory / spec.error_file.name) for spec in specs
        ), channel


@dataclass(frozen=True, kw_only=True)
class Before:
    """The state of a job before a start: its history, the number of replaced single processes, and of workers."""

    history: History
    replaced: int
    size: int
