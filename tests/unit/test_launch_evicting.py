"""Decisions about a worker that stays slow: tables, and what no course of evictions may do."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import absent, refused
from tests.simulated_steps import simulated
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.jobs.agent.shared_job import Job
from tfdist.jobs.plan.host_plan import Remote, parse_hosts
from tfdist.jobs.plan.launch_config import LaunchConfig
from tfdist.jobs.plan.roles import roles_of
from tfdist.jobs.supervision.evicting import MOST, Decided, Evictions, Means, Measure, is_due, told, what_to_do
from tfdist.jobs.supervision.supervise import decide, next_size
from tfdist.jobs.supervision.supervisor_state import (
    Asked,
    Evict,
    Exited,
    Looked,
    Next,
    Purpose,
    Recorded,
    Rules,
    Stop,
    first_state,
)
from tfdist.monitor.status import StepPosition, StepState
from tfdist.monitor.verdict.step_parts import Part, Timeline, timeline
from tfdist.monitor.verdict.stragglers import Slow, Staying, slow_workers

MEANS = Means(workers=3, min_workers=2, has_standby=False, keeps_state=True)


def slow(**changes: Any) -> Slow:
    given = {"worker": 1, "part": Part.INPUT, "steps": 100, "first": 0, "last": 99, "seconds": 0.06, "others": 0.02}
    given |= {"waited": 0.6, "began": 5.0, "ended": 40.0, "goes_on": True}
    return Slow(**{**given, **changes})


def means(**changes: Any) -> Means:
    return Means(**{**vars(MEANS), **changes})


def decided(slow: Slow, means: Means, before: Evictions | None = None) -> tuple[str, bool]:
    found = what_to_do(slow, before or Evictions(), means)
    return found.measure, bool(found.why)


@pytest.mark.parametrize(
    ("one", "has", "before", "measure"),
    [
        ({}, {}, None, Measure.LEFT_OUT),
        ({}, {"has_standby": True}, None, Measure.REPLACED),
        # the new process in this place is slow as well
        ({}, {"has_standby": True}, Evictions(count=1, replaced=frozenset({1})), Measure.LEFT_OUT),
        ({}, {"has_standby": True}, Evictions(count=1, replaced=frozenset({0})), Measure.REPLACED),
        ({}, {"has_standby": True, "min_workers": 3}, Evictions(count=1, replaced=frozenset({1})), Measure.KEPT),
        # it must pay: others take over its third of the batch
        ({"waited": 0.34}, {}, None, Measure.LEFT_OUT),
        ({"waited": 0.33}, {}, None, Measure.KEPT),
        ({"waited": 0.21}, {"has_standby": True}, None, Measure.REPLACED),
        ({"waited": 0.19}, {"has_standby": True}, None, Measure.KEPT),
        # too few would be left, whatever was asked for
        ({}, {"min_workers": 3}, None, Measure.KEPT),
        ({"waited": 0.9}, {"workers": 1, "min_workers": 1}, None, Measure.KEPT),
        ({"waited": 0.9}, {"workers": 2, "min_workers": 1}, None, Measure.LEFT_OUT),
        # a worker fewer on several hosts would be another one
        ({}, {"is_on_one_host": False}, None, Measure.KEPT),
        ({}, {"is_on_one_host": False, "has_standby": True}, None, Measure.REPLACED),
        ({}, {"is_on_one_host": False, "has_standby": True}, Evictions(replaced=frozenset({1})), Measure.KEPT),
        ({}, {}, Evictions(count=MOST), Measure.KEPT),
        ({}, {"keeps_state": False, "has_standby": True}, None, Measure.KEPT),
    ],
)
def test_what_is_done(one: dict[str, Any], has: dict[str, Any], before: Evictions | None, measure: Measure) -> None:
    assert decided(slow(**one), means(**has), before) == (measure, measure is Measure.KEPT)


def test_it_must_have_been_slow_for_twice_as_long_each_time() -> None:
    waits = [
        [
            is_due(slow(ended=5.0 + seconds), Evictions(count=count), patience_seconds=10.0)
            for seconds in (9, 19, 21, 39, 41)
        ]
        for count in range(3)
    ]
    assert waits == [[False] + 4 * [True], 2 * [False] + 3 * [True], 4 * [False] + [True]]


def test_the_places_of_those_that_were_replaced_move_up() -> None:
    before = Evictions(count=1, replaced=frozenset({0, 2}))
    assert before.after(1, Measure.REPLACED) == Evictions(count=2, replaced=frozenset({0, 1, 2}))
    assert before.after(0, Measure.LEFT_OUT) == Evictions(count=2, replaced=frozenset({1}))


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0, 1), st.booleans()), max_size=12), st.integers(1, 5))
def test_no_course_of_evictions_goes_on_or_takes_the_last(
    course: list[tuple[int, float, bool]], min_workers: int
) -> None:
    before, workers, places = Evictions(), 5, list("abcde")
    replaced: set[str] = set()
    for worker, waited, has_standby in course:
        if worker >= workers:
            continue
        now = means(workers=workers, min_workers=min_workers, has_standby=has_standby)
        measure = what_to_do(slow(worker=worker, waited=waited), before, now).measure
        if measure is Measure.KEPT:
            continue
        before = before.after(worker, measure)
        if measure is Measure.REPLACED:
            assert places[worker] not in replaced, "each place is replaced once"
            replaced.add(places[worker])
        else:
            places.pop(worker)
            workers -= 1
    assert before.count <= MOST
    assert workers >= max(1, min_workers)
    assert {places[one] for one in before.replaced} <= replaced


def test_what_is_said() -> None:
    found = what_to_do(slow(), Evictions(count=MOST), MEANS)
    assert not absent(told(slow(), found), "worker 1", "60 ms", "20 ms", "100 steps", "input", f"{MOST} workers")
    assert "standby" in told(slow(), Decided(measure=Measure.REPLACED))
    assert "without it" in told(slow(), Decided(measure=Measure.LEFT_OUT))


# who is slow, and for how long, over several looks


def looks(*ranges: tuple[int, int], until: int = 10**9) -> list[Slow]:
    rows = simulated(workers=3, steps=400, late=(1, "backward", 8.0))
    usual = simulated(workers=3, steps=400)
    staying, found = Staying(), list[Slow]()
    for first, last in ranges:
        chosen = {w: usual[w][first:last] if last > until else rows[w][first:last] for w in rows}
        seen: Timeline = timeline(chosen)
        found = staying.look(slow_workers(seen), known_from=int(seen.steps[0]))
    return found


def test_a_worker_is_followed_over_several_looks() -> None:
    (alone,) = looks((0, 100))
    (followed,) = looks((0, 100), (50, 200), (200, 350))
    assert (alone.worker, alone.part, followed.first, followed.last) == (1, Part.BACKWARD, alone.first, 349)
    assert followed.steps == followed.last - followed.first + 1
    assert followed.ended - followed.began > 3 * (alone.ended - alone.began)
    assert followed.seconds - followed.others == pytest.approx(0.008, rel=0.2)
    assert 0.2 < followed.waited < 0.4
    (apart,) = looks((0, 100), (150, 300))  # what nobody has looked at is taken to be like the rest
    assert (apart.first, apart.steps, apart.began) == (alone.first, 300 - alone.first, alone.began)
    assert not looks((0, 100), (100, 200), until=150), "it is over"
    assert not looks()


@pytest.mark.parametrize(
    ("first", "known_from", "is_one"),
    [(100, 0, True), (101, 0, False), (50, 50, True), (150, 150, True), (150, 149, False)],
)
def test_what_a_worker_did_between_two_looks_is_taken_to_be_like_the_rest(
    first: int, known_from: int, is_one: bool
) -> None:
    staying = Staying()
    staying.look([slow(first=0, last=99, steps=100, began=5.0)])
    (found,) = staying.look([slow(first=first, last=200, steps=201 - first, began=9.0)], known_from=known_from)
    assert (found.first, found.began, found.steps) == ((0, 5.0, 201) if is_one else (first, 9.0, 201 - first))
    assert staying.look([slow(goes_on=False)]) == []


# what the agent does

RULES = Rules(
    roles=roles_of(LaunchConfig(target="train.py", workers=3)), grace_seconds=9.0, min_workers=2, max_workers=3
)
EVICT = Evict(worker=1, is_replaced=False, text="worker 1 is slow")


def looked(state: StepState = StepState.DONE, steps: bool = True, leaving: frozenset[int] = frozenset()) -> Looked:
    return Looked(positions=(StepPosition(step=7, state=state),) * 3, steps=steps, leaving=leaving)


def play(*events: Any) -> Next:
    state, actions = first_state(RULES), ()
    for now, event in enumerate(events):
        state, actions = decide(state, event, now=float(now), rules=RULES)
    return state, actions


@pytest.mark.parametrize(("is_replaced", "left"), [(False, 2), (True, 3)])
def test_all_stop_before_the_same_step(is_replaced: bool, left: int) -> None:
    evict = Evict(worker=1, is_replaced=is_replaced, text="worker 1 is slow")
    state, actions = play(looked(), evict)
    assert actions[0] == Stop()
    assert (state.halt and state.halt.purpose, next_size(state)) == (Purpose.EVICT, left)
    state, actions = play(looked(), evict, looked(StepState.HELD))
    assert state.halt is not None
    assert state.halt.target == 6


@pytest.mark.parametrize(
    "before",
    [
        (),  # nobody steps
        (looked(steps=False),),
        (looked(), looked(leaving=frozenset({2}))),  # somebody leaves already
        (looked(), Exited(worker=0, returncode=1, time=1.0)),
        (looked(), Exited(worker=1, returncode=0, time=1.0)),
        (looked(), Recorded(worker=0)),
        (looked(), Asked(workers=2)),
        (looked(), Asked(workers=2), looked()),
        (looked(), Evict(worker=2, is_replaced=True, text="worker 2 is slow")),
    ],
)
def test_nobody_is_evicted_while_something_else_happens(before: tuple[Any, ...]) -> None:
    calm, _ = play(*before)
    state, actions = play(*before, EVICT)
    assert actions == ()
    assert state == calm


ASKED: dict[str, Any] = {"target": "train.py", "workers": 2, "evict_stragglers": True, "monitor": True}


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"min_workers": 1, "monitor": False}, "monitor (--monitor)"),
        ({}, "standby (--standby)"),
        ({"min_workers": 1, "remote": Remote(hosts=parse_hosts("a,b"))}, "standby (--standby)"),
    ],
)
def test_evicting_needs_what_decides_and_what_takes_over(changes: dict[str, Any], missing: str) -> None:
    with refused(ConfigError, name=missing):
        LaunchConfig(**{**ASKED, **changes})


def test_requests_that_cannot_be() -> None:
    with refused(ConfigError, name="parameter_servers (--parameter-servers)", received=1):
        LaunchConfig(**{**ASKED, "parameter_servers": 1})
    with refused(ConfigError, name="evict_seconds (--evict-seconds)", received=0.0):
        LaunchConfig(**{**ASKED, "min_workers": 1, "evict_seconds": 0.0})
    with refused(ConfigTypeError, name="evict_stragglers", received=1):
        LaunchConfig(**{**ASKED, "min_workers": 1, "evict_stragglers": 1})


def test_on_several_hosts_it_takes_a_standby() -> None:
    hosts = Remote(hosts=parse_hosts("a,b"))
    config = LaunchConfig(**ASKED, min_workers=1, remote=hosts, standby=True, max_restarts=1)
    assert config.evict_stragglers
    assert LaunchConfig(**ASKED, standby=True, max_restarts=1).evict_stragglers


def test_what_is_left_may_be_as_few_as_may_be() -> None:
    config = LaunchConfig(target="train.py", workers=2, min_workers=1, evict_stragglers=True, monitor=True)
    left = Job.sized(SimpleNamespace(config=config), 1)  # type: ignore[arg-type]
    assert (left.workers, left.range) == (1, (1, 2))
