"""Decisions of a search: equal to the paper's algorithm, and the same after a kill at any event."""

import math
import random
import statistics
from dataclasses import replace

import pytest

from tests.simulated_search import (
    SPACE,
    Killed,
    SimulatedSlots,
    best_by_promotion,
    best_by_stopping,
    budgeted,
    sampled,
)
from tfdist.errors import WorkerFailedError
from tfdist.tune.search.search_history import (
    Clone,
    Decision,
    End,
    Event,
    History,
    Report,
    Resume,
    Start,
    Status,
    Stop,
    event_from_json,
    event_to_json,
)
from tfdist.tune.search.search_loop import Loop
from tfdist.tune.search.search_schedulers import (
    Asha,
    Complete,
    Hyperband,
    Median,
    Population,
    Scheduler,
    restarts,
    rungs_of,
)
from tfdist.tune.search.search_space import Values


class Paper:
    """Li et al., Algorithm 2 (ASHA), word for word: rungs of losses, and which trials were promoted from each."""

    def __init__(self, eta: int, rungs: int) -> None:
        self.eta = eta
        self.losses: list[dict[int, float]] = [{} for _ in range(rungs)]
        self.promoted: list[set[int]] = [set() for _ in range(rungs)]
        self.count = 0

    def get_job(self) -> tuple[int, int]:
        """A trial and the rung to which it trains."""
        for k in reversed(range(len(self.losses) - 1)):
            candidates = self.top_k(k, len(self.losses[k]) // self.eta)
            promotable = [trial for trial in candidates if trial not in self.promoted[k]]
            if promotable:
                self.promoted[k].add(promotable[0])
                return promotable[0], k + 1
        self.count += 1
        return self.count - 1, 0

    def top_k(self, k: int, number: int) -> list[int]:
        ordered = sorted(self.losses[k], key=lambda trial: (self.losses[k][trial], trial))
        return [trial for trial in ordered[:number] if self.losses[k][trial] < math.inf]

    def finished(self, trial: int, rung: int, loss: float) -> None:
        self.losses[rung][trial] = loss


@pytest.mark.parametrize("block", range(4))
def test_asha_decides_as_the_paper_does(block: int) -> None:
    for order in range(250):
        source = random.Random(f"{block}/{order}")
        eta, slots = source.choice((2, 3, 4)), source.randint(1, 12)
        rungs = rungs_of(source.choice((9, 27, 64)), 1, eta)
        paper, history = Paper(eta, len(rungs)), History(slots=slots)
        scheduler = Asha(sampler=sampled(order), trials=10**6, rungs=rungs, eta=eta)
        running: list[tuple[int, int]] = []
        for _ in range(60):
            for one in scheduler.decide(history):
                assert isinstance(one, Start | Resume)
                job = paper.get_job()
                assert (one.trial, rungs.index(one.until)) == job
                assert isinstance(one, Start) == (job[1] == 0)
                history.add(one)
                running.append(job)
            assert len(running) == slots
            trial, rung = running.pop(source.randrange(slots))
            loss = source.choice((math.nan, round(source.random(), 1), source.random()))
            paper.finished(trial, rung, math.inf if math.isnan(loss) else loss)
            history.add(Report(trial, rungs[rung], loss))
            history.add(End(trial, "paused" if rung < len(rungs) - 1 else "finished"))


def scheduler_of(name: str, sampler: object = None) -> Scheduler:
    common = {"sampler": sampler or sampled(1), "trials": 12}
    match name:
        case "asha":
            return Asha(**common, rungs=(1, 3, 9), eta=3)  # type: ignore[arg-type]
        case "hyperband":
            return Hyperband(**common, rungs=(1, 3, 9), eta=3)  # type: ignore[arg-type]
        case "median":
            return Median(**common, epochs=9)  # type: ignore[arg-type]
        case "population":
            return Population(**common, epochs=9, interval=3, seed=5, space=SPACE)  # type: ignore[arg-type]
    return Complete(**common, epochs=9)  # type: ignore[arg-type]


NAMES = ["asha", "hyperband", "median", "population", "random"]


def searched(name: str, journal: list[Event], *, ends_after: int | None = None) -> SimulatedSlots:
    """Run on the events of a journal, to the end or until so many have been written."""
    history = History(slots=3)
    for event in journal:
        history.add(event)
    slots = SimulatedSlots(9, dies=lambda trial: trial == 5)

    def write(event: Event) -> None:
        journal.append(event)
        if len(journal) == ends_after:
            raise Killed

    Loop(scheduler_of(name), slots, history, write=write).run()
    return slots


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_search_goes_on_with_the_same_decisions(name: str) -> None:
    whole: list[Event] = []
    searched(name, whole)
    assert sum(isinstance(one, Start) for one in whole) == 12
    for at in range(1, len(whole)):
        journal: list[Event] = []
        with pytest.raises(Killed):
            searched(name, journal, ends_after=at)
        assert len(journal) == at
        searched(name, [event_from_json(event_to_json(one)) for one in journal])
        searched(name, journal)
        assert repr(journal) == repr(whole), at  # NaN equals no NaN


def outcome(name: str, *, restarts_of: int = 1) -> tuple[History, list[Event]]:
    journal: list[Event] = []
    history = History(slots=3, restarts=restarts_of)
    slots = SimulatedSlots(9, dies=lambda trial: trial == 5)
    Loop(scheduler_of(name), slots, history, write=journal.append).run()
    return history, journal


@pytest.mark.parametrize("name", NAMES)
def test_a_trial_that_always_dies_is_given_up_and_ends_nothing(name: str) -> None:
    history, journal = outcome(name, restarts_of=2)
    assert [one.number for one in history.with_status(Status.FAILED)] == [5]
    assert history.trials[5].cause == "no luck"
    assert sum(isinstance(one, End) and one.how == "died" for one in journal) == 3
    assert len(history.trials) == 12
    assert history.with_status(Status.FINISHED)


def test_asha_gives_a_slot_to_the_highest_rung() -> None:
    history = History(slots=1)
    for trial, until in ((0, 3), (1, 3), (2, 1), (3, 1)):
        history.add(Start(trial, {}, 1))
        for rung in (1, 3):
            if rung <= until:
                history.add(Report(trial, rung, trial / rung))
                history.add(End(trial, "paused"))
                if rung < until:
                    history.add(Resume(trial, 3))
    scheduler = Asha(sampler=sampled(0), trials=9, rungs=(1, 3, 9), eta=2)
    assert scheduler.decide(history) == [Resume(0, 9)]
    assert replace(scheduler, eta=1).decide(history) == [Resume(0, 9)], "although the first rung has trials to promote"
    history.add(Resume(0, 9))
    history.add(End(0, "finished"))
    assert replace(scheduler, eta=1).decide(history) == [Resume(1, 9)]


@pytest.mark.parametrize(("best", "is_behind"), [(2.5, False), (3.5, True)])
def test_half_of_the_trials_are_before_the_median(best: float, is_behind: bool) -> None:
    history = History(slots=6)
    for trial, score in enumerate((1.0, 2.0, 3.0, 4.0, 5.0, best)):
        history.add(Start(trial, {}, 9))
        history.add(Report(trial, 1, score))
    found = Median(sampler=sampled(0), trials=6, epochs=9).decide(history)
    assert (Stop(5) in found) == is_behind


def test_no_trial_with_nan_is_promoted_and_none_twice() -> None:
    _, journal = outcome("asha")
    resumed = [(one.trial, one.until) for one in journal if isinstance(one, Resume) and one.trial != 5]
    assert resumed
    assert len(set(resumed)) == len(resumed)
    assert not [trial for trial, _ in resumed if trial % 7 == 3]


def test_hyperband_compares_whole_rungs() -> None:
    assert rungs_of(5, 1, 2) == (1, 2, 5), "none comes twice"
    scheduler = Hyperband(sampler=sampled(0), trials=10**4, rungs=rungs_of(81, 1, 3), eta=3)
    brackets = scheduler.brackets()
    assert [(len(numbers), rungs[0]) for numbers, rungs in (next(brackets) for _ in range(5))] == [
        *((81, 1), (34, 3), (15, 9), (8, 27), (5, 81)),  # the table of the paper
    ]
    history, journal = outcome("hyperband")
    first = next(place for place, one in enumerate(journal) if isinstance(one, Resume) and one.until == 3)
    ended = {one.trial for one in journal[:first] if isinstance(one, End)}
    assert ended >= set(range(9))
    trials = list(history.trials.values())[:9]
    best = sorted((one.results[1], one.number) for one in trials if 1 in one.results)[:3]
    assert [one.number for one in trials if 3 in one.results] == sorted(number for _, number in best)
    few, last = History(slots=2), Hyperband(sampler=sampled(0), trials=2, rungs=(1, 3), eta=3)
    for trial, value in enumerate((2.0, 1.0)):
        few.add(Start(trial, {}, 1))
        few.add(Report(trial, 1, value))
        assert last.decide(few) == ([] if trial else [Start(1, sampled(0)(1, few), 1)]), "it has not ended yet"
        few.add(End(trial, "paused"))
    assert last.decide(few) == [Resume(1, 3)], "one of fewer than eta goes on"


def test_hyperband_draws_values_for_the_trials_that_it_starts() -> None:
    asked: list[int] = []

    def sampler(trial: int, history: History) -> Values:
        asked.append(trial)
        return {}

    scheduler = Hyperband(sampler=sampler, trials=100, rungs=rungs_of(81, 1, 3), eta=3)
    assert [one.trial for one in scheduler.decide(History(slots=2))] == asked == [0, 1]


def test_the_median_rule_stops_what_is_behind() -> None:
    history = History(slots=8)
    scheduler = Median(sampler=sampled(0), trials=4, epochs=9, least=2)
    for one in scheduler.decide(history):
        history.add(one)
    for trial in range(4):
        history.add(Report(trial, 1, 9.0 if trial == 3 else 1.0))
    assert scheduler.decide(history) == []  # before the second epoch nothing is judged
    for trial in range(4):
        history.add(Report(trial, 2, 9.0 if trial == 3 else 1.0))
    assert replace(scheduler, others=4).decide(history) == [], "there are three others"
    assert scheduler.decide(history) == [Stop(3)]
    history.add(Stop(3))
    assert scheduler.decide(history) == []
    for trial in range(3):
        history.add(Report(trial, 3, 1.0 + 8 * trial))
    assert scheduler.decide(history) == [], "the best score counts, not the last"
    history.add(Start(4, {}, 9))
    history.add(Report(4, 9, 9.0))
    for trial in range(3):
        history.add(Report(trial, 9, 1.0))
    assert scheduler.decide(history) == [], "it has ended by itself"


def test_a_population_clones_the_best_at_one_epoch() -> None:
    history, journal = outcome("population")
    clones = [one for one in journal if isinstance(one, Clone)]
    assert clones
    for clone in clones:
        place = journal.index(clone)
        before = History(slots=3)
        for one in journal[:place]:
            before.add(one)
        (at,) = {one.until for one in before.trials.values() if one.status is not Status.FAILED}
        donor, trial = before.trials[clone.donor], before.trials[clone.trial]
        assert donor.results[at] < trial.results[at]
        assert clone.values["x"] != donor.values["x"]  # a float is perturbed
        assert before.free == 3
    lineage = [(one.number, one.lineage) for one in history.trials.values() if one.lineage]
    assert sum(len(parents) for _, parents in lineage) == len(clones)


def test_a_population_keeps_what_is_not_perturbed() -> None:
    scheduler = Population(sampler=sampled(1), trials=4, epochs=9, interval=3, seed=5, space=SPACE, perturbed=("lr",))
    history = History(slots=4)
    assert {one.until for one in replace(scheduler, interval=20).decide(history) if isinstance(one, Start)} == {9}
    for one in scheduler.decide(history):
        history.add(one)
    for trial in range(4):
        history.add(Report(trial, 3, float(trial)))
        history.add(End(trial, "paused"))
    (clone,) = scheduler.decide(history)
    assert isinstance(clone, Clone)
    assert (clone.trial, clone.donor) == (3, 0)
    assert clone.values["x"] == history.trials[0].values["x"]
    assert clone.values["lr"] != history.trials[0].values["lr"]


def test_a_second_report_of_an_epoch_does_not_count() -> None:
    history = History(slots=1)
    events: list[Decision | Report] = [Start(0, {}, 3), Report(0, 1, 0.5), Report(0, 1, 0.1)]
    for event in events:
        history.add(event)
    assert history.trials[0].scores == {1: 0.5}


def test_the_epoch_of_the_best_value_is_the_first_of_equal_ones() -> None:
    history = History(slots=1, mode="max")
    history.add(Start(0, {}, 4))
    assert (history.trials[0].best_step, history.trials[0].step) == (0, 0)
    for step, value in enumerate((0.5, 0.9, 0.9, 0.7), 1):
        history.add(Report(0, step, value))
    assert (history.trials[0].best_step, history.trials[0].step) == (2, 4)


def test_a_trial_that_ends_early_counts_at_its_rung_and_is_not_resumed() -> None:
    history = History(slots=1)
    scheduler = Asha(sampler=sampled(0), trials=3, rungs=(3, 9), eta=3)
    for trial, value in enumerate((0.1, 0.2, 0.3)):
        history.add(Start(trial, {}, 3))
        history.add(Report(trial, 2, value))
        history.add(End(trial, "finished" if trial == 0 else "paused"))
    assert history.rungs[3][0] == (0.1, 0)
    assert scheduler.decide(history) == []


def test_dead_trials_come_before_new_ones() -> None:
    history = History(slots=1)
    history.add(Start(0, {}, 3))
    history.add(End(0, "died"))
    history.add(Start(1, {}, 3))
    history.add(End(1, "died"))
    assert restarts(history) == [Resume(0, 3)], "there is one slot"


def test_a_search_whose_first_trials_fail_ends() -> None:
    history = History(slots=2)
    slots = SimulatedSlots(9, dies=lambda trial: True)
    with pytest.raises(WorkerFailedError):
        Loop(scheduler_of("asha"), slots, history, write=lambda event: None).run()
    assert len(history.with_status(Status.FAILED)) == 3


def test_promotion_beats_stopping_at_equal_budget() -> None:
    seeds = range(40)
    promotion = statistics.median(best_by_promotion(seed, slots=1, budget=1000)[0] for seed in seeds)
    stopping = statistics.median(best_by_stopping(seed, slots=1, budget=1000)[0] for seed in seeds)
    assert promotion < stopping


@pytest.mark.parametrize(("slots", "budget"), [(8, 1_000), (500, 6_000)])
def test_slots_do_not_wait_for_each_other(slots: int, budget: int) -> None:
    scheduler = Asha(sampler=sampled(0), trials=10**6, rungs=rungs_of(81, 1, 3), eta=3)
    assert budgeted(scheduler, slots=slots, budget=budget, seed=0)[1] >= 0.9
