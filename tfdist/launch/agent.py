"""Starts the workers of a job, supervises them until all have ended, and leaves nothing behind.

The decisions are in `supervise`, the verdict in `failure`; here they meet clock, processes, signals and files.
"""

import contextlib
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from tfdist.cluster.ports import free_ports
from tfdist.launch import processes
from tfdist.launch.config import LaunchConfig, require_script
from tfdist.launch.failure import Failure, format_report, how_it_ended, own_failures, read_record
from tfdist.launch.output import Screen, screen
from tfdist.launch.plan import HOST, WorkerSpec, plan
from tfdist.launch.processes import Worker
from tfdist.launch.pump import Pump
from tfdist.launch.resources import Guard, guarded, signals_into
from tfdist.launch.supervise import Event, Exited, Phase, Received, Recorded, State, Tick, decide

ANNOUNCE_SECONDS = 1.0  # for a line of the agent, while the workers run
DRAIN_SECONDS = 3.0  # for the last output, when a signal has asked the job to end
LOOK_SECONDS = 0.2  # how often the agent looks for a recorded failure of a process that has not ended


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a job ended.

    Attributes:
        exit_code: 0; or that of the first failure; or 128 + the number of the signal that ended the job.
        failures: the workers that failed on their own, the root cause first.
    """

    exit_code: int
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Course:
    """What happened: how every worker ended, when and why the agent asked them to end, and whether it had to kill."""

    state: State
    exits: Mapping[int, Exited]
    stopped_at: float
    killed: bool


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
    ports = free_ports(config.workers, HOST)
    return plan(config, ports=ports, job_id=job_id, directory=directory, python=sys.executable, agent_pid=agent_pid)


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
    started = time.monotonic()
    out = screen(config.workers)
    with signals_into(events), guarded(job_id) as guard:
        specs = planned(config, job_id=job_id, directory=guard.directory, agent_pid=os.getpid())
        with _started(specs, guard, out, events, verbose=verbose) as (workers, pump):
            course = _supervise(workers, events, out, grace_seconds=config.grace_seconds)
            patience = 0.0 if course.killed else config.grace_seconds
            left = processes.end_leftovers(workers, job_id, grace_seconds=patience)
            if left and verbose:
                _announce(out, f"ended {left} more processes that the workers had started")
            give_up = _impatience(course.state.received, events)
            if pump is not None:
                pump.finish(give_up=give_up)
        outcome = _judge(course, specs)
        if outcome.failures:
            report = format_report(outcome.failures, workers=len(specs), started=started)
            out.message(report, style="bold red", give_up=give_up)
        return outcome


@contextlib.contextmanager
def _started(
    specs: tuple[WorkerSpec, ...], guard: Guard, out: Screen, events: "SimpleQueue[Event]", *, verbose: bool
) -> Iterator[tuple[tuple[Worker, ...], Pump | None]]:
    """Yield the workers, started, and what moves their output; after the block none of their processes is left."""
    piped = len(specs) > 1  # a single worker has the terminal for itself
    pump = Pump(out, lambda: events.put(Received(number=signal.SIGPIPE))) if piped else None
    workers: tuple[Worker, ...] = ()
    try:
        for spec in specs:
            worker = processes.start(spec, os.environ, events, piped=piped)
            workers += (worker,)
            guard.watch(worker.process.pid)
            if verbose:
                _announce(out, f"worker {spec.index} is process {worker.process.pid}")
            for stream, pipe in ((1, worker.process.stdout), (2, worker.process.stderr)):
                if pump is not None and pipe is not None:
                    pump.add(pipe.fileno(), stream=stream, worker=spec.index)
        yield workers, pump
    finally:
        for worker in workers:
            processes.send(worker, signal.SIGKILL)  # on the way of an error they still run
        processes.end_leftovers(workers, guard.job_id, grace_seconds=0.0)
        if pump is not None:
            pump.finish(give_up=lambda: True)  # done already, unless an error leads here
        processes.reap(workers, timeout_seconds=5.0)


def _supervise(
    workers: tuple[Worker, ...], events: "SimpleQueue[Event]", out: Screen, *, grace_seconds: float
) -> _Course:
    state = State(running=frozenset(worker.spec.index for worker in workers))
    exits: dict[int, Exited] = {}
    stopped_at, killed = float("inf"), False
    while state.phase not in (Phase.DONE, Phase.LOST):
        event = _next_event(events, state, workers)
        now = time.monotonic()
        if isinstance(event, Exited):
            exits[event.worker] = event
        before = state.phase
        state, actions = decide(state, event, now=now, grace_seconds=grace_seconds)
        if before is Phase.RUNNING and state.phase is not Phase.RUNNING:
            stopped_at = event.time if isinstance(event, Exited) else now
        killed = killed or state.phase is Phase.KILLING
        for action in actions:
            for index in sorted(action.workers):
                processes.send(workers[index], action.number)
        if state.phase is not before and (said := _announcement(state, event, grace_seconds)):
            _announce(out, said)
    return _Course(state=state, exits=exits, stopped_at=stopped_at, killed=killed)


def _next_event(events: "SimpleQueue[Event]", state: State, workers: tuple[Worker, ...]) -> Event:
    left = LOOK_SECONDS if state.deadline is None else state.deadline - time.monotonic()
    try:
        return events.get(timeout=min(LOOK_SECONDS, max(left, 0.0)))
    except Empty:
        recorded = (i for i in sorted(state.running) if workers[i].spec.error_file.exists())
        worker = next(recorded, None)
        return Tick() if worker is None else Recorded(worker=worker)


def _announce(out: Screen, text: str) -> None:
    """Tell the user; but do not wait long for a reader that takes nothing, because workers are to be supervised."""
    deadline = time.monotonic() + ANNOUNCE_SECONDS
    out.message(f"tfdist run: {text}", give_up=lambda: time.monotonic() > deadline)


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


def _judge(course: _Course, specs: tuple[WorkerSpec, ...]) -> Outcome:
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


def _impatience(received: int | None, events: "SimpleQueue[Event]") -> Callable[[], bool]:
    """Tell when to stop waiting for the reader of the output: at the next signal; soon, if one has ended the job."""
    deadline = time.monotonic() + (DRAIN_SECONDS if received is not None else float("inf"))
    return lambda: time.monotonic() > deadline or _interrupted(events)


def _interrupted(events: "SimpleQueue[Event]") -> bool:
    """Return whether a signal has arrived that nobody has looked at."""
    with contextlib.suppress(Empty):
        while True:
            event = events.get_nowait()
            if isinstance(event, Received) and event.number != signal.SIGPIPE:
                return True
    return False
