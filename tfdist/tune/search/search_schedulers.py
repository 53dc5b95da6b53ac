"""The schedulers that decide which trials start, resume, stop or are cloned: pure functions of the history.

`decide` returns the next decisions in order, for at most as many slots as are free. The same history gives the same
decisions. Trials are numbered in the order of their starts; ties go to the lower number.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Protocol

from tfdist.tune.search.search_history import WORST, Clone, Decision, History, Resume, Start, Status, Stop, Trial
from tfdist.tune.search.search_space import Parameter, Range, Space, Values

# (number of a trial, the history before it) -> its values; None: the script declares and draws them
Sampler = Callable[[int, History], Values | None]
_OUT = (Status.STOPPED, Status.FAILED)


class Scheduler(Protocol):
    """A scheduler, which makes the decisions of a search."""

    def decide(self, history: History) -> list[Decision]:
        """Return the next decisions; if there are none and nothing runs, the search has ended."""


def rungs_of(most: int, least: int, eta: int) -> tuple[int, ...]:
    """Return the epochs at which trials are compared: `most`, divided by `eta` again and again down to `least`.

    Example:
        >>> rungs_of(81, 1, 3), rungs_of(100, 4, 3)
        ((1, 3, 9, 27, 81), (4, 11, 33, 100))
    """
    found = [most]
    while (rung := round(most / eta ** len(found))) >= least and rung < found[-1]:
        found.append(rung)
    return tuple(reversed(found))


def restarts(history: History) -> list[Decision]:
    """Start dead trials again, before anything else gets a slot."""
    return [Resume(number, history.trials[number].until) for number in history.dead[: history.free]]


def _new(history: History, sampler: Sampler, trials: int, *, until: int, most: int) -> list[Decision]:
    first = len(history.trials)
    return [Start(number, sampler(number, history), until) for number in range(first, min(trials, first + most))]


@dataclass(frozen=True, kw_only=True)
class Complete:
    """The scheduler that trains every trial to the end, for a random search or a grid."""

    sampler: Sampler
    trials: int
    epochs: int

    def decide(self, history: History) -> list[Decision]:
        return _new(history, self.sampler, self.trials, until=self.epochs, most=history.free)


@dataclass(frozen=True, kw_only=True)
class Median:
    """The median rule: a trial stops if its best score is worse than the median of the others' mean scores so far.

    The rule holds from `least` epochs on, against at least `others` trials. Source: D. Golovin et al., "Google Vizier",
    2017.
    """

    sampler: Sampler
    trials: int
    epochs: int
    least: int = 1
    others: int = 3

    def decide(self, history: History) -> list[Decision]:
        running = [history.trials[number] for number in history.running]
        stops = [Stop(one.number) for one in running if not one.is_stopping and self._is_behind(one, history)]
        return [*stops, *_new(history, self.sampler, self.trials, until=self.epochs, most=history.free)]

    def _is_behind(self, trial: Trial, history: History) -> bool:
        at = trial.step
        if not self.least <= at < self.epochs:
            return False
        means = [mean for mean, number in history.means[at] if number != trial.number]
        return len(means) >= self.others and trial.best > means[len(means) // 2]


@dataclass(frozen=True, kw_only=True)
class Asha:
    """Asynchronous successive halving by promotion.

    A free slot goes to a trial that is among the best 1/eta of its rung and was not promoted yet, at the highest such
    rung; else to a new trial. Source: L. Li et al., "A System for Massively Parallel Hyperparameter Tuning", 2020,
    Algorithm 2.
    """

    sampler: Sampler
    trials: int
    rungs: tuple[int, ...]
    eta: int

    def decide(self, history: History) -> list[Decision]:
        found: list[Decision] = []
        for rung, following in reversed(list(pairwise(self.rungs))):
            best = len(history.rungs.get(rung, [])) // self.eta
            chosen = islice(history.promotable(rung, best), history.free - len(found))
            found += [Resume(number, following) for number in chosen]
        left = history.free - len(found)
        return found + _new(history, self.sampler, self.trials, until=self.rungs[0], most=left)


@dataclass(frozen=True, kw_only=True)
class Hyperband:
    """Hyperband: brackets of successive halving with different first rungs; whole rungs are compared.

    Trials resume from their backups, so a bracket costs less than in the paper, which trains anew at each rung.
    Free slots start the next bracket. Source: L. Li et al., "Hyperband", 2018.
    """

    sampler: Sampler
    trials: int
    rungs: tuple[int, ...]
    eta: int

    def brackets(self) -> Iterator[tuple[range, tuple[int, ...]]]:
        """Yield the trials of each bracket, and their rungs."""
        first, count = 0, len(self.rungs)
        while first < self.trials:
            for halvings in reversed(range(count)):
                size = math.ceil(count / (halvings + 1) * self.eta**halvings)
                numbers = range(first, min(first + size, self.trials))
                if numbers:
                    yield numbers, self.rungs[count - 1 - halvings :]
                first += size

    def decide(self, history: History) -> list[Decision]:
        found: list[Decision] = []
        for numbers, rungs in self.brackets():
            left = history.free - len(found)
            if left <= 0:
                break
            found += self._of_bracket(history, numbers, rungs, left)
        return found

    def _of_bracket(self, history: History, numbers: range, rungs: tuple[int, ...], most: int) -> list[Decision]:
        fresh = [number for number in numbers if number not in history.trials]
        if fresh:
            return [Start(number, self.sampler(number, history), rungs[0]) for number in fresh[:most]]
        members: list[int] = list(numbers)
        for rung, following in pairwise(rungs):
            trials = [history.trials[number] for number in members]
            if not all(rung in one.results or one.status in _OUT for one in trials):
                return []
            ranked = sorted((one.results[rung], one.number) for one in trials if one.results.get(rung, WORST) < WORST)
            members = [number for _, number in ranked[: max(1, len(trials) // self.eta)]]
            chosen = [history.trials[number] for number in members]
            ready = [one for one in chosen if one.status is Status.PAUSED and one.until == rung]
            if ready:
                return [Resume(one.number, following) for one in ready[:most]]
            members = [one.number for one in chosen if one.until > rung]
        return []


@dataclass(frozen=True, kw_only=True)
class Population:
    """Population-based training: every `interval` epochs, the worst trials continue from the best with new values.

    All members are compared when all have reached the same epoch, so decisions do not depend on speed. Source: M.
    Jaderberg et al., "Population Based Training of Neural Networks", 2017.
    """

    sampler: Sampler
    trials: int
    epochs: int
    interval: int
    seed: int
    space: Space
    perturbed: tuple[str, ...] = ()
    quantile: float = 0.25

    def decide(self, history: History) -> list[Decision]:
        if len(history.trials) < self.trials:
            until = min(self.interval, self.epochs)
            return _new(history, self.sampler, self.trials, until=until, most=history.free)
        alive = history.with_status(Status.RUNNING, Status.PAUSED, Status.DEAD)
        behind = min((one.until for one in alive), default=0)
        waiting = [one for one in alive if one.status is Status.PAUSED and one.until == behind]
        if not any(one.until > behind for one in alive):  # no member has continued from this generation yet
            if len(waiting) < len(alive):
                return []
            if clones := self._clones(waiting, behind):
                return [*clones]
        following = min(behind + self.interval, self.epochs)
        return [Resume(one.number, following) for one in waiting[: history.free]]

    def _clones(self, members: Sequence[Trial], at: int) -> list[Clone]:
        ranked = sorted(members, key=lambda one: (one.results.get(at, WORST), one.number))
        count = int(len(ranked) * self.quantile)
        best, worst = ranked[:count], ranked[len(ranked) - count :]
        found = []
        for one in worst:
            source = random.Random(f"{self.seed}/{at}/{one.number}")
            donor = source.choice(best)
            if one.cloned_at < at and donor.results.get(at, WORST) < one.results.get(at, WORST):
                found.append(Clone(one.number, donor.number, self._moved(donor, source)))
        return found

    def _moved(self, donor: Trial, source: random.Random) -> Values:
        known = {**donor.declared, **self.space}
        return {
            name: known[name].perturb(value, source) if self._is_perturbed(name, known.get(name)) else value
            for name, value in donor.values.items()
        }

    def _is_perturbed(self, name: str, parameter: Parameter | None) -> bool:
        if self.perturbed:
            return name in self.perturbed and parameter is not None
        return isinstance(parameter, Range) and not parameter.is_integer  # others may change the shapes of weights
