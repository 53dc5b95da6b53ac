"""The agent's decisions about workers that may be started again: tables, and what no course of events may do."""

import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.jobs.agent.restart_reporter import LEFT_CODE, failures_of, outcome_of
from tfdist.jobs.agent.worker_group import Attempt
from tfdist.jobs.plan.launch_config import LaunchConfig
from tfdist.jobs.plan.roles import SAME_FAILURES, roles_of
from tfdist.jobs.supervision.halting import ENDED_SECONDS, HALT_SECONDS, KILL_SECONDS
from tfdist.jobs.supervision.hangs import Hang, Hung
from tfdist.jobs.supervision.supervise import (
    RECORDED_SECONDS,
    Decision,
    History,
    after_failure,
    decide,
    decide_restart,
    next_size,
)
from tfdist.jobs.supervision.supervisor_state import (
    Action,
    Asked,
    Event,
    Evict,
    Exited,
    GoOn,
    Looked,
    Phase,
    Purpose,
    Received,
    Recorded,
    Rules,
    Say,
    Send,
    State,
    Stop,
    StopAfter,
    Tick,
    Verdict,
    first_state,
)
from tfdist.monitor.status import HALTED, StepPosition, StepState

GRACE = 10.0
ROLES = roles_of(LaunchConfig(target="train.py", workers=3))
RULES = Rules(roles=ROLES, grace_seconds=GRACE, max_restarts=1, min_workers=1, max_workers=4)
LAST = Rules(roles=ROLES, grace_seconds=GRACE, max_restarts=0, min_workers=1, max_workers=4)
HANG = Hung(hang=Hang(worker=1, text="worker 1 hangs", since=1.0))
TERM, KILL, INT = signal.SIGTERM, signal.SIGKILL, signal.SIGINT


def looked(
    *standings: StepState, tick: int = 7, steps: bool = True, leaving: tuple[int, ...] = (), ended_for: float = 0.0
) -> Looked:
    standings = standings or (StepState.DONE,) * 3
    positions = tuple(StepPosition(step=tick, state=standing) for standing in standings)
    return Looked(positions=positions, steps=steps, leaving=frozenset(leaving), ended_for=ended_for)


STEPS, HELD = looked(), looked(*[StepState.HELD] * 3)


def ended(worker: int, returncode: int = 0) -> Exited:
    return Exited(worker=worker, returncode=returncode, time=0.0)


def play(*events: tuple[float, Event], rules: Rules = RULES) -> tuple[State, list[Any]]:
    """Return the last state, and (time, action) of all that is not said."""
    state, done = first_state(rules), []
    for now, event in events:
        state, actions = decide(state, event, now=now, rules=rules)
        done += [(now, action) for action in actions if not isinstance(action, Say)]
    return state, done


def everybody(*workers: int, number: int) -> Send:
    return Send(workers=frozenset(workers), number=number)


def decided(state: State, history: History | None = None, min_workers: int = 1) -> Decision:
    return decide_restart(state, history or History(), same_failures=SAME_FAILURES, min_workers=min_workers)


@pytest.mark.parametrize("returncode", [-9, 1, -11, HALTED])
def test_a_failure_kills_all_at_once(returncode: int) -> None:
    state, done = play((5, ended(1, returncode)))
    assert done == [(5, everybody(0, 2, number=KILL))]
    assert (state.phase, state.failed) == (Phase.KILLING, True)
    state, _ = play((5, ended(1, returncode)), (5, ended(0, -9)), (5, ended(2, -9)))
    assert (state.phase, decided(state), next_size(state)) == (Phase.DONE, Decision.RESTART, 3)


def test_the_last_failure_ends_the_job_as_ever() -> None:
    state, done = play((5, ended(1, 1)), (15, Tick()), rules=LAST)
    assert done == [(5, everybody(0, 2, number=TERM)), (15, everybody(0, 2, number=KILL))]
    assert decided(state) is Decision.END
    state, _ = play((5, ended(1, 1)), (6, ended(0)), (7, ended(2)), rules=LAST)
    assert (state.verdict, state.failed) == (Verdict.FAILED, True), "that others ended well before changes nothing"
    for rules, verdict in ((LAST, Verdict.FAILED), (RULES, Verdict.RESTART)):
        state, done = play((4, ended(0)), (4, ended(2)), (5, ended(1, 1)), rules=rules)
        assert (state.phase, state.verdict, done) == (Phase.DONE, verdict, []), "nobody is left to wait for"


def test_workers_that_end_well_are_waited_for() -> None:
    state, done = play((1, ended(2)), (2, ended(0)), (900, Tick()))
    assert (state.phase, done) == (Phase.RUNNING, [])
    state, _ = play((1, ended(2)), (2, ended(0)), (900, ended(1)))
    assert (state.phase, decided(state)) == (Phase.DONE, Decision.END)


def test_a_recorded_failure_has_a_moment_to_be_shown() -> None:
    state, done = play((5, Recorded(worker=1)), (5 + RECORDED_SECONDS / 2, Recorded(worker=1)))
    assert (state.phase, done) == (Phase.RUNNING, [])
    end = 5 + RECORDED_SECONDS
    _, done = play((5, Recorded(worker=1)), (end, Recorded(worker=1)))
    assert done == [(end, everybody(0, 1, 2, number=KILL))]


@pytest.mark.parametrize("rules", [RULES, LAST])
def test_a_hang_kills_all(rules: Rules) -> None:
    state, done = play((5, STEPS), (9, HANG), rules=rules)
    assert done == [(9, everybody(0, 1, 2, number=KILL))]
    assert (state.failed, state.hang, state.deadline) == (True, HANG.hang, 9 + KILL_SECONDS)
    assert state.verdict is (Verdict.RESTART if rules is RULES else Verdict.FAILED)
    state, done = play((5, STEPS), (9, HANG), (10, HANG), (9 + KILL_SECONDS, Tick()), rules=rules)
    assert (state.phase, state.verdict, decided(state)) == (Phase.LOST, Verdict.FAILED, Decision.END)


ALL_HALT = tuple((8.0, ended(worker, HALTED)) for worker in range(3))


@pytest.mark.parametrize(
    ("request_", "size"),
    [
        (Asked(workers=4), 4),
        (Asked(workers=1), 1),
        (Received(number=signal.SIGUSR1), 4),
        (Received(number=signal.SIGUSR2), 2),
    ],
)
def test_another_number_of_workers(request_: Event, size: int) -> None:
    events: list[tuple[float, Event]]
    events = [(5, STEPS), (6, request_), (6.1, STEPS), (6.2, STEPS), (7, HELD), (7.5, HELD)]
    state, done = play(*events)
    assert done == [(6.1, Stop()), (7, StopAfter(step=6))]
    assert (state.phase, state.deadline) == (Phase.RUNNING, None)
    state, _ = play(*events, *ALL_HALT)
    assert (state.phase, decided(state), next_size(state)) == (Phase.DONE, Decision.RESTART, size)
    assert not state.failed
    state, _ = play(*events, *((8.0, ended(worker)) for worker in range(3)))
    assert (state.verdict, decided(state)) == (Verdict.FINISHED, Decision.END), "the script was over before that step"


@pytest.mark.parametrize("request_", [Asked(workers=2), Received(number=TERM)])
def test_who_has_saved_and_does_not_end_is_killed(request_: Event) -> None:
    late = looked(steps=False, ended_for=ENDED_SECONDS + 0.1)
    events: list[tuple[float, Event]]
    events = [(5, STEPS), (6, request_), (6.1, STEPS), (7, HELD), (8, ended(1, HALTED)), (9, late)]
    state, done = play(*events, (9.1, late))
    assert done[-1] == (9, everybody(0, 2, number=KILL))
    assert state.verdict is (Verdict.INTERRUPTED if state.received else Verdict.RESTART)
    state, _ = play(*events, (9, ended(0, -9)), (9, ended(2, -9)))
    assert (state.phase, state.failed, state.halted) == (Phase.DONE, False, {0, 1, 2})
    assert decided(state) is (Decision.END if state.received else Decision.RESTART)


def test_a_wish_waits_until_the_workers_step() -> None:
    starting = looked(steps=False)
    _, done = play((1, Asked(workers=2)), (2, starting), (50, starting), (51, STEPS))
    assert done == [(51, Stop())]
    _, done = play((5, STEPS), (6, Recorded(worker=1)), (6, Asked(workers=2)), (6.1, STEPS))
    assert done == [], "the failure is decided first"


def test_the_number_that_is_there_needs_nothing() -> None:
    _, done = play((5, STEPS), (6, Asked(workers=3)), (7, STEPS))
    assert done == []
    _, done = play((5, looked(steps=False)), (6, Asked(workers=1)), (7, Asked(workers=3)), (8, STEPS))
    assert done == []


@pytest.mark.parametrize("workers", [0, 5])
def test_a_number_out_of_bounds_changes_nothing(workers: int) -> None:
    state, done = play((5, STEPS), (6, Asked(workers=workers)), (7, STEPS))
    assert (state.wanted, done) == (3, [])


def test_the_target_is_not_read_at_once() -> None:
    _, done = play((5, STEPS), (6, Asked(workers=2)), (6, STEPS), (6.0005, HELD))
    assert done == [(6, Stop())]


def test_a_resize_that_nobody_comes_to_is_given_up() -> None:
    late = 6.1 + HALT_SECONDS
    looks = ((6.1, STEPS), (late - 1, STEPS), (late, STEPS), (late + 1, STEPS))
    state, done = play((5, STEPS), (6, Asked(workers=2)), *looks)
    assert done == [(6.1, Stop()), (late, GoOn())]
    assert (state.halt, state.wanted) == (None, 3)
    state, done = play((5, STEPS), (6.1, Evict(worker=1, is_replaced=False, text="slow")), *looks)
    assert done == [(6.1, Stop()), (late, GoOn())]
    assert (state.halt, next_size(state)) == (None, 3)


def test_a_worker_that_is_asked_to_leave() -> None:
    leaving = looked(leaving=(1,))
    state, done = play((5, STEPS), (6, leaving), (7, HELD), *ALL_HALT)
    assert done == [(6, Stop()), (7, StopAfter(step=6))]
    assert (decided(state), next_size(state)) == (Decision.RESTART, 2)
    assert decided(state, min_workers=3) is Decision.TOO_FEW_WORKERS
    state, _ = play((5, STEPS), (6, Asked(workers=1)), (6, leaving), (7, HELD), *ALL_HALT)
    assert next_size(state) == 1, "no more than were asked for"
    everyone = looked(leaving=(0, 1, 2))
    state, _ = play((5, STEPS), (6, leaving), (6.5, everyone), (7, HELD), *ALL_HALT)
    assert decided(state) is Decision.TOO_FEW_WORKERS


def test_who_leaves_and_never_comes_is_killed_with_all() -> None:
    late = 6 + HALT_SECONDS
    state, done = play((5, STEPS), (6, looked(leaving=(1,))), (late, STEPS))
    assert done == [(6, Stop()), (late, everybody(0, 1, 2, number=KILL))]
    assert next_size(state) == 2


@pytest.mark.parametrize("how", [ended(0, -9), ended(0, 1), HANG])
def test_a_failure_while_all_come_to_a_step(how: Event) -> None:
    state, done = play((5, STEPS), (6, Asked(workers=2)), (6.1, STEPS), (7, how))
    assert done[-1][1].number == KILL
    assert state.failed
    assert play((5, STEPS), (6, Asked(workers=2)), (6.1, STEPS), (7, ended(0, HALTED)))[0].failed, "at no step"
    state, done = play((5, STEPS), (6, Asked(workers=2)), (6.1, STEPS), (7, HELD), (8, ended(1, HALTED)), (8, how))
    assert done[-1] == (8, everybody(*({0, 2} - ({0} if how != HANG else set())), number=KILL))
    assert next_size(state) == 2, "what was asked for still holds"


@pytest.mark.parametrize("number", [TERM, INT, signal.SIGHUP, signal.SIGPIPE])
def test_a_signal_lets_workers_that_step_save(number: int) -> None:
    events: list[tuple[float, Event]]
    events = [(5, STEPS), (6, Received(number=number)), (6.1, STEPS), (7, HELD)]
    state, done = play(*events)
    assert done == [(6, Stop()), (7, StopAfter(step=6))]
    state, done = play(*events, *ALL_HALT)
    assert (state.phase, state.received, decided(state)) == (Phase.DONE, number, Decision.END)
    assert (state.verdict, state.asked_at, state.halted) == (Verdict.INTERRUPTED, 6, {0, 1, 2})
    state, done = play(*events[:2], (7, ended(1, 1)))
    assert done[-1] == (7, everybody(0, 2, number=KILL)), "the step cannot end"
    assert (state.verdict, state.failed) == (Verdict.INTERRUPTED, True)
    assert play(*events[:2], (7, ended(1, -number)))[1] == [(6, Stop())], "the signal has ended it"
    state, done = play(*events[:2], (7, HANG), (8, HANG))
    assert (done[-1], state.verdict) == ((7, everybody(0, 1, 2, number=KILL)), Verdict.INTERRUPTED)
    _, done = play(*events, (15.9, Tick()), (16, Tick()))
    assert done[-1] == (16, everybody(0, 1, 2, number=KILL))


@pytest.mark.parametrize("rules", [RULES, LAST])
def test_a_signal_to_workers_that_do_not_step_is_passed_on(rules: Rules) -> None:
    before: list[tuple[float, Event]]
    for before in ([], [(5.9, Recorded(worker=1))]):
        state, done = play((5, looked(steps=False)), *before, (6, Received(number=INT)), (7, HANG), rules=rules)
        assert done == [(6, everybody(0, 1, 2, number=INT))], "they have all their time to end"
        assert (state.verdict, state.failed) == (Verdict.INTERRUPTED, False)


def test_a_signal_when_fit_is_over_meanwhile() -> None:
    over = looked(steps=False)
    state, done = play((5, STEPS), (6, Received(number=INT)), (7, over), (8, over))
    assert done == [(6, Stop()), (7, GoOn()), (7, everybody(0, 1, 2, number=INT))]
    assert state.phase is Phase.STOPPING
    _, done = play((5, STEPS), (6, Received(number=signal.SIGPIPE)), (7, over), (16, over))
    assert done == [(6, Stop()), (16, everybody(0, 1, 2, number=KILL))], "nobody understands that signal"


def test_ctrl_c_again_kills() -> None:
    state, done = play((5, STEPS), (6, Received(number=INT)), (7, Received(number=INT)), (7 + KILL_SECONDS, Tick()))
    assert (state.phase, state.verdict) == (Phase.LOST, Verdict.INTERRUPTED)
    assert done == [(6, Stop()), (7, everybody(0, 1, 2, number=KILL))]


def test_a_signal_during_a_resize_ends_the_job() -> None:
    state, done = play(
        (5, STEPS), (6, Asked(workers=2)), (6.1, STEPS), (6.5, Received(number=TERM)), (7, HELD), *ALL_HALT
    )
    assert done == [(6.1, Stop()), (7, StopAfter(step=6))]
    assert (decided(state), state.halt and state.halt.purpose) == (Decision.END, Purpose.END)
    _, late = play((5, STEPS), (6, Asked(workers=2)), (6.1, STEPS), (7, HELD), (7.5, Received(number=TERM)), (9, HELD))
    assert late == done, "the step stays"


def test_a_signal_while_all_are_killed() -> None:
    state, _ = play((5, ended(1, -9)), (5, Received(number=TERM)), (5, ended(0, -9)), (5, ended(2, -9)))
    assert (state.received, decided(state)) == (TERM, Decision.END)


@pytest.mark.parametrize(
    ("events", "outcome"),
    [
        ([(5, ended(0)), (5, ended(1)), (5, ended(2))], (0, [])),
        ([(5, ended(1, 3)), (6, Exited(worker=0, returncode=-15, time=6.0)), (7, ended(2))], (3, [1])),
        ([(5, STEPS), (6, Received(number=TERM)), (6.1, STEPS), (7, HELD), *ALL_HALT], (143, [])),
        ([(5, STEPS), (9, HANG), (9 + KILL_SECONDS, Tick())], (1, [])),
        ([(5, STEPS), (9, HANG), (9, ended(0, -9)), (9, ended(1, 7)), (9, ended(2, -9))], (1, [])),
    ],
)
def test_the_exit_code_of_a_job(events: list[tuple[float, Event]], outcome: tuple[int, list[int]]) -> None:
    state, _ = play(*events, rules=LAST)
    exits = {event.worker: event for _, event in events if isinstance(event, Exited)}
    attempt = Attempt(state=state, exits=exits, stopped_at=state.asked_at, killed=False)
    failures = failures_of(attempt, LAST, {})
    judged = outcome_of(attempt, LAST, failures, decided(state))
    assert (judged.exit_code, [failure.worker for failure in judged.failures]) == outcome
    assert outcome_of(attempt, LAST, failures, Decision.TOO_FEW_WORKERS).exit_code == LEFT_CODE


def test_the_budget_and_the_same_failure() -> None:
    failed, _ = play((5, ended(1, -9)), (5, ended(0, -9)), (5, ended(2, -9)))
    assert decided(failed) is Decision.RESTART
    history = History()
    for _ in range(SAME_FAILURES - 1):
        history = after_failure(history, "x in step 7")
    assert decided(failed, history) is Decision.RESTART
    assert decided(failed, after_failure(history, "x in step 8")) is Decision.RESTART
    assert history.failures == SAME_FAILURES - 1
    assert decided(failed, after_failure(history, "x in step 7")) is Decision.REPEATED_FAILURE
    assert decide_restart(failed, history, same_failures=None, min_workers=1) is Decision.RESTART, "of a chief"
    for _ in range(3):
        history = after_failure(history, None)  # nobody knows where
    assert decided(failed, history) is Decision.RESTART


EVENTS = st.one_of(
    st.builds(ended, st.integers(0, 2), st.sampled_from([0, 1, -9, HALTED])),
    st.builds(Recorded, worker=st.integers(0, 2)),
    st.builds(Received, number=st.sampled_from([INT, TERM, signal.SIGPIPE, signal.SIGUSR1, signal.SIGUSR2])),
    st.builds(Asked, workers=st.integers(0, 5)),
    st.just(HANG),
    st.just(Tick()),
    st.builds(
        looked,
        *[st.sampled_from(StepState)] * 3,
        steps=st.booleans(),
        leaving=st.sampled_from([(), (), (), (1,), (0, 1, 2)]),
        ended_for=st.sampled_from([0.0, 0.0, 5.0]),
    ),
)
COURSES = st.lists(st.tuples(st.floats(0.0, 30.0), EVENTS), max_size=15)


@given(COURSES, st.sampled_from([RULES, LAST]))
def test_any_course_of_events(course: list[tuple[float, Event]], rules: Rules) -> None:
    order = [Phase.RUNNING, Phase.STOPPING, Phase.KILLING, Phase.LOST, Phase.DONE]
    state, now, asked, targets = first_state(rules), 0.0, 0, 0
    for seconds, event in course:
        if state.phase in (Phase.DONE, Phase.LOST) or (isinstance(event, Exited) and event.worker not in state.running):
            continue
        now += seconds
        before = state
        state, actions = decide(state, event, now=now, rules=rules)
        assert order.index(state.phase) >= order.index(before.phase), "a start never goes back"
        for action in actions:
            if isinstance(action, Send):
                assert action.workers <= before.running, "who has ended gets no signal"
            asked += isinstance(action, Stop) - isinstance(action, GoOn)
            targets += isinstance(action, StopAfter)
            assert not (isinstance(action, GoOn) and targets), "a target cannot be taken back"
        assert asked in (0, 1)
        assert targets <= 1
        assert targets <= asked
        assert (state.deadline is not None) >= (state.phase in (Phase.STOPPING, Phase.KILLING)), "every wait ends"
        assert (state.phase is Phase.DONE) == (not state.running)
        assert state.verdict is not Verdict.RESTART or (state.received is None and state.phase is not Phase.LOST)
        assert RULES.min_workers <= state.wanted <= RULES.max_workers


@given(COURSES, st.sampled_from([RULES, LAST]))
def test_time_alone_ends_a_start_that_is_ending(course: list[tuple[float, Event]], rules: Rules) -> None:
    state, now = first_state(rules), 0.0
    for seconds, event in course:
        now += seconds
        state, _ = decide(state, event, now=now, rules=rules)
    if state.phase is Phase.RUNNING and state.deadline is None:
        return
    for _ in range(3):
        now += max(GRACE, KILL_SECONDS)
        state, _ = decide(state, looked(steps=True), now=now, rules=rules)
    assert state.phase in (Phase.DONE, Phase.LOST)


def test_actions_are_actions() -> None:
    assert {Stop, GoOn, StopAfter, Send, Say} <= set(Action.__args__)
