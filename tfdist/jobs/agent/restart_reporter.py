"""Reports of a job: its event file, failures and restarts, warnings, and the summary at the end.

docs/run-events.md describes the events, one JSON object per line (`tfdist run --event-file PATH`).
"""

import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tfdist.errors import StorageError
from tfdist.jobs.agent.worker_group import Attempt
from tfdist.jobs.supervision.hangs import Hang, Seen
from tfdist.jobs.supervision.supervise import Decision, History
from tfdist.jobs.supervision.supervisor_state import Phase, Purpose, Rules, Verdict
from tfdist.monitor.phases import Activity
from tfdist.monitor.status import StepState, WorkerStatus
from tfdist.processes.worker_failure import Failure, Outcome, Record, how_it_ended, in_short, own_failures
from tfdist.validation import counted

VERSION = 1
LEFT_CODE = 143  # as if SIGTERM, which a worker that leaves has got, had ended the job


@dataclass(frozen=True, kw_only=True)
class Cause:
    """The reason why the workers had to be started again."""

    worker: int | None
    kind: str  # "signal", "exit", "exception" or "hang"
    text: str
    time: float  # on the agent's clock
    status: WorkerStatus | None  # the last of the worker, or of the chief
    task: str | None = None  # in a job with parameter servers, where the supervisor has already told the user

    @property
    def tick(self) -> int | None:
        """The last step that the worker had started in this start."""
        return None if self.status is None or self.status.pid == 0 else self.status.position.started

    @property
    def signature(self) -> str | None:
        """A text that is equal for the same failure at the same step; None if neither step nor reason is known."""
        if self.tick is None and self.kind != "exception":
            return None
        resumed = None if self.status is None else self.status.resumed
        return f"{self.kind} {self.worker} {self.text if self.kind == 'exception' else ''} {resumed} {self.tick}"


def cause_of(failures: Sequence[Failure], hang: Hang | None, seen: Sequence[Seen], now: float) -> Cause:
    said = {one.worker: one.status for one in seen}
    if hang is not None:
        status = said.get(hang.worker if hang.worker is not None else 0)
        return Cause(worker=hang.worker, kind="hang", text=hang.text, time=now, status=status)
    if not failures:
        return Cause(worker=None, kind="exit", text="the workers have failed", time=now, status=said.get(0))
    root = failures[0]
    kind = kind_of(root.returncode, recorded=root.record is not None)
    how = how_it_ended(root.returncode) if root.record is None else in_short(root)
    return Cause(
        worker=root.worker,
        kind=kind,
        text=f"worker {root.worker} failed: {how}",
        time=min(now, root.time),
        status=said.get(root.worker),
    )


def kind_of(returncode: int, *, recorded: bool) -> str:
    return "exception" if recorded else "signal" if returncode < 0 else "exit"


class EventFile:
    """The event file, which is appended to. Without a path nothing is written."""

    def __init__(self, path: str | None, job_id: str, *, copy: str | None = None) -> None:
        self._job_id = job_id
        self._descriptors: list[int] = []
        self._cut: set[int] = set()  # descriptors whose last line is not whole
        try:
            for one in (path, copy):
                if one is not None:
                    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                    self._descriptors.append(os.open(one, flags, 0o644))
        except OSError as error:
            self.close()
            raise StorageError(
                error.errno,
                f"the event file {path} (--event-file) cannot be written ({error.strerror}). Name another.",
                name="--event-file",
                path=path,
            ) from error

    def write(self, event: str, *, start: int, clock: float | None = None, **content: Any) -> None:
        """Append one line with one write. A full disk loses it, but no other, and the job continues."""
        if not self._descriptors:
            return
        now = time.monotonic()
        clock = now if clock is None else clock
        moment = {"time": round(time.time() - (now - clock), 6), "clock": round(clock, 6)}
        line = {"version": VERSION, **moment, "job": self._job_id, "start": start, "event": event, **content}
        data = json.dumps(line).encode() + b"\n"
        for descriptor in self._descriptors:
            whole = b"\n" + data if descriptor in self._cut else data
            with contextlib.suppress(OSError):
                written = os.write(descriptor, whole)
                (self._cut.discard if written == len(whole) else self._cut.add)(descriptor)

    def close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


@dataclass(kw_only=True)
class RestartReporter:
    """A reporter that counts and reports the events of a job."""

    say: Callable[[str], None]
    file: EventFile
    max_restarts: int
    has_chief: bool = False
    start: int = 0  # restarts of all workers: in total, and below after failures, resizing and evictions
    failures: int = 0
    sizes: int = 0
    evicted: int = 0
    replaced: int = 0  # single restarts under a chief
    lost: int = 0  # repeated steps
    recoveries: list[float] = field(default_factory=list)  # seconds from each failure until all workers step again
    warnings: list[str] = field(default_factory=list)
    _since: float | None = None
    _after_failure: bool = False
    _done: int = 0  # steps, by the end of the last start that had some
    _restored: bool = False  # whether a start has ever continued from a state

    def started(self, pids: Sequence[int]) -> None:
        self.file.write("started", start=self.start, workers=len(pids), pids=list(pids))

    def failed(self, cause: Cause, *, begun: float, again: bool, why_not: str = "") -> None:
        self.failures += again
        self.file.write(
            "failed",
            start=self.start,
            clock=cause.time,
            worker=None if cause.task is not None else cause.worker,
            task=cause.task,
            cause=cause.kind,
            text=cause.text,
            phase=None if cause.status is None else cause.status.activity.name.lower(),
            tick=cause.tick,
            restarts_left=max(0, self.max_restarts - self.failures),
        )
        self._since, self._after_failure = cause.time, True
        follows = f"restarting ({self.failures} of {self.max_restarts})" if again else why_not
        if cause.task is None and follows:
            said = None if cause.kind == "hang" else cause.status  # a hang has it in its text
            where = "" if said is None or said.pid == 0 else f" ({_where(said)})"
            self.say(f"{cause.text}{where}, {cause.time - begun:.1f} s after the start; {follows}")

    def replaces(self, task: str) -> None:
        self.replaced += 1
        self.file.write("replaced", start=self.start, task=task)

    def halted(self, purpose: str, workers: int, asked: float) -> None:
        """Report that all workers have stopped as requested at this clock time, and that ``workers`` continue."""
        is_eviction = purpose == Purpose.EVICT.value
        self.sizes += workers > 0 and not is_eviction
        self.evicted += workers > 0 and is_eviction
        self.file.write("halted", start=self.start, purpose=purpose, workers=workers)
        self._since, self._after_failure = asked, False

    def left(self, seen: Sequence[Seen]) -> None:
        self._done = max((one.status.done for one in seen if one.status.done is not None), default=self._done)

    def stepping(self, seen: Sequence[Seen]) -> str:
        """Record that all workers have ended a step; return the report about it."""
        workers = [one.status for one in seen]
        clock = max(status.first_step_ended or 0.0 for status in workers)
        resumed, source = workers[0].resumed, workers[0].source
        lost = max(0, self._done - (resumed or 0)) if self._since is not None else 0
        content: dict[str, object] = {"workers": len(workers), "resumed": resumed, "lost": lost, "source": source}
        who = "the job steps" if self.has_chief else _all(len(workers))
        text = who
        if self._since is not None:
            seconds = clock - self._since
            content["seconds"] = round(seconds, 4)
            self.lost += lost
            if self._after_failure:
                self.recoveries.append(seconds)
            of = "the failure" if self._after_failure else "they were asked to stop"
            text = f"{who} again {seconds:.2f} s after {of}"
            if resumed is not None:
                self._restored = True
                text += f", from step {resumed}{f' ({source})' if source else ''}; {_steps(lost)} repeated"
            elif lost:  # all that held it is gone, and nothing was saved before
                text += f". No state was found to continue from, so training begins again: {_steps(lost)} repeated"
            self.say(text)
        self.file.write("stepping", start=self.start, clock=clock, **content)
        self._since = None
        return text

    def warned(self, sentence: str) -> None:
        """Record a warning, which other workers and later starts may repeat."""
        if sentence not in self.warnings:
            self.warnings.append(sentence)
            self.file.write("warning", start=self.start, text=sentence)

    def ended(self, exit_code: int) -> None:
        self.file.write(
            "ended",
            start=self.start,
            exit_code=exit_code,
            restarts=self.failures,
            lost=self.lost,
            warnings=self.warnings,
        )
        if self.start or self.replaced or self.warnings:
            self.say(self.summary(exit_code))

    def summary(self, exit_code: int) -> str:
        restarts = f" after {self.failures} of {self.max_restarts} restarts" if self.start or self.max_restarts else ""
        parts = [f"ended with code {exit_code}{restarts}"]
        if self.sizes:
            parts[0] += f" and {counted(self.sizes, 'change')} of the number of workers"
        if self.evicted:
            parts.append(f"{counted(self.evicted, 'slow worker')} evicted")
        if self.replaced:
            parts.append(f"{counted(self.replaced, 'worker')} replaced while the others continued")
        if self._restored or self.lost:
            parts.append(f"{_steps(self.lost)} repeated")
        who = "it" if self.has_chief else "all"
        if len(self.recoveries) == 1:
            parts.append(f"{who} stepped again after {self.recoveries[0]:.2f} s")
        elif self.recoveries:
            middle, most = statistics.median(self.recoveries), max(self.recoveries)
            parts.append(f"{who} stepped again after {middle:.2f} s (median; {most:.2f} s at most)")
        if self.warnings:
            parts.append(counted(len(self.warnings), "warning"))
        return "\n".join(["; ".join(parts) + (":" if self.warnings else ""), *(f"  {one}" for one in self.warnings)])


def _where(status: WorkerStatus) -> str:
    if status.position.started < 0:
        return status.activity.name.lower()
    count = f"step {status.position.started + 1} since it was started"
    if status.activity is Activity.BETWEEN:
        return f"{'before' if status.position.state is StepState.RUNNING else 'after'} {count}"
    return count if status.activity is Activity.STEPPING else f"{status.activity.name.lower()}, {count}"


def _all(workers: int) -> str:
    return "1 worker steps" if workers == 1 else f"all {workers} workers step"


def _steps(count: int) -> str:
    return counted(count, "step")


def failures_of(attempt: Attempt, rules: Rules, records: Mapping[int, Record | None]) -> tuple[Failure, ...]:
    """Return the processes that failed on their own, the root cause first: the earliest, or the supervisor's choice."""
    state = attempt.state
    ended = {
        index: Failure(
            worker=index,
            name=None if rules.in_step else str(rules.task(index)),
            time=end.time if (record := records.get(index)) is None else record.clock,
            returncode=end.returncode,
            record=record,
        )
        for index, end in attempt.exits.items()
        if index not in state.halted
    }
    if rules.in_step:
        return own_failures(ended.values(), stopped_at=attempt.stopped_at, received=state.received)
    cause = ended.get(state.cause) if state.cause is not None and state.verdict is Verdict.FAILED else None
    if cause is None:  # none has failed, or the kernel holds the one that has
        return ()
    others = [ended[index] for index in rules.scripts(ended) if index != cause.worker]
    later = own_failures(others, stopped_at=attempt.stopped_at, received=state.received)
    first = min([cause.time, *(one.time for one in later)])  # others may have seen the end before the agent did
    return (replace(cause, time=first), *later)


def cause_of_attempt(attempt: Attempt, rules: Rules, failures: Sequence[Failure], seen: Sequence[Seen]) -> Cause | None:
    state = attempt.state
    if not state.failed:
        return None
    if rules.in_step or state.cause is None:
        return cause_of(failures, state.hang, seen, attempt.stopped_at)
    ended = attempt.exits.get(state.cause)
    if state.hang is not None and state.hang.worker == state.cause:
        kind, text = "hang", state.hang.text
    elif ended is None:
        kind, text = "exit", "it does not end"
    else:
        kind, text = kind_of(ended.returncode, recorded=ended.recorded), how_it_ended(ended.returncode)
    return Cause(
        worker=state.cause,
        kind=kind,
        text=text,
        time=attempt.stopped_at if ended is None else ended.time,
        status=seen[0].status if seen else None,
        task=str(rules.task(state.cause)),
    )


def outcome_of(attempt: Attempt, rules: Rules, failures: tuple[Failure, ...], decision: Decision) -> Outcome:
    state = attempt.state
    if decision is Decision.TOO_FEW_WORKERS:
        return Outcome(exit_code=LEFT_CODE)
    if failures and not (rules.in_step and state.hang is not None):
        return Outcome(exit_code=failures[0].exit_code or 1, failures=failures)  # a server that ends well fails too
    if state.verdict is Verdict.INTERRUPTED and state.received is not None:
        return Outcome.interrupted(state.received)
    return Outcome(exit_code=1 if state.failed or state.phase is Phase.LOST else 0)


def why_not_again(attempt: Attempt, rules: Rules, decision: Decision, history: History) -> str:
    """Return the reason why no start follows a failed one, as text; may be empty."""
    if decision is Decision.REPEATED_FAILURE:
        same = rules.roles[0].restart_policy.same_failures
        return f"that came {same} times in a row at the same step, so the job is not started again"
    if decision is Decision.END and rules.max_restarts and attempt.state.verdict is Verdict.FAILED:
        count = f"{history.failures - 1} of {rules.max_restarts} times (--max-restarts)"
        return f"the workers were started again {count}, so the job fails"
    return ""
