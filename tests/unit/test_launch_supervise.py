"""The agent's decisions: a table of what happens, and what no course of events may do."""

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.jobs.plan.launch_config import LaunchConfig
from tfdist.jobs.plan.roles import roles_of
from tfdist.jobs.supervision.halting import KILL_SECONDS
from tfdist.jobs.supervision.supervise import decide
from tfdist.jobs.supervision.supervisor_state import (
    Event,
    Exited,
    Phase,
    Received,
    Recorded,
    Rules,
    Say,
    Send,
    State,
    Tick,
    first_state,
)

GRACE = 10.0
RULES = Rules(roles=roles_of(LaunchConfig(target="train.py", workers=3)), grace_seconds=GRACE)


def play(events: list[tuple[float, Event]]) -> tuple[State, list[tuple[float, Send]]]:
    state, sent = first_state(RULES), []
    for now, event in events:
        state, actions = decide(state, event, now=now, rules=RULES)
        sent += [(now, action) for action in actions if isinstance(action, Send)]
    return state, sent


def ended(worker: int, returncode: int = 0) -> Exited:
    return Exited(worker=worker, returncode=returncode, time=0.0)


def everybody(*workers: int, number: int) -> Send:
    return Send(workers=frozenset(workers), number=number)


def test_workers_that_end_well_are_waited_for() -> None:
    state, sent = play([(1, ended(2)), (2, ended(0)), (900, Tick())])
    assert (state.phase, state.running, sent) == (Phase.RUNNING, {1}, [])
    assert play([(1, ended(2)), (2, ended(0)), (900, ended(1))])[0].phase is Phase.DONE


def test_a_failure_ends_the_others_then_kills_them() -> None:
    events: list[tuple[float, Event]] = [(5, ended(1, 3)), (14.9, Tick()), (15, Tick())]
    state, sent = play(events)
    assert state.phase is Phase.KILLING
    assert sent == [(5, everybody(0, 2, number=signal.SIGTERM)), (15, everybody(0, 2, number=signal.SIGKILL))]
    assert play([*events, (15.1, ended(0, -9)), (15.2, ended(2, -9))])[0].phase is Phase.DONE
    assert play([*events, (15 + KILL_SECONDS, Tick())])[0].phase is Phase.LOST


def test_a_second_failure_changes_nothing() -> None:
    _, sent = play([(5, ended(1, 3)), (6, ended(0, 1)), (7, Tick())])
    assert sent == [(5, everybody(0, 2, number=signal.SIGTERM))]


def test_a_recorded_failure_has_the_grace_period_to_end_itself() -> None:
    state, sent = play([(5, Recorded(worker=1)), (9, Recorded(worker=1)), (14.9, Tick())])
    assert (state.phase, sent) == (Phase.RUNNING, [])
    state, sent = play([(5, Recorded(worker=1)), (9, Recorded(worker=1)), (15, Recorded(worker=1))])
    assert state.failed
    assert sent == [(15, everybody(0, 1, 2, number=signal.SIGTERM))]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_passed_on(number: int) -> None:
    state, sent = play([(5, ended(0)), (6, Received(number=number))])
    assert sent == [(6, everybody(1, 2, number=number))]
    assert (state.phase, state.received) == (Phase.STOPPING, number)


def test_a_closed_output_asks_to_end() -> None:
    state, sent = play([(6, Received(number=signal.SIGPIPE))])
    assert sent == [(6, everybody(0, 1, 2, number=signal.SIGTERM))]
    assert state.received == signal.SIGPIPE


@pytest.mark.parametrize("first", [Received(number=signal.SIGINT), Received(number=signal.SIGTERM), ended(0, 1)])
def test_ctrl_c_while_it_ends_kills(first: Event) -> None:
    state, sent = play([(5, first), (6, Received(number=signal.SIGINT)), (7, Received(number=signal.SIGINT))])
    assert state.phase is Phase.KILLING
    assert [(now, action.number) for now, action in sent[1:]] == [(6, signal.SIGKILL)]


def test_sigterm_twice_does_not_kill() -> None:
    state, sent = play([(5, Received(number=signal.SIGTERM)), (5, Received(number=signal.SIGTERM))])
    assert (state.phase, len(sent)) == (Phase.STOPPING, 1)


EVENTS = st.one_of(
    st.builds(ended, st.integers(0, 2), st.sampled_from([0, 1, -9])),
    st.builds(Recorded, worker=st.integers(0, 2)),
    st.builds(Received, number=st.sampled_from([signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE])),
    st.just(Tick()),
)
COURSES = st.lists(st.tuples(st.floats(0.0, 30.0), EVENTS), max_size=12)


@given(COURSES)
def test_any_course_of_events(course: list[tuple[float, Event]]) -> None:
    order = [Phase.RUNNING, Phase.STOPPING, Phase.KILLING, Phase.LOST, Phase.DONE]
    state, now, numbers = first_state(RULES), 0.0, []
    for seconds, event in course:
        if state.phase in (Phase.DONE, Phase.LOST) or (isinstance(event, Exited) and event.worker not in state.running):
            continue
        now += seconds
        before = state
        state, actions = decide(state, event, now=now, rules=RULES)
        assert order.index(state.phase) >= order.index(before.phase), "a job never goes back"
        signals = [action for action in actions if not isinstance(action, Say)]
        assert all(isinstance(action, Send) and action.workers <= before.running for action in signals)
        numbers += [action.number for action in signals if isinstance(action, Send)]
        assert (state.deadline is not None) >= (state.phase in (Phase.STOPPING, Phase.KILLING)), "every wait ends"
        assert (state.phase is Phase.DONE) == (not state.running)
    assert len(numbers) <= 2
    assert signal.SIGKILL not in numbers[:1]


@given(COURSES)
def test_time_alone_ends_a_job_that_is_stopping(course: list[tuple[float, Event]]) -> None:
    state, now = first_state(RULES), 0.0
    for seconds, event in course:
        now += seconds
        state, _ = decide(state, event, now=now, rules=RULES)
    if state.phase is Phase.RUNNING and state.deadline is None:
        return
    for _ in range(3):
        now += max(GRACE, KILL_SECONDS)
        state, _ = decide(state, Tick(), now=now, rules=RULES)
    assert state.phase in (Phase.DONE, Phase.LOST)
