"""Runs a job of a chief and the tasks that serve it, and starts it again when what the tasks held is lost.

The decisions are in `supervise_chief`, the processes in `generation`.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from queue import SimpleQueue

from tfdist.cluster.ports import free_ports
from tfdist.launch import hangs
from tfdist.launch.config import LaunchConfig
from tfdist.launch.events import EventFile
from tfdist.launch.failure import Failure, Outcome, Record, how_it_ended, own_failures, read_record
from tfdist.launch.generation import (
    Course,
    Generation,
    announce,
    impatience,
    recorded,
    started,
    supervise,
    unseen_signal,
)
from tfdist.launch.hangs import Hung, Patience
from tfdist.launch.output import Output
from tfdist.launch.plan import HOST
from tfdist.launch.plan_chief import plan_chief, tasks
from tfdist.launch.processes import is_stopped
from tfdist.launch.resources import Guard
from tfdist.launch.supervise import Action, Event, Phase, Start, Tick
from tfdist.launch.supervise_chief import CHIEF, ChiefState, Rules, Verdict, decide_chief, first_state


def run_chief(
    config: LaunchConfig, guard: Guard, out: Output, events: "SimpleQueue[Event]", *, verbose: bool
) -> tuple[Outcome, Callable[[], bool]]:
    """Run the job to its end, through all its starts.

    Args:
        config: the request, with parameter servers.
        guard: of the job.
        out: where the output goes.
        events: what happens; signals arrive there.
        verbose: whether to tell what is started and what ends.
    Returns:
        The outcome, and a function that tells when to stop waiting for the reader of the output.
    Raises:
        ConfigError: there are not enough ports.
        TfdistError: a process cannot be started.
    """
    everybody = tasks(config)
    rules = Rules(tasks=everybody, max_restarts=config.max_restarts, grace_seconds=config.grace_seconds)

    with contextlib.closing(EventFile(config.event_file, guard.job_id)) as file:
        outcome, give_up, state = _starts(config, guard, out, events, rules, file, verbose=verbose)
        file.write("ended", start=state.job_restarts, exit_code=outcome.exit_code, restarts=state.job_restarts)
        return outcome, give_up


def _starts(
    config: LaunchConfig,
    guard: Guard,
    out: Output,
    events: "SimpleQueue[Event]",
    rules: Rules,
    file: EventFile,
    *,
    verbose: bool,
) -> tuple[Outcome, Callable[[], bool], ChiefState]:
    def step(state: ChiefState, event: Event | Hung, now: float) -> tuple[ChiefState, tuple[Action, ...]]:
        return decide_chief(state, event, now=now, rules=rules)

    state, everybody = first_state(rules), rules.tasks
    ports: list[int] = []
    while True:
        ports = other_ports(len(everybody), but=ports)
        specs = plan_chief(
            config,
            ports=ports,
            job_id=guard.job_id,
            directory=guard.directory,
            python=sys.executable,
            agent_pid=os.getpid(),
            restarts=state.job_restarts,
        )
        with started(specs, guard, out, events, verbose=verbose, piped=True) as generation:
            file.write(
                "started",
                start=state.job_restarts,
                workers=len(specs),
                pids=[one.pid for one in generation.everybody],
            )
            lookout = _Lookout(generation, rules, config, file, restarts=state.job_restarts)
            course = supervise(generation, state, step, events, look=lookout.look, perform=lookout.perform)
            state = course.state
            if state.verdict in (Verdict.AGAIN, Verdict.FAILED) and state.cause is not None:
                ended = course.exits.get(state.cause)
                text = "it does not end" if ended is None else how_it_ended(ended.returncode)
                file.write("failed", start=state.job_restarts, task=str(rules.tasks[state.cause]), text=text)
            again = state.verdict is Verdict.AGAIN
            give_up = at_a_signal(events) if again else impatience(state.received, events)
            generation.finish(grace_seconds=0.0 if course.killed else config.grace_seconds, give_up=give_up)
        if not again:
            record = read_record(specs[CHIEF].error_file)
            return judge(course, rules, record), give_up, state
        received = unseen_signal(events)
        if received is not None:
            announce(out, f"{signal.Signals(received).name}: the job is not started again")
            return Outcome.interrupted(received), give_up, state
        state = first_state(rules, before=state)


class _Lookout:
    """Looks for recorded failures, and for processes that are stopped."""

    def __init__(
        self, generation: Generation, rules: Rules, config: LaunchConfig, file: EventFile, *, restarts: int
    ) -> None:
        self._generation = generation
        self._rules = rules
        self._file = file
        self._restarts = restarts
        self._patience = Patience(hang_seconds=config.hang_seconds)
        self._watch = hangs.begin(time.monotonic())

    def look(self, state: ChiefState) -> Event | Hung:
        """Return what there is to see."""
        found = recorded(self._generation, state)
        if found is not None or state.phase is not Phase.RUNNING or not self._rules.max_restarts:
            return found or Tick()
        present = self._generation.present
        names = {index: str(self._rules.tasks[index]) for index in state.running if is_stopped(present[index])}
        self._watch, hang = hangs.look_for_stopped(self._watch, names, time.monotonic(), self._patience)
        return Tick() if hang is None else Hung(hang=hang)

    def perform(self, action: Action) -> None:
        """Do what was decided."""
        if isinstance(action, Start):
            self._file.write("replaced", start=self._restarts, task=str(self._rules.tasks[action.worker]))
        self._generation.perform(action)


def other_ports(count: int, *, but: Collection[int]) -> list[int]:
    """Return free ports, none of which an earlier start of the job had: what is left of it must not be met there.

    Example:
        >>> len(other_ports(2, but=[4001]))
        2
    """
    return [port for port in free_ports(count + len(but), HOST) if port not in but][:count]


def judge(course: Course[ChiefState], rules: Rules, record: Record | None) -> Outcome:
    """Return the outcome of a job that is not started again.

    Args:
        course: what happened since the last start.
        rules: of the job.
        record: what the chief wrote about its own failure.
    """
    state = course.state
    if state.verdict is Verdict.INTERRUPTED and state.received is not None:
        return Outcome.interrupted(state.received)
    failures = _failures(course, rules, record) if state.verdict is Verdict.FAILED else ()
    if failures:
        return Outcome(exit_code=failures[0].exit_code or 1, failures=failures)  # a server that ends well fails too
    return Outcome(exit_code=1 if state.verdict is Verdict.FAILED or state.phase is Phase.LOST else 0)


def _failures(course: Course[ChiefState], rules: Rules, record: Record | None) -> tuple[Failure, ...]:
    """Return the cause, and what the chief made of it."""
    ended: Mapping[int, Failure] = {
        index: Failure(
            worker=index,
            name=str(rules.tasks[index]),
            time=record.clock if record is not None and index == CHIEF else end.time,
            returncode=end.returncode,
            record=record if index == CHIEF else None,
        )
        for index, end in course.exits.items()
    }
    cause = ended.get(CHIEF if course.state.cause is None else course.state.cause)
    if cause is None:  # it has failed, and the kernel holds it
        return ()
    chief = [ended[CHIEF]] if CHIEF in ended and cause.worker != CHIEF else []
    later = own_failures(chief, stopped_at=course.stopped_at, by_signal=course.state.received is not None)
    first = min([cause.time, *(one.time for one in later)])  # the chief may have seen the end before the agent did
    return (replace(cause, time=first), *later)


def at_a_signal(events: "SimpleQueue[Event]") -> Callable[[], bool]:
    """Tell when not to wait for the reader of the output between two starts: when a signal arrives.

    Args:
        events: looked at, and kept.
    """
    return lambda: unseen_signal(events, keep=True) is not None
