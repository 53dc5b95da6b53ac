"""Alerts on simulated jobs: each is raised for what it is about, once, and none of them for noise."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.simulated_steps import USUAL, simulated
from tfdist.monitor.recording.rows import LEAST_NORM, NORM_EVERY, Column
from tfdist.monitor.verdict.alerts import (
    AGAIN_SECONDS,
    LOOKS,
    NORMS,
    NORMS_BEFORE,
    SLOW_SECONDS,
    Alarm,
    Alert,
    Kind,
    Looks,
    alerts,
    grows,
)
from tfdist.monitor.verdict.job_bound import RECENT
from tfdist.monitor.verdict.step_parts import OF_STEPS, Timeline, timeline
from tfdist.monitor.verdict.stragglers import SLOW_STEPS

MEGABYTE = 1 << 20


def of(loss: Callable[[np.ndarray], np.ndarray] | None = None, **how: object) -> Timeline:
    """A simulated job, whose loss is a function of the numbers of steps."""
    rows = simulated(**how)
    if loss is not None:
        for one in rows.values():
            one[:, Column.LOSS] = np.asarray(loss(one[:, Column.STEP].astype(np.float64)), np.float64).view(np.int64)
    return timeline(rows)


def kinds(found: list[Alert]) -> list[tuple[Kind, int | None]]:
    return [(one.kind, one.worker) for one in found]


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("noise", [0.0, 0.1, 0.5])
def test_a_quiet_job_raises_none(workers: int, noise: float) -> None:
    def learns(step: np.ndarray) -> np.ndarray:
        return 2 * np.exp(-step / 100) + np.random.default_rng(1).normal(0, 0.1, len(step))

    for seed in range(5):
        assert not alerts(of(learns, workers=workers, noise=noise, seed=seed, steps=512))


def test_few_steps_raise_none() -> None:
    for steps in (0, 1, 2, 19):
        assert not alerts(of(workers=2, steps=max(steps, 1)).only(slice(0, steps)))


@pytest.mark.parametrize("part", [part for part in USUAL if part != "communication"])
@pytest.mark.parametrize("workers", [2, 3, 5])
def test_a_worker_that_stays_slow_is_named_with_the_part(workers: int, part: str) -> None:
    (found,) = alerts(of(workers=workers, late=(1, part, 8.0)))
    assert (found.kind, found.worker) == (Kind.SLOW_WORKER, 1)
    assert found.text.endswith(f"steps: {part}")
    assert "200 steps" in found.text or "199 steps" in found.text
    assert not alerts(of(workers=workers, late=(1, part, 8.0), every=2))  # now and then is not to stay so


def test_slow_is_by_deviations_and_for_steps_one_after_the_other() -> None:
    rows = simulated(workers=2, steps=300, noise=0.1, late=(0, "backward", 8.0))
    usual = simulated(workers=2, steps=300, noise=0.1)
    of_seconds = SLOW_SECONDS / SLOW_STEPS
    for run, step, raised in (
        (SLOW_STEPS + 1, of_seconds, True),
        (SLOW_STEPS - 1, of_seconds, False),
        (SLOW_STEPS + 1, 0.9 * of_seconds, False),  # for a moment
        (2 * SLOW_STEPS, 0.6 * of_seconds, True),
    ):
        whole = timeline(usual)
        slow = timeline(rows)
        mixed = {name: np.concatenate([getattr(slow, name)[:run], getattr(whole, name)[run:]]) for name in OF_STEPS}
        mixed["ends"] = step * np.arange(300.0)[:, None] * np.ones(2)
        found = replace(whole, **mixed)
        assert bool(alerts(found)) == raised
        assert not alerts(found, after=run)  # it was over when it was looked at last


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_loss_that_is_no_number(value: float) -> None:
    def from_step(first: int) -> Timeline:
        return of(lambda step: np.where(step >= first, value, 1.0), workers=2)

    assert kinds(alerts(from_step(197))) == [(Kind.LOSS_NOT_FINITE, None)]
    assert not alerts(from_step(198))
    one = from_step(100)
    one.loss[:, 0] = 1.0
    assert kinds(alerts(one)) == [(Kind.LOSS_NOT_FINITE, 1)]


def test_a_loss_that_was_not_seen_is_no_alert() -> None:
    rows = simulated(workers=2)
    for one in rows.values():
        one[:, Column.FORWARD] = 0
    assert not alerts(timeline(rows))


def test_a_loss_that_rises_and_rises() -> None:
    noise = np.random.default_rng(3).normal(0, 0.05, 200)
    assert kinds(alerts(of(lambda step: np.exp(step / 50) + noise))) == [(Kind.LOSS_DIVERGES, None)]
    assert not alerts(of(lambda step: 1 + step / 1000 + noise))  # by a fifth
    for first in (100, 125, 150, 175):  # another training begins
        assert not alerts(of(lambda step, first=first: np.where(step < first, 1.0, 5.0) + noise))


def test_steps_that_wait_for_input() -> None:
    assert kinds(alerts(of(usual={**USUAL, "input": 30.0}))) == [(Kind.INPUT_STARVATION, None)]
    assert not alerts(of(usual={**USUAL, "input": 10.0}))


def with_norms(*norms: float, workers: int = 2, every: int = 10) -> Timeline:
    """Steps of which one of so many has measured the norm of the gradient."""
    rows = simulated(workers=workers, steps=every * len(norms))
    for one in rows.values():
        one[::every, Column.GRADIENT_NORM] = np.array([norm or LEAST_NORM for norm in norms], np.float64).view(np.int64)
    return timeline(rows)


USUAL_NORMS = [1.0, 2.0] * (NORMS_BEFORE // 2)


@pytest.mark.parametrize(
    ("norms", "kind"),
    [
        ((), None),
        ((np.nan, np.inf, np.nan), Kind.GRADIENT_NOT_FINITE),
        ((1.0, np.nan, np.nan), None),
        ((np.nan, 1.0, np.nan, np.nan), None),
        ((0.0, 0.0, 0.0), Kind.GRADIENT_VANISHES),
        ((1e-30, 0.0, 0.0), None),
        ((20.5, 1e9, 1e30), Kind.GRADIENT_EXPLODES),
        ((20.5, np.inf, 1e30), Kind.GRADIENT_EXPLODES),
        ((1e9, 19.0, 1e30), None),
        ((1e-9, 1e-9, 1e-9), None),  # it converges
    ],
)
def test_norms_of_the_gradient(norms: tuple[float, ...], kind: Kind | None) -> None:
    found = with_norms(*USUAL_NORMS, *norms)
    expected = [] if kind is None else [(kind, None)]
    assert kinds(alerts(found)) == expected
    found.gradient_norm[:, 0] = 1.0
    assert kinds(alerts(found)) == ([] if kind is None else [(kind, 1)]), "a part of the gradient is one worker's"


def test_as_many_norms_as_are_compared_are_in_what_is_looked_at() -> None:
    assert (NORMS_BEFORE + NORMS) * NORM_EVERY <= RECENT


def test_norms_of_another_model_are_nothing_to_compare_with() -> None:
    found = with_norms(*USUAL_NORMS, 1e9, 1e9, 1e9)
    assert kinds(alerts(found)) == [(Kind.GRADIENT_EXPLODES, None)]
    assert not alerts(replace(found, traced=10))
    assert not alerts(with_norms(*USUAL_NORMS[1:], 1e9, 1e9, 1e9)), "too few are known"
    assert not alerts(with_norms(0.0, 0.0, 0.0)), "it never was another one"


def test_memory_that_grows() -> None:
    def looks(size: Callable[[int], float], count: int = 2 * LOOKS) -> list[tuple[float, int]]:
        return [(10.0 * look, int(size(look) * MEGABYTE)) for look in range(count)]

    assert kinds(grows(2, looks(lambda look: 500 + 5 * look))) == [(Kind.MEMORY_GROWS, 2)]
    for size in (
        lambda look: 500 + 100 * np.sin(look),
        lambda look: 500 + 300 * (look > 20),  # a cache that is full
        lambda look: 500 + look / 2,  # by too little
    ):
        assert not grows(2, looks(size))
    assert not grows(2, looks(lambda look: 500 + 50 * look, LOOKS - 1))


def test_looks_at_memory_are_few_however_long_a_job_runs() -> None:
    looks = Looks()
    for second in range(1_000_000):
        looks.add(float(second), second)
    assert len(looks.kept) < 4 * LOOKS
    assert looks.kept[0] == (0.0, 0)
    assert looks.kept[-1][0] > 980_000
    assert np.ptp(np.diff([at for at, _ in looks.kept])) == 0


def test_each_alert_is_told_once_and_again_after_it_was_over() -> None:
    alarm, slow, fine = Alarm(), of(workers=2, late=(1, "input", 8.0)), of(workers=2)
    told = [kinds(alarm.look(slow, {}, 0.0))]
    later = slow.only(slice(0, None))
    for second, found in ((2.0, later), (4.0, fine), (5.0 + AGAIN_SECONDS, None)):
        told.append(kinds(alarm.look(found, {}, second)))
    alarm.begins()
    told.append(kinds(alarm.look(slow, {}, 6.0 + 2 * AGAIN_SECONDS)))
    assert told == [[(Kind.SLOW_WORKER, 1)], [], [], [], [(Kind.SLOW_WORKER, 1)]]
