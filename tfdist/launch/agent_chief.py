"""Runs a job of a chief and the tasks that serve it, and starts it again when what the tasks held is lost.

The decisions are in `supervise_chief` and `hangs`, the processes in `generation`. The chief alone reports its steps:
what it waits for is the other tasks, whose answers it has deadlines for.
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
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
from tfdist.launch.hangs import Hang, Hung, Patience, Seen
from tfdist.launch.nursery import Nursery
from tfdist.launch.output import Output
from tfdist.launch.plan import HOST, progress_file
from tfdist.launch.plan_chief import plan_chief, tasks, tasks_file
from tfdist.launch.processes import is_stopped
from tfdist.launch.progress import Page
from tfdist.launch.resources import Guard
from tfdist.launch.story import Cause, Story, kind_of
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

    with contextlib.ExitStack() as stack:
        file = stack.enter_context(contextlib.closing(EventFile(config.event_file, guard.job_id)))
        story = Story(say=lambda text: announce(out, text), file=file, max_restarts=config.max_restarts, has_chief=True)
        nursery = stack.enter_context(contextlib.closing(Nursery(config, guard)))
        job = _Job(
            config=config,
            guard=guard,
            out=out,
            events=events,
            rules=rules,
            story=story,
            nursery=nursery,
            verbose=verbose,
        )
        outcome, give_up = _starts(job)
        story.ended(outcome.exit_code)
        return outcome, give_up


@dataclass(kw_only=True)
class _Job:
    """What all starts of a job share."""

    config: LaunchConfig
    guard: Guard
    out: Output
    events: "SimpleQueue[Event]"
    rules: Rules
    story: Story
    nursery: Nursery
    verbose: bool
    step_seconds: tuple[float, ...] = ()  # of the last start that had enough steps


def _starts(job: _Job) -> tuple[Outcome, Callable[[], bool]]:
    config, guard, events, rules = job.config, job.guard, job.events, job.rules

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
            memory=guard.memory,
            restarts=state.job_restarts,
        )
        job.story.start = state.job_restarts
        page = Page(progress_file(guard.memory, state.job_restarts), workers=1, chief=True)
        running = started(specs, guard, job.out, events, verbose=job.verbose, piped=True, starter=job.nursery.start)
        with contextlib.closing(page), running as generation:
            job.story.started([one.pid for one in generation.everybody])
            lookout = _Lookout(job, page, generation)
            course = supervise(generation, state, step, events, look=lookout.look, perform=lookout.perform)
            state = course.state
            lookout.close(course)
            again = state.verdict is Verdict.AGAIN
            give_up = at_a_signal(events) if again else impatience(state.received, events)
            generation.finish(grace_seconds=0.0 if course.killed else config.grace_seconds, give_up=give_up)
        if not again:
            record = read_record(specs[CHIEF].error_file)
            return judge(course, rules, record), give_up
        received = unseen_signal(events)
        if received is not None:
            announce(job.out, f"{signal.Signals(received).name}: the job is not started again")
            return Outcome.interrupted(received), give_up
        job.nursery.wait(at_a_signal(events))
        state = first_state(rules, before=state)


class _Lookout:
    """Looks at the chief and its tasks, and writes down what became of them."""

    def __init__(self, job: _Job, page: Page, generation: Generation) -> None:
        self._job = job
        self._page = page
        self._generation = generation
        self._watch = hangs.begin(time.monotonic(), job.step_seconds)
        self._hang: Hang | None = None
        self._steps = False
        self._write_tasks()

    def look(self, state: ChiefState) -> Event | Hung:
        """Return what there is to see."""
        seen = self._seen()
        self._tell_stepping(seen)
        if self._steps and state.phase is Phase.RUNNING:
            self._job.nursery.tend(len(self._job.rules.tasks))
        found = recorded(self._generation, state)
        if found is not None or state.phase is not Phase.RUNNING or not self._job.rules.max_restarts:
            return found or Tick()
        present, names = self._generation.present, self._job.rules.tasks
        stopped = {i: str(names[i]) for i in state.running if i != CHIEF and is_stopped(present[i])}
        config = self._job.config
        patience = Patience(hang_seconds=config.hang_seconds, stall_seconds=config.stall_seconds)
        chief = [seen] if CHIEF in state.running else []
        self._watch, hang = hangs.look(self._watch, chief, time.monotonic(), patience, stopped_tasks=stopped)
        if self._watch.ticks >= hangs.FEWEST:
            self._job.step_seconds = self._watch.samples
        if hang is None:
            return Tick()
        self._hang = hang
        return Hung(hang=hang)

    def perform(self, action: Action) -> None:
        """Do what was decided."""
        self._tell_stepping(self._seen())  # before anything is said that came later
        self._generation.perform(action)
        if isinstance(action, Start):
            self._hang = None  # it was that of the one that is replaced, or of nobody
            self._job.story.replaces(str(self._job.rules.tasks[action.worker]))
            self._write_tasks()

    def close(self, course: Course[ChiefState]) -> None:
        """Write down how the start has ended."""
        state, seen = course.state, self._seen()
        self._tell_stepping(seen)
        self._job.story.left([seen])
        if state.verdict not in (Verdict.AGAIN, Verdict.FAILED) or state.cause is None:
            return
        ended = course.exits.get(state.cause)
        when = time.monotonic() if ended is None else ended.time
        if self._hang is not None and self._hang.worker == state.cause:
            kind, text = "hang", self._hang.text
        elif ended is None:
            kind, text = "exit", "it does not end"
        else:
            kind, text = kind_of(ended.returncode, recorded=ended.recorded), how_it_ended(ended.returncode)
        cause = Cause(worker=CHIEF, kind=kind, text=text, time=when, progress=seen.progress)
        again, task = state.verdict is Verdict.AGAIN, str(self._job.rules.tasks[state.cause])
        self._job.story.noted(cause, again=again, task=task)

    def _seen(self) -> Seen:
        chief = self._generation.present[CHIEF]
        name = str(self._job.rules.tasks[CHIEF])
        return Seen(worker=CHIEF, progress=self._page.read(CHIEF), stopped=is_stopped(chief), name=name)

    def _tell_stepping(self, seen: Seen) -> None:
        """Tell, once, that the chief has ended a step."""
        if not self._steps and seen.progress.ticked is not None:
            self._steps = True
            self._job.story.stepping([seen])
            self._job.nursery.prepare(seen.progress.pid)

    def _write_tasks(self) -> None:
        """Say which process is which task: the chief lets faults happen to them."""
        path = tasks_file(self._job.guard.directory)
        names = self._job.rules.tasks
        pids = {str(names[index]): worker.pid for index, worker in self._generation.present.items()}
        temporary = path.with_name(f"{path.name}.new")
        with contextlib.suppress(OSError):  # a full disk: a fault is refused then, and nothing else
            temporary.write_text(json.dumps(pids), encoding="utf-8")
            temporary.replace(path)


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
