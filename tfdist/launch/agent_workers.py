"""Runs a job of workers that wait for each other, and starts them again when one fails or another number is asked for.

The decisions are in `supervise_workers`, `hangs` and `restarts`, the processes in `generation`.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any

from tfdist.launch import hangs, jobs
from tfdist.launch.agent_chief import at_a_signal, other_ports
from tfdist.launch.config import LaunchConfig
from tfdist.launch.events import EventFile
from tfdist.launch.failure import Failure, Outcome, own_failures, read_record
from tfdist.launch.generation import (
    LOOK_SECONDS,
    Course,
    Generation,
    announce,
    impatience,
    recorded,
    started,
    supervise,
    unseen_signal,
)
from tfdist.launch.hangs import Hung, Patience, Seen
from tfdist.launch.nursery import Nursery
from tfdist.launch.output import Output
from tfdist.launch.plan import WorkerSpec, plan, progress_file
from tfdist.launch.processes import is_stopped
from tfdist.launch.progress import HALTED, Page, Phase
from tfdist.launch.resources import Guard
from tfdist.launch.restarts import SAME_FAILURES, Follow, History, after_failure, follow, next_size
from tfdist.launch.standby import Standby
from tfdist.launch.story import Story, cause_of
from tfdist.launch.supervise import Phase as JobPhase
from tfdist.launch.supervise import Send
from tfdist.launch.supervise_workers import (
    GoOn,
    Looked,
    Rules,
    Stop,
    StopAfter,
    WorkersAction,
    WorkersEvent,
    WorkersState,
    decide_workers,
    first_state,
    shown,
)

HALT_LOOK_SECONDS = 0.002  # how often the agent looks while workers come to their next step
LEFT_CODE = 128 + signal.SIGTERM


@dataclass(kw_only=True)
class _Job:
    """What all starts of a job share."""

    config: LaunchConfig
    guard: Guard
    out: Output
    events: "SimpleQueue[Any]"
    verbose: bool
    story: Story
    nursery: Nursery
    standby: Standby
    control: jobs.Control | None
    begun: float = field(default_factory=time.monotonic)
    step_seconds: tuple[float, ...] = ()  # of the last start that had enough steps
    ports: list[int] = field(default_factory=list)  # of the last workers that were started

    def say(self, text: str) -> None:
        announce(self.out, text)

    def plan(self, workers: int, starts: int) -> tuple[WorkerSpec, ...]:
        """Return what to start, on ports that those before did not have."""
        least, most = self.config.range  # of which the defaults follow from the number of workers
        self.ports = other_ports(workers, but=self.ports)
        return plan(
            replace(self.config, workers=workers, min_workers=least, max_workers=most),
            ports=self.ports,
            job_id=self.guard.job_id,
            directory=self.guard.directory,
            python=sys.executable,
            agent_pid=os.getpid(),
            memory=self.guard.memory,
            restarts=starts,
        )


def run_workers(
    config: LaunchConfig, guard: Guard, out: Output, events: "SimpleQueue[Any]", *, verbose: bool
) -> tuple[Outcome, Callable[[], bool]]:
    """Run the job to its end, through all its starts.

    Args:
        config: the request, without parameter servers.
        guard: of the job.
        out: where the output goes.
        events: what happens; signals arrive there.
        verbose: whether to tell what is started and what ends.
    Returns:
        The outcome, and a function that tells when to stop waiting for the reader of the output.
    Raises:
        ConfigError: there are not enough ports.
        StorageError: the event file cannot be written.
        TfdistError: a process cannot be started.
    """
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(contextlib.closing(EventFile(config.event_file, guard.job_id)))
        nursery = stack.enter_context(contextlib.closing(Nursery(config, guard)))
        standby = stack.enter_context(contextlib.closing(Standby(guard, out, nursery, verbose=verbose)))
        story = Story(say=lambda text: announce(out, text), file=file, max_restarts=config.max_restarts)
        control = stack.enter_context(_control(config, guard, out, events))
        job = _Job(
            config=config,
            guard=guard,
            out=out,
            events=events,
            verbose=verbose,
            story=story,
            nursery=nursery,
            standby=standby,
            control=control,
        )
        outcome, give_up = _starts(job)
        story.ended(outcome.exit_code)
        return outcome, give_up


@contextlib.contextmanager
def _control(
    config: LaunchConfig, guard: Guard, out: Output, events: "SimpleQueue[Any]"
) -> Iterator[jobs.Control | None]:
    least, most = config.range
    if least == most:
        yield None
        return
    with jobs.controlled(jobs.place(os.environ, guard.job_id), events, (least, most)) as control:
        text = (
            f"job {guard.job_id}: `tfdist resize {guard.job_id[:8]} N` changes the number of workers, {least} to {most}"
        )
        announce(out, text)
        yield control


def _starts(job: _Job) -> tuple[Outcome, Callable[[], bool]]:
    history, size = History(), job.config.workers
    while True:
        job.story.start = history.starts
        with _present(job, size, history.starts) as (page, generation):
            specs = generation.specs
            course, follows, history, give_up = _start(job, page, generation, history)
        if follows is not Follow.AGAIN:
            return _outcome(course, specs, follows), give_up
        received = unseen_signal(job.events, keep=True)
        if received is not None:
            job.say(f"{signal.Signals(received).name}: the job is not started again")
            return Outcome.interrupted(received), give_up
        job.nursery.wait(at_a_signal(job.events))
        history = replace(history, starts=history.starts + 1)
        size = next_size(course.state)


@contextlib.contextmanager
def _present(job: _Job, workers: int, starts: int) -> Iterator[tuple[Page, Generation]]:
    """Yield workers, those in reserve or new ones, and the page that they report to."""
    reserve = job.standby.take(workers)
    if reserve is not None:
        with reserve.held:
            job.standby.admit(reserve, job.events)
            yield reserve.page, reserve.generation
        return
    specs = job.plan(workers, starts)
    # a single worker has the terminal for itself
    piped = job.config.range[1] > 1 or job.config.standby or not job.out.lends
    page = Page(progress_file(job.guard.memory, starts), workers)
    running = started(
        specs, job.guard, job.out, job.events, verbose=job.verbose, piped=piped, starter=job.nursery.start
    )
    with contextlib.closing(page), running as generation:
        yield page, generation


def _start(
    job: _Job, page: Page, generation: Generation, history: History
) -> tuple[Course[WorkersState], Follow, History, Callable[[], bool]]:
    """Supervise workers that were started until none is left; return what has happened, and what follows."""
    config, specs = job.config, generation.specs
    least, most = config.range
    rules = Rules(
        grace_seconds=config.grace_seconds,
        may_restart=history.failures < config.max_restarts,
        min_workers=least,
        max_workers=most,
    )

    def step(state: WorkersState, event: WorkersEvent, now: float) -> tuple[WorkersState, tuple[WorkersAction, ...]]:
        return decide_workers(state, event, now=now, rules=rules)

    job.story.started([worker.pid for worker in generation.everybody])
    lookout = _Lookout(job, page, generation, starts=history.starts)
    course = supervise(
        generation,
        first_state(len(specs)),
        step,
        job.events,
        look=lookout.look,
        look_seconds=_look_seconds,
        perform=lookout.perform,
    )
    seen = lookout.seen(range(len(specs)))
    lookout.tell_stepping(seen)
    job.story.left(seen)
    state, failures = course.state, _failures(course, specs)
    cause = cause_of(failures, state.hang, seen, course.stopped_at) if state.failed else None
    if cause is not None:
        history = after_failure(history, cause.signature)
    follows = follow(state, history, max_restarts=config.max_restarts, min_workers=least)
    again = follows is Follow.AGAIN
    give_up = at_a_signal(job.events) if again else impatience(state.received, job.events)
    generation.finish(grace_seconds=0.0 if course.killed or again else config.grace_seconds, give_up=give_up)
    if cause is not None:
        job.story.failed(cause, begun=job.begun, again=again, why_not=_why_not(follows, history, config))
    elif state.halt is not None and state.halted:
        job.story.halted(state.halt.purpose.value, next_size(state) if again else 0, state.halt.asked)
    if follows is Follow.LEFT:
        job.say(f"{shown(next_size(state))} would be left, and --min-workers is {least}: the job ends")
    return course, follows, history, give_up


class _Lookout:
    """Looks at the workers of a start, and tells them what was decided."""

    def __init__(self, job: _Job, page: Page, generation: Generation, *, starts: int) -> None:
        self._starts = starts
        self._job = job
        self._page = page
        self._generation = generation
        self._watch = hangs.begin(time.monotonic(), job.step_seconds)
        self._stepping = ""

    def look(self, state: WorkersState) -> WorkersEvent:
        """Return what there is to see."""
        found = recorded(self._generation, state, but=None if state.halt is None else HALTED)
        if found is not None:
            return found
        seen = self.seen(state.running)
        self.tell_stepping(seen)
        if self._stepping and state.halt is None and state.phase is JobPhase.RUNNING:
            self._job.nursery.tend(state.wanted)
            if self._job.config.standby and not any(one.progress.phase is Phase.ENDED for one in seen):
                self._job.standby.tend(state.wanted, self._plan_standby)
        if self._stepping and self._job.control is not None and state.halt is None and state.wanted == state.size:
            self._job.control.answer(state.size, ok=True, text=self._stepping)
        is_looked_at = state.phase is JobPhase.RUNNING or state.halt is not None
        if is_looked_at and self._job.config.max_restarts:
            config = self._job.config
            patience = Patience(hang_seconds=config.hang_seconds, stall_seconds=config.stall_seconds)
            self._watch, hang = hangs.look(self._watch, seen, time.monotonic(), patience)
            if self._watch.ticks >= hangs.FEWEST:
                self._job.step_seconds = self._watch.samples
            if hang is not None and state.phase is not JobPhase.KILLING:
                return Hung(hang=hang)
        said = [one.progress for one in seen]
        over = state.halt is not None and all(progress.phase is Phase.ENDED for progress in said)
        return Looked(
            positions=tuple(progress.position for progress in said),
            steps=any(p.position.tick >= 0 for p in said) and not any(p.phase is Phase.ENDED for p in said),
            leaving=frozenset(one.worker for one in seen if one.progress.leaves),
            ended_for=time.monotonic() - max(progress.changed for progress in said) if over and said else 0.0,
        )

    def _plan_standby(self) -> tuple[tuple[WorkerSpec, ...], Page]:
        workers, starts = len(self._generation.specs), self._starts + 1
        return self._job.plan(workers, starts), Page(
            progress_file(self._job.guard.memory, starts), workers, reserve=True
        )

    def seen(self, workers: "frozenset[int] | range") -> list[Seen]:
        """Return these workers as they are now."""
        present = self._generation.present
        return [Seen(worker=w, progress=self._page.read(w), stopped=is_stopped(present[w])) for w in sorted(workers)]

    def tell_stepping(self, seen: list[Seen]) -> None:
        """Tell, once, that all workers have ended a step."""
        if not self._stepping and seen and all(one.progress.ticked is not None for one in seen):
            self._stepping = self._job.story.stepping(seen)
            self._job.nursery.prepare(seen[0].progress.pid)

    def perform(self, action: WorkersAction) -> None:
        """Do what was decided."""
        if isinstance(action, Stop):
            self._page.ask_to_halt()
        elif isinstance(action, StopAfter):
            self._page.set_target(action.tick)
        elif isinstance(action, GoOn):
            self._page.take_back()
            if self._job.control is not None:
                self._job.control.answer(None, ok=False, text="not all workers came to a step; their number stays")
        else:
            if isinstance(action, Send) and action.number != signal.SIGKILL:
                self._page.end()
            self._generation.perform(action)


def _look_seconds(state: WorkersState) -> float:
    coming = state.halt is not None and state.halt.target is None
    return HALT_LOOK_SECONDS if coming else LOOK_SECONDS


def _why_not(follows: Follow, history: History, config: LaunchConfig) -> str:
    if follows is Follow.STALLED:
        return f"that came {SAME_FAILURES} times in a row at the same step, so the job is not started again"
    if follows is Follow.END and config.max_restarts:
        count = f"{history.failures - 1} of {config.max_restarts} times (--max-restarts)"
        return f"the workers were started again {count}, so the job fails"
    return ""


def _failures(course: Course[WorkersState], specs: tuple[WorkerSpec, ...]) -> tuple[Failure, ...]:
    """Return the workers that failed on their own, the root cause first."""
    candidates = []
    for worker, ended in course.exits.items():
        if worker not in course.state.halted:
            record = read_record(specs[worker].error_file)
            when = record.clock if record is not None else ended.time
            candidates.append(Failure(worker=worker, time=when, returncode=ended.returncode, record=record))
    return own_failures(candidates, stopped_at=course.stopped_at, by_signal=course.state.received is not None)


def _outcome(course: Course[WorkersState], specs: tuple[WorkerSpec, ...], follows: Follow) -> Outcome:
    failures, state = _failures(course, specs), course.state
    if follows is Follow.LEFT:
        return Outcome(exit_code=LEFT_CODE)
    if failures and state.hang is None:
        return Outcome(exit_code=failures[0].exit_code, failures=failures)
    if state.received is not None:
        return Outcome.interrupted(state.received)
    return Outcome(exit_code=1 if state.failed or state.phase is JobPhase.LOST else 0)
