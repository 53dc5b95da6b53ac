"""Resources and settings shared by all starts of a job."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any

from tfdist.cluster import job_key
from tfdist.cluster.job_files import progress_file, steps_folder
from tfdist.jobs.agent import running_jobs
from tfdist.jobs.agent.monitoring import Monitoring
from tfdist.jobs.agent.restart_reporter import RestartReporter
from tfdist.jobs.agent.standby_workers import Standby
from tfdist.jobs.agent.worker_group import StatusChannel, announce
from tfdist.jobs.output.screen import Output
from tfdist.jobs.placement.placement_protocol import Factory, Placement
from tfdist.jobs.plan.job_plan import plan
from tfdist.jobs.plan.launch_config import LaunchConfig
from tfdist.jobs.plan.roles import Role, roles_of, tasks
from tfdist.jobs.plan.worker_spec import BOTH, WorkerSpec
from tfdist.jobs.remote.remote_placement import RemotePlacement
from tfdist.jobs.supervision.supervise import History
from tfdist.jobs.supervision.supervisor_state import Rules
from tfdist.monitor.status import StatusTable
from tfdist.processes.job_resources import Guard


@dataclass(kw_only=True)
class Job:
    """What all starts of a job share.

    `step_seconds` are those of the last start with enough steps; `addresses` are those of the last processes. `begun`
    is a clock time. By `key` the workers know each other.
    """

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
        """The request with this number of workers, within the bounds of the original."""
        if self.config.parameter_servers:
            return self.config
        least, most = self.config.range  # their defaults follow from the number of workers
        # eviction was checked with the original request, and need not be valid for fewer workers
        return replace(self.config, workers=workers, min_workers=least, max_workers=most, evict_stragglers=False)

    def rules(self, workers: int) -> Rules:
        """The constants of a start with this number of workers."""
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
        """The processes to start, at addresses that earlier ones did not have, and a new status channel."""
        config = self.sized(workers)
        places = self.placement.addresses(len(tasks(config)), but=self.addresses)
        self.addresses = tuple(f"{host}:{port}" for host, port in places)
        if config.monitor:
            steps_folder(self.guard.memory, starts).mkdir(exist_ok=True)
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
        reporting = reporting_role(roles_of(config))
        workers, chief = reporting.count, not reporting.in_step
        if isinstance(self.placement, RemotePlacement):
            hosts = [host for host, _ in places]
            channel: StatusChannel = self.placement.status(starts, hosts, workers=workers, chief=chief, reserve=reserve)
        else:
            channel = StatusTable(progress_file(self.guard.memory, starts), workers, reserve=reserve, chief=chief)
        # error files of remote workers are copied here
        return tuple(
            replace(spec, piped=piped, error_file=self.guard.directory / spec.error_file.name) for spec in specs
        ), channel


@dataclass(frozen=True, kw_only=True)
class Before:
    """A job before a start: its history, how often single processes were replaced, and the number of workers."""

    history: History
    replaced: int
    size: int


def reporting_role(roles: Sequence[Role]) -> Role:
    """The role whose processes report their steps."""
    return next(role for role in roles if role.runs_script)
