"""The loop of a search: it takes events into the history and the journal, and gives decisions to the runner.

It knows neither a clock nor a process: `Runner` has them, and tests run the loop on simulated trials.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from tfdist.errors import WorkerFailedError
from tfdist.tune.search.search_history import (
    Clone,
    Decision,
    Declare,
    Event,
    History,
    Report,
    Resume,
    Start,
    Status,
    Stop,
)
from tfdist.tune.search.search_schedulers import Scheduler, restarts


class Runner(Protocol):
    """A runner of trials on slots."""

    def start(self, trial: int, history: History) -> None:
        """Start the process of a trial, perhaps again; it begins from its backup with its values."""

    def stop(self, trial: int) -> None:
        """Ask a trial to end; an `End` follows."""

    def clone(self, trial: int, donor: int) -> None:
        """Give a paused trial the backup of another one; a second call changes nothing."""

    def events(self, history: History) -> Iterable[Event]:
        """Wait for the next declarations, reports and ends, those of each trial in order."""


class Loop:
    """The loop of a search, which runs until nothing is left to do, from an empty history or a resumed one."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        history: History,
        *,
        write: Callable[[Event], None],
        tell: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self._scheduler, self._runner, self.history = scheduler, runner, history
        self._write, self._tell = write, tell

    def run(self) -> None:
        """Run the search to its end.

        After a kill, a clone is made again unless its donor has continued, because a donor continues after the copy.
        Trials that were running start again.
        """
        trials, self.history.failures = self.history.trials, 0  # what made trials fail may have been mended
        for trial in trials.values():
            if trial.lineage and trial.cloned_at == trial.until == trials[donor := trial.lineage[-1][1]].until:
                self._runner.clone(trial.number, donor)
        for number in self.history.running:
            self._runner.start(number, self.history)
            if self.history.trials[number].is_stopping:
                self._runner.stop(number)
        while True:
            while decisions := restarts(self.history) or self._scheduler.decide(self.history):
                for one in decisions:
                    self._carry_out(one)
            if not self.history.running:
                return
            for event in self._runner.events(self.history):
                if self._is_news(event):
                    self._note(event)
            self._require_hope()

    def _carry_out(self, decision: Decision) -> None:
        self._note(decision)
        match decision:
            case Start() | Resume():
                self._runner.start(decision.trial, self.history)
            case Stop():
                self._runner.stop(decision.trial)
            case Clone():
                self._runner.clone(decision.trial, decision.donor)

    def _note(self, event: Event) -> None:
        self._write(event)
        self.history.add(event)
        self._tell(event)

    def _is_news(self, event: Event) -> bool:
        """Return False for an event that a restarted trial repeats."""
        trial = self.history.trials[event.trial]
        if isinstance(event, Report):
            return event.step not in trial.scores
        return not (isinstance(event, Declare) and event.name in trial.declared)

    def _require_hope(self) -> None:
        if self.history.is_hopeless:
            failed = self.history.with_status(Status.FAILED)
            raise WorkerFailedError(
                f"{self.history.failures} trials have failed and none has reported meanwhile, so the search ends; it "
                f"can be resumed. The last one:\n{failed[-1].cause}"
            )
