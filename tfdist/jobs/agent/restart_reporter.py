"""Report restarts and warnings: a line for each, an event, and a summary at the end.

The workers write their warnings to the log themselves, so of these the summary alone is told here.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tfdist.jobs.agent.events import EventFile
from tfdist.jobs.supervision.hangs import Hang, Seen
from tfdist.jobs.supervision.supervisor_state import Purpose
from tfdist.monitor.halt import StepState
from tfdist.monitor.phases import Activity
from tfdist.monitor.status import WorkerStatus
from tfdist.processes.worker_failure import Failure, how_it_ended, in_short


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why the workers had to be started again.

    Attributes:
        worker: whose failure it was, or None.
        kind: "signal", "exit", "exception" or "hang".
        text: what the user is told.
        time: when it was seen, on the agent's clock.
        status: what the worker had said, if it is known; or the chief.
        task: what has failed, in a job whose processes are not all workers; the supervisor has told the user then.
    """

    worker: int | None
    kind: str
    text: str
    time: float
    status: WorkerStatus | None
    task: str | None = None

    @property
    def tick(self) -> int | None:
        """The last step that the worker had started since the workers were started."""
        return None if self.status is None or self.status.pid == 0 else self.status.position.started

    @property
    def signature(self) -> str | None:
        """What is equal for the same failure at the same step; None where neither the step nor the reason is known."""
        if self.tick is None and self.kind != "exception":
            return None
        resumed = None if self.status is None else self.status.resumed
        return f"{self.kind} {self.worker} {self.text if self.kind == 'exception' else ''} {resumed} {self.tick}"


def cause_of(failures: Sequence[Failure], hang: Hang | None, seen: Sequence[Seen], now: float) -> Cause:
    """Return why the workers of a start have ended.

    Example:
        >>> cause_of([Failure(worker=1, time=2.0, returncode=-9)], None, [], 2.0).text
        'worker 1 failed: killed by SIGKILL (signal 9)'
    """
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
    """Return what sort of failure it is by which a process has ended.

    Example:
        >>> kind_of(-9, recorded=False)
        'signal'
    """
    return "exception" if recorded else "signal" if returncode < 0 else "exit"


@dataclass(kw_only=True)
class RestartReporter:
    """What has happened to a job.

    Attributes:
        say: tells the user a line.
        file: the event file.
        max_restarts: how many failures are followed by another start.
        has_chief: whether it is a job with parameter servers, where the chief alone steps.
        start: how often the workers have been started again.
        failures: how often because of a failure.
        sizes: how often because of another number of workers.
        evicted: how often because a worker stayed slow.
        replaced: how often a worker of a chief was, while the others went on.
        lost: how many steps were repeated.
        recoveries: seconds from each failure until all have stepped again.
        warnings: what workers have said of their steps, in sentences, each once.
    """

    say: Callable[[str], None]
    file: EventFile
    max_restarts: int
    has_chief: bool = False
    start: int = 0
    failures: int = 0
    sizes: int = 0
    evicted: int = 0
    replaced: int = 0
    lost: int = 0
    recoveries: list[float] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    _since: float | None = None
    _after_failure: bool = False
    _done: int = 0  # steps, by the end of the last start that had some
    _restored: bool = False  # whether a start has ever gone on from a state

    def started(self, pids: Sequence[int]) -> None:
        """The workers are started."""
        self.file.write("started", start=self.start, workers=len(pids), pids=list(pids))

    def failed(self, cause: Cause, *, begun: float, again: bool, why_not: str = "") -> None:
        """They have failed."""
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
        """A worker of the chief has gone, and is started again while the others go on."""
        self.replaced += 1
        self.file.write("replaced", start=self.start, task=task)

    def halted(self, purpose: str, workers: int, asked: float) -> None:
        """They have stopped, as they were asked to at this clock time, and so many go on."""
        is_eviction = purpose == Purpose.EVICT.value
        self.sizes += workers > 0 and not is_eviction
        self.evicted += workers > 0 and is_eviction
        self.file.write("halted", start=self.start, purpose=purpose, workers=workers)
        self._since, self._after_failure = asked, False

    def left(self, seen: Sequence[Seen]) -> None:
        """The workers of a start have ended; this is what they had said last."""
        self._done = max((one.status.done for one in seen if one.status.done is not None), default=self._done)

    def stepping(self, seen: Sequence[Seen]) -> str:
        """All workers have ended a step; return what is told about it."""
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
                text += f". No state was found to go on from, so training has begun anew: {_steps(lost)} repeated"
            self.say(text)
        self.file.write("stepping", start=self.start, clock=clock, **content)
        self._since = None
        return text

    def warned(self, sentence: str) -> None:
        """A worker has warned of what it computes; other workers, and later starts, may say the same."""
        if sentence not in self.warnings:
            self.warnings.append(sentence)
            self.file.write("warning", start=self.start, text=sentence)

    def ended(self, exit_code: int) -> None:
        """The job has ended."""
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
        """Return what there is to say about the whole job.

        Example:
            >>> reporter = RestartReporter(say=print, file=EventFile(None, "a1"), max_restarts=3)
            >>> reporter.failures, reporter.recoveries = 1, [0.5]
            >>> reporter.summary(0)
            'ended with code 0 after 1 of 3 restarts; all stepped again after 0.50 s'
        """
        restarts = f" after {self.failures} of {self.max_restarts} restarts" if self.start or self.max_restarts else ""
        parts = [f"ended with code {exit_code}{restarts}"]
        if self.sizes:
            parts[0] += f" and {self.sizes} change{'s' if self.sizes > 1 else ''} of the number of workers"
        if self.evicted:
            parts.append(f"{self.evicted} slow worker{'s' if self.evicted > 1 else ''} evicted")
        if self.replaced:
            parts.append(f"{self.replaced} worker{'s' if self.replaced > 1 else ''} replaced while the others went on")
        if self._restored or self.lost:
            parts.append(f"{_steps(self.lost)} repeated")
        who = "it" if self.has_chief else "all"
        if len(self.recoveries) == 1:
            parts.append(f"{who} stepped again after {self.recoveries[0]:.2f} s")
        elif self.recoveries:
            middle, most = statistics.median(self.recoveries), max(self.recoveries)
            parts.append(f"{who} stepped again after {middle:.2f} s (median; {most:.2f} s at most)")
        if self.warnings:
            count = len(self.warnings)
            parts.append(f"{count} warning{'s' if count > 1 else ''}")
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
    return f"{count} step{'' if count == 1 else 's'}"
