"""Starts the workers of a job, supervises them until all have ended, and leaves nothing behind.

A job of workers is in `agent_workers`, one with parameter servers in `agent_chief`.
"""

import os
import secrets
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tfdist.cluster.ports import free_ports
from tfdist.launch import jobs, shared_memory
from tfdist.launch.agent_chief import run_chief
from tfdist.launch.agent_workers import run_workers
from tfdist.launch.config import LaunchConfig, require_script
from tfdist.launch.failure import Outcome, format_report
from tfdist.launch.generation import announce
from tfdist.launch.output import Output, screen
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
    out = screen(names_of(config))

    def report(text: str, give_up: Callable[[], bool]) -> None:
        out.message(text, style="bold red", give_up=give_up)

    return run_to(config, out, SimpleQueue(), report, verbose=verbose)


def run_to(
    config: LaunchConfig,
    out: Output,
    events: "SimpleQueue[Any]",
    report: Callable[[str, Callable[[], bool]], None],
    *,
    verbose: bool = False,
    if_killed: tuple[Path, ...] = (),
) -> Outcome:
    """Run the job to its end, as `run` does, with an output of the caller's.

    Args:
        config: what to start.
        out: where the output goes.
        events: the caller may put `Received` into it, as if the signal had arrived.
        report: called when workers have failed, with the text to show, and a function that tells when to stop waiting
            for its reader.
        verbose: whether to tell what is started and what ends.
        if_killed: files and directories that are removed if this process is killed; else the caller sees to them.
    Returns:
        The outcome.
    Raises:
        ConfigError, TfdistError: as `run`.
    """
    require_script(config)
    job_id = secrets.token_hex(8)
    begun = time.monotonic()
    least, most = config.range
    holds_states = config.is_elastic and not config.parameter_servers
    too_small = shared_memory.complaint(
        shared_memory.observe(), gpus=shared_memory.observe_gpus(), holds_states=holds_states
    )
    if too_small:
        announce(out, f"warning: {too_small}")
    sizing = (signal.SIGUSR1, signal.SIGUSR2) if least < most else ()
    files = (jobs.place(os.environ, job_id),) if least < most else ()
    with signals_into(events, *sizing), guarded(job_id, in_memory=True, also=files, if_killed=if_killed) as guard:
        run_it = run_chief if config.parameter_servers else run_workers
        outcome, give_up = run_it(config, guard, out, events, verbose=verbose)
        if outcome.failures:
            workers = len(tasks(config))
            report(format_report(outcome.failures, workers=workers, started=begun, shown=out.lends), give_up)
        return outcome


def names_of(config: LaunchConfig) -> list[str]:
    """Return what the processes of the job are called, as many as there may be.

    Example:
        >>> names_of(LaunchConfig(target="train.py", workers=1, max_workers=2))
        ['worker 0', 'worker 1']
    """
    return [str(task) for task in tasks(replace(config, workers=config.range[1]))]
