"""The search for a batch, trial by trial, and what it has found."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from tfdist.errors import TfdistError
from tfdist.tune import batch_search
from tfdist.tune.batch_search import NEAR, Outcome
from tfdist.tune.batch_trial import Job, Trial, attempt


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was found.

    Attributes:
        trials: in their order.
        machine: what it ran on.
    """

    trials: tuple[Trial, ...]
    machine: dict[str, str] = field(default_factory=dict)

    @property
    def fitting(self) -> dict[int, Trial]:
        """The trials that fit, by batch."""
        return {one.batch: one for one in sorted(self.trials, key=lambda one: one.batch) if one.outcome is Outcome.FITS}

    @property
    def chosen(self) -> dict[str, Trial]:
        """The largest batch that fits, the fastest, and the smallest that is nearly as fast; empty if none fits."""
        if not self.fitting:
            return {}
        tried = [one.tried for one in self.trials]
        found = {
            "largest": batch_search.largest(tried),
            "fastest": batch_search.fastest(tried),
            "nearly": batch_search.nearly_best(tried),
        }
        return {name: self.fitting[batch] for name, batch in found.items()}

    def verdict(self) -> list[str]:
        """Return what was found, in sentences.

        Example:
            >>> trial = Trial(batch=8, outcome=Outcome.FITS, examples=8, speed=100.0)
            >>> Report(trials=(trial,)).verdict()[0]
            'largest that fits: 8; nothing larger was tried'
        """
        if not self.fitting:
            smallest = min(self.trials, key=lambda one: one.batch)
            none = "no batch was measured" if smallest.outcome is Outcome.SHORT else "no batch fits"
            return [f"{none}: {smallest.batch} is the smallest that was tried. {smallest.text}"]
        chosen = self.chosen
        largest, fastest, nearly = chosen["largest"], chosen["fastest"], chosen["nearly"]
        above = [one for one in self.trials if one.batch > largest.batch]
        border = min(above, key=lambda one: one.batch) if above else None
        why = "nothing larger was tried" if border is None else f"{border.batch:,}: {border.text.splitlines()[0]}"
        short = border is not None and border.outcome is Outcome.SHORT
        most = "largest that could be measured, and memory did not run out" if short else "largest that fits"
        part = f"{nearly.speed / fastest.speed:.0%} of that"
        return [
            f"{most}: {_named(largest)}; {why}",
            f"most examples per second: {_named(fastest)}, with {fastest.speed:,.0f}",
            f"smallest within {1 - NEAR:.0%} of it: {_named(nearly)}, with {nearly.speed:,.0f}, {part}: take this one",
        ]

    def to_json(self) -> str:
        """Return the report for programs; ``chosen`` has batches."""
        content = asdict(self) | {"chosen": {name: trial.batch for name, trial in self.chosen.items()}}
        return json.dumps({"version": 1, **content, "verdict": self.verdict()}, indent=2)


def _named(trial: Trial) -> str:
    """A batch as it was given, and what that is on a replica where it is something else."""
    more = f" ({trial.per_replica:,} on each of {trial.replicas} replicas)" if trial.replicas > 1 else ""
    return f"{trial.batch:,}{more}"


def tune(
    job: Job,
    *,
    start: int,
    most: int,
    precision: float,
    machine: dict[str, str],
    on_trial: Callable[[Sequence[Trial], int | None], None] = lambda trials, following: None,
    trial_of: Callable[[int, Job], Trial] = attempt,
) -> Report:
    """Try batches until the largest that fits and the fastest are known."""
    trials: list[Trial] = []
    while True:
        batch = batch_search.following([one.tried for one in trials], start=start, most=most, precision=precision)
        on_trial(trials, batch)
        if batch is None:
            return Report(trials=tuple(trials), machine=machine)
        trials.append(trial_of(batch, job))
        if all(one.outcome is Outcome.FAILED for one in trials):
            raise TfdistError(
                f"the script fails with a batch of {batch}: {trials[0].text}", name="batch", received=batch
            )
