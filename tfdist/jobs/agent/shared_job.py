"""Resources and settings shared by all starts of a job."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any

from tfdist.cluster import job_key
from tfdist.cluster.job_files import steps_folder
from tfdist.jobs.agent import running_jobs
from tfdist.jobs.agent.monitoring import Monitoring
from tfdist.jobs.agent.restart_reporter import RestartReporter
from tfdist.jobs.agent.standby_workers import Standby
from tfdist.jobs.agent.status_channel import StatusChannel, opened
from tfdist.jobs.agent.worker_group import announce
from tfdist.jobs.output.screen import Output
from tfdist.jobs.placement.placement_protocol import Factory, Placement
from tfdist.jobs.plan.job_plan import plan
from tfdist.jobs.plan.launch_config import LaunchConfig
from tfdist.jobs.plan.roles import Role, roles_of, tasks
from tfdist.jobs.plan.worker_spec import BOTH, WorkerSpec
from tfdist.jobs.remote.remote_placement import RemotePlacement
from tfdist.jobs.supervision.restarts import History
from tfdist.jobs.supervision.supervisor_state import Rules
from tfdist.processes.job_resources import Guard


@dataclass(kw_only=True)
class Job:
    """What all starts of a job share.

    Attributes:
        config: the request.
        guard: its directories, and the process that ends it if the agent is killed.
        out: where the output goes.
        events: what happens; signals arrive there.
        verbose: whether to tell what is started and what ends.
        reporter: tells the user of failures and recoveries.
        factory: prepares for the next start.
        placement: starts them.
        standby: the workers in reserve.
        control: who asks for another number of workers, if that may change.
        monitoring: tells what the job is bound by, if that is asked for.
        begun: clock time of its start.
        step_seconds: of the last start that had enough steps.
        addresses: of the last processes that were started.
        key: by which the workers know each other.
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
        """Tell the user."""
        announce(self.out, text)

    def sized(self, workers: int) -> LaunchConfig:
        """Return the request with this number of workers; the bounds are those of the original one."""
        if self.config.parameter_servers:
            return self.config
        least, most = self.config.range  # of which the defaults follow from the number of workers
        # whether workers may be evicted was judged by the original one as well, and need not hold of what is left
        return replace(self.config, workers=workers, min_workers=least, max_workers=most, evict_stragglers=False)

    def rules(self, workers: int) -> Rules:
        """Return what does not change while a start with so many workers runs."""
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
        """Return what to start, at addresses that those before did not have, and a new channel for it."""
        config = self.sized(workers)
        places = self.placement.addresses(len(tasks(config)), but=self.addresses)
        self.addresses = tuple(f"{host}:{port}" for host, port in places)
        if config.monitor:
            steps_folder(self.guard.memory, starts).mkdir(exist_ok=True)
        sites = [self.placement.site(host) for host, _ in places]
        specs_at = {  # the same but for what differs between hosts
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
            channel = opened(self.guard.memory, starts, workers=workers, reserve=reserve, chief=chief)
        # what a worker records elsewhere is brought here
        return tuple(
            replace(spec, piped=piped, error_file=self.guard.directory / spec.error_file.name) for spec in specs
        ), channel


@dataclass(frozen=True, kw_only=True)
class Before:
    """What has happened to a job before a start.

    Attributes:
        history: the starts and the failures.
        replaced: how often single processes were started again.
        size: how many workers the start has.
    """

    history: History
    replaced: int
    size: int


def reporting_role(roles: Sequence[Role]) -> Role:
    """Return the role of which the processes report their steps."""
    return next(role for role in roles if role.runs_script)
