"""Starts the workers of a job, supervises them until all have ended, and leaves nothing behind.

The decisions are in `supervise`, the verdict in `failure`, the processes in `generation`; a job with parameter servers
is in `agent_chief`.
"""

import os
import secrets
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from tfdist.cluster.ports import free_ports
from tfdist.launch.agent_chief import run_chief
from tfdist.launch.config import LaunchConfig, require_script
from tfdist.launch.failure import Failure, Outcome, format_report, how_it_ended, own_failures, read_record
from tfdist.launch.generation import Course, impatience, started, supervise
from tfdist.launch.output import Screen, screen
from tfdist.launch.plan import HOST, WorkerSpec, plan
from tfdist.launch.plan_chief import plan_chief, tasks
from tfdist.launch.resources import Guard, guarded, signals_into
from tfdist.launch.supervise import Action, Event, Exited, Phase, Received, Say, State, decide


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
    events: SimpleQueue[Event] = SimpleQueue()
    begun = time.monotonic()
    everybody = tasks(config)
    out = screen([str(task) for task in everybody])
    with signals_into(events), guarded(job_id) as guard:
        run_it = run_chief if config.parameter_servers else _run_workers
        outcome, give_up = run_it(config, guard, out, events, verbose=verbose)
        if outcome.failures:
            report = format_report(outcome.failures, workers=len(everybody), started=begun)
            out.message(report, style="bold red", give_up=give_up)
        return outcome


def _run_workers(
    config: LaunchConfig, guard: Guard, out: Screen, events: "SimpleQueue[Event]", *, verbose: bool
) -> tuple[Outcome, Callable[[], bool]]:
    """Run workers to their end; return the outcome, and what tells when not to wait for the reader of the output."""
    specs = planned(config, job_id=guard.job_id, directory=guard.directory, agent_pid=os.getpid())

    def step(state: State, event: Event, now: float) -> tuple[State, tuple[Action, ...]]:
        after, sent = decide(state, event, now=now, grace_seconds=config.grace_seconds)
        said = "" if after.phase is state.phase else _announcement(after, event, config.grace_seconds)
        return after, (*sent, *([Say(text=said)] if said else []))

    with started(specs, guard, out, events, verbose=verbose) as generation:
        course = supervise(generation, State(running=frozenset(range(len(specs)))), step, events)
        give_up = impatience(course.state.received, events)
        generation.finish(grace_seconds=0.0 if course.killed else config.grace_seconds, give_up=give_up)
    return _judge(course, specs), give_up


def _announcement(state: State, event: Event, grace_seconds: float) -> str:
    """Return what the user should know when the phase has changed."""
    if state.phase is Phase.LOST:
        return f"workers {sorted(state.running)} did not end after SIGKILL; the kernel holds them. Look with ps."
    if state.phase is Phase.KILLING:
        return f"killing {_count(state)}"
    if state.phase is not Phase.STOPPING:
        return ""
    if isinstance(event, Received):
        name = signal.Signals(event.number).name
        return f"{name}: {_have(state)} {grace_seconds:g} s to end; Ctrl-C kills now"
    why = (
        f"worker {event.worker} failed ({how_it_ended(event.returncode)})"
        if isinstance(event, Exited)
        else ("a worker has failed and does not end")
    )
    return f"{why}; {_have(state)} {grace_seconds:g} s to end"


def _have(state: State) -> str:
    return f"{_count(state)} {'has' if len(state.running) == 1 else 'have'}"


def _count(state: State) -> str:
    return f"{len(state.running)} worker{'' if len(state.running) == 1 else 's'}"


def _judge(course: Course[State], specs: tuple[WorkerSpec, ...]) -> Outcome:
    candidates = []
    for worker, ended in course.exits.items():
        record = read_record(specs[worker].error_file)
        when = record.clock if record is not None else ended.time
        candidates.append(Failure(worker=worker, time=when, returncode=ended.returncode, record=record))
    by_signal = course.state.received is not None
    failures = own_failures(candidates, stopped_at=course.stopped_at, by_signal=by_signal)
    if failures:
        return Outcome(exit_code=failures[0].exit_code, failures=failures)
    if course.state.received is not None:
        return Outcome(exit_code=128 + course.state.received)
    return Outcome(exit_code=1 if course.state.phase is Phase.LOST else 0)
