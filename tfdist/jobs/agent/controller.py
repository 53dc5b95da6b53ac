"""The view of one start of a job: what its processes report, and the actions that follow."""

import contextlib
import json
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from tfdist.cluster.job_files import processes_file, stacks_file, tasks_file
from tfdist.jobs.agent.shared_job import Job
from tfdist.jobs.agent.worker_group import LOOK_SECONDS, StatusChannel, WorkerGroup, recorded
from tfdist.jobs.supervision import hangs
from tfdist.jobs.supervision.evicting import Means, may_evict
from tfdist.jobs.supervision.hangs import Hang, Hung, Patience, Seen
from tfdist.jobs.supervision.supervisor_state import (
    Action,
    Event,
    Evict,
    GoOn,
    Looked,
    Phase,
    Rules,
    Send,
    Start,
    State,
    Stop,
    StopAfter,
    Tick,
)
from tfdist.monitor.phases import Activity
from tfdist.monitor.stacks.stack_requests import Target, apart, ask, lines
from tfdist.monitor.status import HALTED
from tfdist.storage.files import write_whole

HALT_LOOK_SECONDS = 0.002  # how often the agent looks while workers come to their next step
# to collect the stacks of hanging processes before they are killed; it delays the restart
_STACKS_SECONDS = 1.0
_MOST_FRAMES, _MOST_PROCESSES = 6, 8


def look_seconds(state: State) -> float:
    coming = state.halt is not None and state.halt.target is None
    return HALT_LOOK_SECONDS if coming else LOOK_SECONDS


class ProcessReport:
    """The processes of one start on this host by task, for `tfdist stacks` and for reports of hangs."""

    def __init__(self, job: Job, rules: Rules, group: WorkerGroup, *, starts: int) -> None:
        self._job = job
        self._rules = rules
        self._group = group
        self._starts = starts
        self._told: set[tuple[int | None, float]] = set()

    def targets(self) -> tuple[Target, ...]:
        """Return the running processes, each with the file to which it writes its stacks."""
        memory = self._job.guard.memory
        tasks = [(self._rules.task(index), handle) for index, handle in sorted(self._group.present.items())]
        return tuple(
            Target(name=str(task), pid=handle.pid, file=stacks_file(memory, self._starts, task))
            for task, handle in tasks
        )

    def write(self) -> None:
        made = [{"task": one.name, "pid": one.pid, "file": str(one.file)} for one in self.targets()]
        _write(processes_file(self._job.guard.memory), made)

    def tell(self, hang: Hang) -> None:
        """Report the stacks of all processes, once per hang. A process stopped by SIGSTOP needs no report."""
        stopped = hang.worker is not None and self._group.present[hang.worker].is_stopped
        if stopped or (hang.worker, hang.since) in self._told:
            return
        self._told.add((hang.worker, hang.since))
        found = ask(self.targets(), seconds=_STACKS_SECONDS, spies=False)
        different = apart({one.name: one.waits for one in found})
        shown = [line for one in found[:_MOST_PROCESSES] for line in lines(one, most=_MOST_FRAMES)]
        left = [f"and {len(found) - _MOST_PROCESSES} more"] if len(found) > _MOST_PROCESSES else []
        text = ["where the processes stand", *([different] if different else []), *shown, *left]
        self._job.say("\n  ".join(text))
        self._job.reporter.file.write(
            "stacks", start=self._starts, text=different or hang.text, processes=[one.as_json() for one in found]
        )


class Controller:
    def __init__(self, job: Job, rules: Rules, channel: StatusChannel, group: WorkerGroup, *, starts: int) -> None:
        self._job = job
        self._rules = rules
        self._channel = channel
        self._group = group
        self._starts = starts
        self._watch = hangs.begin(time.monotonic(), job.step_seconds)
        self._reporting = sorted(rules.scripts(range(len(rules.members))))
        self._stepping = ""
        self._report = None if job.config.remote is not None else ProcessReport(job, rules, group, starts=starts)
        self._write_tasks()

    def look(self, state: State) -> Event:
        """Look at the workers; return the event that follows."""
        if self._job.monitoring is not None:
            self._job.monitoring.look()
        found = recorded(self._group, state, but=None if state.halt is None else HALTED)
        if found is not None:
            return found
        seen = self.seen(state.running)
        self.tell_stepping(seen)
        self.note_warnings()
        self._prepare(state, seen)
        hang = self._hang(state, seen)
        if hang is not None:
            if self._report is not None:
                self._report.tell(hang)
            return Hung(hang=hang)
        if not self._rules.in_step:
            return Tick()  # only the chief steps
        evict = self._straggler(state, seen)
        if evict is not None:
            return evict
        said = [one.status for one in seen]
        over = state.halt is not None and all(status.activity is Activity.ENDED for status in said)
        return Looked(
            positions=tuple(progress.position for progress in said),
            steps=any(p.position.step >= 0 for p in said) and not any(p.activity is Activity.ENDED for p in said),
            leaving=frozenset(one.worker for one in seen if one.status.leaves),
            ended_for=time.monotonic() - max(progress.changed for progress in said) if over and said else 0.0,
        )

    def _straggler(self, state: State, seen: list[Seen]) -> Evict | None:
        config, monitoring, standby = self._job.config, self._job.monitoring, self._job.standby
        if not config.evict_stragglers or monitoring is None or not may_evict(state):
            return None
        if config.standby and standby.is_starting:
            return None
        means = Means(
            workers=state.size,
            min_workers=self._rules.min_workers,
            has_standby=standby.is_ready,
            keeps_state=all(one.status.done is not None for one in seen),
            is_on_one_host=config.remote is None,
        )
        return monitoring.straggler(config.evict_seconds, means)

    def seen(self, running: Iterable[int] | None = None) -> list[Seen]:
        """Return the present state of the processes that report: all of them, or only the running ones."""
        reporting = self._reporting if running is None else [one for one in self._reporting if one in running]
        return [
            Seen(
                worker=index,
                status=self._channel.read(index),
                stopped=self._group.present[index].is_stopped,
                name=str(self._rules.task(index)),
            )
            for index in reporting
        ]

    def tell_stepping(self, seen: list[Seen]) -> None:
        """Report, once, that all workers have ended a step."""
        if not self._stepping and seen and all(one.status.first_step_ended is not None for one in seen):
            self._stepping = self._job.reporter.stepping(seen)
            self._job.factory.prepare(seen[0].status.pid)

    def note_warnings(self) -> None:
        for sentence in self._channel.new_warnings():
            self._job.reporter.warned(sentence)

    def perform(self, action: Action) -> None:
        if isinstance(action, Stop):
            self._channel.ask_to_halt()
        elif isinstance(action, StopAfter):
            self._channel.set_target(action.step)
        elif isinstance(action, GoOn):
            self._channel.take_back()
            if self._job.control is not None:
                self._job.control.answer(None, ok=False, text="not all workers came to a step; their number stays")
        else:
            if not self._rules.in_step:
                self.tell_stepping(self.seen())  # before anything is said that came later
            elif isinstance(action, Send) and action.number != signal.SIGKILL:
                self._channel.end()
            self._group.perform(action)
            if isinstance(action, Start):
                self._job.reporter.replaces(str(self._rules.task(action.worker)))
                self._write_tasks()

    def _prepare(self, state: State, seen: list[Seen]) -> None:
        """Prepare for the next start once the workers step, and answer the request for this one."""
        job = self._job
        if not self._stepping or state.halt is not None:
            return
        if state.phase is Phase.RUNNING:
            job.factory.tend(state.wanted)
            if job.config.standby and not any(one.status.activity is Activity.ENDED for one in seen):
                job.standby.tend(state.wanted, lambda: job.plan(state.size, self._starts + 1, reserve=True))
        if job.control is not None and state.wanted == state.size:
            job.control.answer(state.size, ok=True, text=self._stepping)

    def _hang(self, state: State, seen: list[Seen]) -> Hang | None:
        halting = self._rules.in_step and state.halt is not None and state.phase is not Phase.KILLING
        if not self._job.config.max_restarts or not (state.phase is Phase.RUNNING or halting):
            return None
        present = self._group.present
        serving = {index: str(self._rules.task(index)) for index in state.running if index not in self._reporting}
        stopped = {index: name for index, name in serving.items() if present[index].is_stopped}
        config = self._job.config
        patience = Patience(
            hang_seconds=config.hang_seconds, stall_seconds=config.stall_seconds, crowding=hangs.crowding()
        )
        self._watch, hang = hangs.look(self._watch, seen, time.monotonic(), patience, stopped_tasks=stopped)
        if self._watch.steps >= hangs.FEWEST:
            self._job.step_seconds = self._watch.samples
        return hang

    def _write_tasks(self) -> None:
        """Write the task of each process, for other programs and for faults that a chief injects."""
        if self._report is not None:
            self._report.write()
        if self._rules.in_step:
            return
        pids = {str(self._rules.task(index)): handle.pid for index, handle in self._group.present.items()}
        _write(tasks_file(self._job.guard.directory), pids)


def _write(path: Path, content: object) -> None:
    with contextlib.suppress(OSError):  # it is full: `tfdist stacks` finds nothing then, or a fault is refused
        write_whole(path, json.dumps(content))
