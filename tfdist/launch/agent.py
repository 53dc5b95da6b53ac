"""Starts the workers of a job, supervises them until all have ended, and leaves nothing behind.

A job of workers is in `agent_workers`, one with parameter servers in `agent_chief`.
"""

import os
import secrets
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tfdist.cluster.ports import free_ports
from tfdist.launch import jobs
from tfdist.launch.agent_chief import run_chief
from tfdist.launch.agent_workers import run_workers
from tfdist.launch.config import LaunchConfig, require_script
from tfdist.launch.failure import Outcome, format_report
from tfdist.launch.output import screen
from tfdist.launch.plan import HOST, WorkerSpec, plan
from tfdist.launch.plan_chief import plan_chief, tasks
from tfdist.launch.resources import guarded, signals_into


def planned(config: LaunchConfig, *, job_id: str, directory: Path, agent_pid: int) -> tuple[WorkerSpec, ...]:
    """Return what `run` would start now, with ports that are free now.

    Args:
        config: the request.
        job_id: the same for all workers, and for no other job.
        directory: where the workers record their failures.
        agent_pid: process that the workers do not outlive; 0 if there is none.

    Raises:
        ConfigError: there are not enough ports.
    """
    ports, python = free_ports(len(tasks(config)), HOST), sys.executable
    make = plan_chief if config.parameter_servers else plan
    return make(config, ports=ports, job_id=job_id, directory=directory, python=python, agent_pid=agent_pid)


def run(config: LaunchConfig, *, verbose: bool = False) -> Outcome:
    """Run the job to its end.

    When it returns, or raises, no process of the job runs, and no file of it exists; when this process is killed, a
    guardian sees to the same. In the main thread, SIGINT, SIGTERM and SIGHUP are passed on to the workers.

    Args:
        config: what to start.
        verbose: whether to tell on standard error what is started and what ends.
    Returns:
        The outcome; a failure of a worker is reported on standard error and is no exception.
    Raises:
        ConfigError: the script cannot be read, or there are not enough ports.
        TfdistError: a process cannot be started, or no temporary directory can be written.

    Example:
        >>> run(LaunchConfig(target="this", is_module=True)).exit_code
        0
    """
    require_script(config)
    job_id = secrets.token_hex(8)
    events: SimpleQueue[Any] = SimpleQueue()
    begun = time.monotonic()
    least, most = config.range
    everybody = tasks(config)
    out = screen([str(task) for task in tasks(replace(config, workers=most))])
    sizing = (signal.SIGUSR1, signal.SIGUSR2) if least < most else ()
    files = (jobs.place(os.environ, job_id),) if least < most else ()
    with signals_into(events, *sizing), guarded(job_id, in_memory=True, also=files) as guard:
        run_it = run_chief if config.parameter_servers else run_workers
        outcome, give_up = run_it(config, guard, out, events, verbose=verbose)
        if outcome.failures:
            report = format_report(outcome.failures, workers=len(everybody), started=begun)
            out.message(report, style="bold red", give_up=give_up)
        return outcome
