"""Searches on simulated trials: no process, and a clock that only the simulation has."""

import heapq
import math
import random
from collections.abc import Callable, Iterator, Mapping

from tfdist.tune.search.search_history import Declare, End, Event, History, Report, Resume, Start
from tfdist.tune.search.search_schedulers import Asha, Scheduler, restarts, rungs_of
from tfdist.tune.search.search_space import Range, drawn

SPACE = {"x": Range(low=0.0, high=1.0), "lr": Range(low=1e-4, high=1.0, is_log=True)}


def sampled(seed: int) -> Callable[[int, History], Mapping[str, float]]:
    return lambda trial, history: drawn(SPACE, seed=seed, trial=trial)  # type: ignore[return-value]


class Killed(BaseException):
    """The searcher was killed."""


class SimulatedSlots:
    """Trials whose values follow from their number and epoch, and that end in an order that the history decides."""

    def __init__(self, epochs: int, *, dies: Callable[[int], bool] = lambda trial: False) -> None:
        self.epochs, self.dies = epochs, dies
        self.started: list[int] = []
        self.cloned: list[tuple[int, int]] = []

    def start(self, trial: int, history: History) -> None:
        self.started.append(trial)

    def stop(self, trial: int) -> None:
        pass

    def clone(self, trial: int, donor: int) -> None:
        self.cloned.append((trial, donor))

    def events(self, history: History) -> Iterator[Event]:
        """The next report of the running trial that has the fewest epochs behind it, or its end."""
        trial = min((history.trials[number] for number in history.running), key=lambda one: (one.step, -one.number))
        number = trial.number
        if trial.is_stopping:
            yield End(number, "stopped")
        elif self.dies(number):
            yield End(number, "died", "no luck")
        elif trial.step < trial.until:
            if not trial.declared:
                yield Declare(number, "x", SPACE["x"], trial.values["x"])
            yield Report(number, trial.step + 1, value(number, trial.step + 1))
        else:
            yield End(number, "paused" if trial.until < self.epochs else "finished")


def value(trial: int, step: int) -> float:
    found = random.Random(f"{trial}/{step}")
    return math.nan if trial % 7 == 3 else round(found.random() + 1 / step, 1)


def budgeted(scheduler: Scheduler, *, slots: int, budget: int, seed: int) -> tuple[History, float]:
    """Run until so many epochs are trained: the history, and the part of their time that the slots have trained.

    An epoch takes 0.5 to 1.5, another time in each trial.
    """
    history, heap, clock, used, work = History(slots=slots), [], 0.0, 0, 0.0
    while True:
        while decisions := restarts(history) or scheduler.decide(history):
            for one in decisions:
                assert isinstance(one, Start | Resume)
                before = history.trials[one.trial].step if isinstance(one, Resume) else 0
                history.add(one)
                speed = 0.5 + random.Random(f"speed/{seed}/{one.trial}").random()
                seconds = speed * (one.until - before)
                heapq.heappush(heap, (clock + seconds, one.trial, seconds))
        clock, number, seconds = heapq.heappop(heap)
        work += seconds
        trial = history.trials[number]
        used += trial.until - trial.step
        noise = random.Random(f"{seed}/{number}/{trial.until}").gauss(0, 0.1) / math.sqrt(trial.until)
        history.add(Report(number, trial.until, float(trial.values["x"]) + noise))
        history.add(End(number, "paused"))
        if used >= budget:
            return history, (work + sum(clock - (end - whole) for end, _, whole in heap)) / (slots * clock)


def best_by_promotion(seed: int, *, slots: int = 8, budget: int = 2000) -> tuple[float, int]:
    """The best true value among the trials that reached the last rung, and the trials that were tried."""
    rungs = rungs_of(81, 1, 3)
    scheduler = Asha(sampler=sampled(seed), trials=10**6, rungs=rungs, eta=3)
    history, _ = budgeted(scheduler, slots=slots, budget=budget, seed=seed)
    done = [one for one in history.trials.values() if rungs[-1] in one.results]
    return min((float(one.values["x"]) for one in done), default=1.0), len(history.trials)


def best_by_stopping(seed: int, *, slots: int = 8, budget: int = 2000) -> tuple[float, int]:
    """The same where a trial goes on at a rung if it is among the best third so far, and else is gone for good."""
    rungs, draw = rungs_of(81, 1, 3), sampled(seed)
    results: dict[int, list[float]] = {rung: [] for rung in rungs}
    history = History(slots=slots)
    heap: list[tuple[float, int, int]] = []
    used, count, best, clock = 0, 0, 1.0, 0.0

    def begin(now: float) -> None:
        nonlocal count
        speed = 0.5 + random.Random(f"speed/{seed}/{count}").random()
        heapq.heappush(heap, (now + speed * rungs[0], count, 0))
        count += 1

    for _ in range(slots):
        begin(0.0)
    while used < budget:
        clock, number, level = heapq.heappop(heap)
        rung, true = rungs[level], float(draw(number, history)["x"])
        used += rung - (rungs[level - 1] if level else 0)
        noise = random.Random(f"{seed}/{number}/{rung}").gauss(0, 0.1) / math.sqrt(rung)
        results[rung].append(true + noise)
        goes_on = true + noise <= sorted(results[rung])[max(0, math.ceil(len(results[rung]) / 3) - 1)]
        if level == len(rungs) - 1:
            best = min(best, true)
            begin(clock)
        elif goes_on:
            speed = 0.5 + random.Random(f"speed/{seed}/{number}").random()
            heapq.heappush(heap, (clock + speed * (rungs[level + 1] - rung), number, level + 1))
        else:
            begin(clock)
    return best, count
