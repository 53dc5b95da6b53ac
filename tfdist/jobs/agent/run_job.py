"""The agent: starts the processes of a job, supervises them until all have ended, and leaves nothing behind.

`supervise` decides by the restart policies of the roles, `controller` looks and acts, and a placement starts processes.
"""

import contextlib
import os
import secrets
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

from tfdist.cluster import job_key
from tfdist.cluster.job_files import event_copy
from tfdist.errors import TfdistError
from tfdist.jobs.agent import running_jobs
from tfdist.jobs.agent.controller import Controller, look_seconds
from tfdist.jobs.agent.monitoring import Monitoring
from tfdist.jobs.agent.restart_reporter import (
    EventFile,
    RestartReporter,
    cause_of_attempt,
    failures_of,
    outcome_of,
    why_not_again,
)
from tfdist.jobs.agent.shared_job import Before, Job, Standby
from tfdist.jobs.agent.worker_group import (
    StatusChannel,
    WorkerGroup,
    announce,
    at_a_signal,
    impatience,
    started,
    supervise,
    unseen_signal,
)
from tfdist.jobs.connecting.tcp_joining import key_of_workers
from tfdist.jobs.launchers.launcher_table import LAUNCHERS
from tfdist.jobs.output import tf_log_filter
from tfdist.jobs.output.output_forwarder import Output, screen
from tfdist.jobs.placement.local_placement import LocalPlacement, free_addresses, streams_of_one
from tfdist.jobs.placement.placement_protocol import Factory, Placement
from tfdist.jobs.placement.warm_workers import WarmWorkers
from tfdist.jobs.placement.worker_factory import WorkerFactory
from tfdist.jobs.plan.host_plan import NoRoomError, places
from tfdist.jobs.plan.job_plan import plan
from tfdist.jobs.plan.launch_config import LaunchConfig, require_script
from tfdist.jobs.plan.roles import tasks
from tfdist.jobs.plan.worker_spec import BOTH, WorkerSpec
from tfdist.jobs.supervision.supervise import Decision, History, after_failure, decide, decide_restart, next_size
from tfdist.jobs.supervision.supervisor_state import Event, Next, Received, State, first_state, shown
from tfdist.processes import shared_memory
from tfdist.processes.job_resources import Guard, guarded
from tfdist.processes.worker_failure import Outcome, format_report, read_record
from tfdist.waiting import ENDING, Flag, handled


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
    count = len(tasks(config))
    if config.remote is None:
        addresses = free_addresses(count)
    elif config.remote.demand is not None:  # which nodes they are is not known before
        addresses = [(f"node-of-{index}", 10_000) for index in range(count)]
    else:  # hosts choose their ports when they are reached
        wanted = places(config.remote.hosts, count, servers=config.parameter_servers)
        addresses = [(host.address, 10_000 + port) for port, host in enumerate(wanted)]
    return plan(
        config, addresses=addresses, job_id=job_id, directory=directory, python=sys.executable, agent_pid=agent_pid
    )


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
    require_script(config)
    if not config.all_logs:
        out.noise = tf_log_filter.known_noise(has_gpu=tf_log_filter.has_nvidia_device())
    job_id = secrets.token_hex(8)
    begun = time.monotonic()
    least, most = config.range
    holds_states = config.is_elastic and not config.parameter_servers
    too_small = shared_memory.complaint(
        shared_memory.observe(), gpus=shared_memory.observe_gpus(), holds_states=holds_states
    )
    if too_small and config.remote is None:
        announce(out, f"warning: {too_small}")
    sizing = (signal.SIGUSR1, signal.SIGUSR2) if least < most else ()
    files = (running_jobs.place(os.environ, job_id),) if least < most else ()
    with signals_into(events, *sizing), guarded(job_id, in_memory=True, also=files, if_killed=if_killed) as guard:
        outcome, give_up = _run(config, guard, out, events, verbose=verbose)
        if outcome.failures:
            workers = len(tasks(config))
            report(format_report(outcome.failures, workers=workers, started=begun, shown=out.lends), give_up)
        return outcome


def names_of(config: LaunchConfig) -> list[str]:
    return [str(task) for task in tasks(replace(config, workers=config.range[1]))]


def _run(
    config: LaunchConfig, guard: Guard, out: Output, events: "SimpleQueue[Any]", *, verbose: bool
) -> tuple[Outcome, Callable[[], bool]]:
    """Run the job through all its starts; return also when to stop waiting for the reader of the output."""
    with contextlib.ExitStack() as stack:
        copy = str(event_copy(guard.memory)) if config.monitor else None
        file = stack.enter_context(contextlib.closing(EventFile(config.event_file, guard.job_id, copy=copy)))
        warm = stack.enter_context(contextlib.closing(WarmWorkers(config, guard, lambda text: announce(out, text))))
        factory = stack.enter_context(contextlib.closing(WorkerFactory(config, guard, warm.start)))
        reporter = RestartReporter(
            say=lambda text: announce(out, text),
            file=file,
            max_restarts=config.max_restarts,
            has_chief=bool(config.parameter_servers),
        )
        monitoring = None
        if config.monitor:
            # if the number of workers may change, this signal asks for one more
            resizable = config.range[0] < config.range[1]
            asked = Flag() if resizable else stack.enter_context(signal_sets(signal.SIGUSR1))
            announce(out, f"job {guard.job_id}: `tfdist watch {guard.job_id[:8]}` shows what it does")
            monitoring = Monitoring(
                guard.memory, file, lambda text: announce(out, text), asked, evicts=config.evict_stragglers
            )
            if config.exporters:
                file.write("parameters", start=0, parameters=parameters_of(config))
                monitoring.export(guard.job_id, config.exporters)
            stack.callback(monitoring.close)
        placement: Placement = LocalPlacement(guard, starter=factory.start)
        reserving: Placement = LocalPlacement(guard, starter=factory.fork)
        preparing: Factory = factory
        key = job_key.drawn()
        if config.remote is not None:
            # a job on this machine starts without what reaches others
            from tfdist.jobs.remote.remote_placement import RemotePlacement, Reserving

            key = config.remote.key or key
            LAUNCHERS[config.remote.launcher].require(config.remote.shell)
            elsewhere = stack.enter_context(
                contextlib.closing(
                    RemotePlacement(
                        config,
                        config.remote,
                        job_id=guard.job_id,
                        key=key,
                        say=lambda text: announce(out, text),
                        interrupted=at_a_signal(events),
                        memory=guard.memory if config.monitor else None,
                        end=lambda: events.put(Received(number=signal.SIGTERM)),
                    )
                )
            )
            placement, preparing, reserving = elsewhere, elsewhere, Reserving(elsewhere)
        standby = stack.enter_context(contextlib.closing(Standby(reserving, out, preparing, verbose=verbose)))
        job = Job(
            config=config,
            guard=guard,
            out=out,
            events=events,
            verbose=verbose,
            reporter=reporter,
            factory=preparing,
            placement=placement,
            standby=standby,
            control=stack.enter_context(_control(config, guard, out, events)),
            monitoring=monitoring,
            key=key_of_workers(bytes.fromhex(key), guard.job_id),
        )
        outcome, give_up = _starts(job)
        if monitoring is not None:
            monitoring.tell()
            words = [*(["-m"] if config.is_module else []), config.target, *config.arguments]
            monitoring.compare(config.strategy, config.workers, words)
            if config.trace is not None:
                monitoring.write_trace(config.trace)
        reporter.ended(outcome.exit_code)
        return outcome, give_up


def parameters_of(config: LaunchConfig) -> dict[str, Any]:
    names = ("workers", "strategy", "replicas_per_worker", "parameter_servers", "max_restarts")
    found = {name: getattr(config, name) for name in names}
    return {"script": shlex.join([config.target, *config.arguments]), **found}


@contextlib.contextmanager
def _control(
    config: LaunchConfig, guard: Guard, out: Output, events: "SimpleQueue[Any]"
) -> Iterator[running_jobs.Control | None]:
    least, most = config.range
    if least == most:
        yield None
        return
    with running_jobs.controlled(running_jobs.place(os.environ, guard.job_id), events, (least, most)) as control:
        text = (
            f"job {guard.job_id}: `tfdist resize {guard.job_id[:8]} N` changes the number of workers, {least} to {most}"
        )
        announce(out, text)
        yield control


def _starts(job: Job) -> tuple[Outcome, Callable[[], bool]]:
    before = Before(history=History(), replaced=0, size=job.config.workers)
    while True:
        job.reporter.start = before.history.starts
        if job.monitoring is not None:
            job.monitoring.begins(before.history.starts)
        try:
            with _present(job, before) as (channel, group):
                outcome, give_up, following = _start(job, channel, group, before)
        except NoRoomError as error:
            if not job.config.range[0] <= error.room < before.size:
                raise
            text = f"{error}\nThe job continues with {error.room} workers"
            job.say(text)
            if job.control is not None:
                job.control.answer(before.size, ok=False, text=text)
            before = replace(before, size=error.room)
            continue
        except TfdistError:
            received = unseen_signal(job.events, keep=True)
            if received is None:
                raise
            return Outcome.interrupted(received), lambda: True  # it was not waited for hosts any longer
        if following is None:
            return outcome, give_up
        received = unseen_signal(job.events, keep=True)
        if received is not None:
            job.say(f"{signal.Signals(received).name}: the job is not started again")
            return Outcome.interrupted(received), give_up
        before = following


@contextlib.contextmanager
def _present(job: Job, before: Before) -> Iterator[tuple[StatusChannel, WorkerGroup]]:
    reserve = job.standby.take(before.size)
    if reserve is not None:
        with reserve.held:
            job.standby.admit(reserve, job.events)
            yield reserve.channel, reserve.group
        return
    job.factory.wait(at_a_signal(job.events))
    # a single worker has the terminal for itself, except for known noise
    single = job.config.range[1] == 1 and not job.config.parameter_servers
    alone = single and not job.config.standby and job.out.lends and job.config.remote is None
    piped = streams_of_one(all_logs=job.config.all_logs) if alone else BOTH
    specs, channel = job.plan(before.size, before.history.starts, piped=piped)
    running = started(specs, job.placement, job.out, job.events, verbose=job.verbose)
    with contextlib.closing(channel), running as group:
        yield channel, group


def _start(
    job: Job, channel: StatusChannel, group: WorkerGroup, before: Before
) -> tuple[Outcome, Callable[[], bool], Before | None]:
    """Supervise started processes until none is left, and report what has happened.

    Return the outcome, the test for giving up on the output's reader, and the state before the next start, if any.
    """
    history, rules = before.history, job.rules(before.size)

    def step(state: State, event: Event, now: float) -> Next:
        return decide(state, event, now=now, rules=rules)

    job.reporter.started([handle.pid for handle in group.members])
    controller = Controller(job, rules, channel, group, starts=history.starts)
    attempt = supervise(
        group,
        first_state(rules, restarts=history.failures, replaced=before.replaced),
        step,
        job.events,
        look=controller.look,
        look_seconds=look_seconds,
        perform=controller.perform,
    )
    seen, state = controller.seen(), attempt.state
    controller.tell_stepping(seen)
    controller.note_warnings()
    job.reporter.left(seen)
    failures = failures_of(
        attempt, rules, {index: read_record(group.specs[index].error_file) for index in attempt.exits}
    )
    cause = cause_of_attempt(attempt, rules, failures, seen)
    if cause is not None:
        history = after_failure(history, cause.signature)
    same_failures = rules.roles[0].restart_policy.same_failures
    decision = decide_restart(state, history, same_failures=same_failures, min_workers=rules.min_workers)
    again = decision is Decision.RESTART
    give_up = at_a_signal(job.events) if again else impatience(state.received, job.events)
    group.end_leftovers(grace_seconds=0.0 if attempt.killed or again else rules.grace_seconds)
    size = next_size(state) if rules.in_step else before.size
    if again and job.config.remote is None and unseen_signal(job.events, keep=True) is None:
        job.standby.go_on(size)  # what the agent still has to do need not come first
    group.finish(give_up=give_up)
    if cause is not None:
        why_not = why_not_again(attempt, rules, decision, history)
        job.reporter.failed(cause, begun=job.begun, again=again, why_not=why_not)
    elif state.halt is not None and state.halted:
        job.reporter.halted(state.halt.purpose.value, next_size(state) if again else 0, state.halt.asked)
    if decision is Decision.TOO_FEW_WORKERS:
        job.say(f"{shown(next_size(state))} would be left, and --min-workers is {rules.min_workers}: the job ends")
    following = Before(history=replace(history, starts=history.starts + 1), replaced=state.replaced, size=size)
    return outcome_of(attempt, rules, failures, decision), give_up, following if again else None


@contextlib.contextmanager
def signals_into(events: "SimpleQueue[Any]", *more: signal.Signals) -> Iterator[None]:
    """Turn signals that end a job into events; does nothing outside of the main thread, which alone has handlers."""

    def put(number: int, frame: FrameType | None) -> None:
        events.put(Received(number=number))

    with handled(put, (*ENDING, *more) if _in_main() else ()):
        yield


@contextlib.contextmanager
def signal_sets(number: signal.Signals) -> Iterator[Flag]:
    """Yield a flag that the signal sets; outside of the main thread, or if it is ignored, never."""
    asked = Flag()
    with handled(lambda *_: asked.set(), (number,) if _in_main() else ()):
        yield asked


def _in_main() -> bool:
    return threading.current_thread() is threading.main_thread()
