"""Decisions of the agent about a chief and its tasks: a table of events, and what no course of events may do."""

import signal
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import absent
from tfdist.jobs.agent.restart_reporter import failures_of, outcome_of
from tfdist.jobs.agent.worker_group import Attempt
from tfdist.jobs.plan.launch_config import LaunchConfig
from tfdist.jobs.plan.roles import BLAME_SECONDS, roles_of
from tfdist.jobs.supervision.halting import KILL_SECONDS
from tfdist.jobs.supervision.hangs import Hang, Hung
from tfdist.jobs.supervision.supervise import Decision, decide
from tfdist.jobs.supervision.supervisor_state import (
    Action,
    Event,
    Exited,
    Phase,
    Received,
    Recorded,
    Rules,
    Say,
    Send,
    Start,
    State,
    Tick,
    Verdict,
    first_state,
)
from tfdist.processes.worker_failure import Record

GRACE = 10.0
CHIEF, WORKER_0, WORKER_1, PS_0, PS_1 = range(5)
ROLES = roles_of(LaunchConfig(target="train.py", workers=2, parameter_servers=2))
RULES = Rules(roles=ROLES, max_restarts=2, grace_seconds=GRACE)
Events = Sequence[tuple[float, Event]]


def play(events: Events, state: State | None = None) -> tuple[State, list[tuple[float, Action]], str]:
    """The last state, the signals and starts with their times, and what was said."""
    state, done, said = state or first_state(RULES), [], []
    for now, event in events:
        state, actions = decide(state, event, now=now, rules=RULES)
        done += [(now, action) for action in actions if not isinstance(action, Say)]
        said += [action.text for action in actions if isinstance(action, Say)]
    assert not any("\n" in line for line in said)
    return state, done, "\n".join(said)


def ended(worker: int, returncode: int = -9, *, time: float = 0.0, recorded: bool = False) -> Exited:
    return Exited(worker=worker, returncode=returncode, time=time, recorded=recorded)


def hangs(worker: int | None) -> Hung:
    return Hung(hang=Hang(worker=worker, text="it hangs", since=1.0))


def to(*workers: int, number: int = signal.SIGTERM) -> Send:
    return Send(workers=frozenset(workers), number=number)


def all_end(now: float, *workers: int) -> Events:
    return [(now, ended(worker, -15, time=now)) for worker in workers]


def test_the_end_of_the_chief_ends_the_tasks() -> None:
    state, done, said = play([(5, ended(CHIEF, 0)), *all_end(5.1, WORKER_0, WORKER_1, PS_0, PS_1)])
    assert (state.phase, state.verdict, said) == (Phase.DONE, Verdict.FINISHED, "")
    assert done == [(5, to(WORKER_0, WORKER_1, PS_0, PS_1))]


def test_tasks_that_do_not_end_are_killed() -> None:
    events: Events = [(5, ended(CHIEF, 0)), *all_end(5.1, WORKER_0, WORKER_1, PS_1), (15, Tick())]
    state, done, said = play(events)
    assert done[1:] == [(15, to(PS_0, number=signal.SIGKILL))]
    assert said == "killing ps 0"
    assert play([(16, ended(PS_0))], state)[0].verdict is Verdict.FINISHED
    lost, _, said = play([(15 + KILL_SECONDS, Tick())], state)
    assert lost.phase is Phase.LOST
    assert "ps 0 did not end" in said


@pytest.mark.parametrize("returncode", [-9, 1, 0])
def test_a_worker_is_started_again_until_the_budget_is_spent(returncode: int) -> None:
    again = ended(WORKER_0, returncode)
    state, done, said = play([(5, again), (6, ended(WORKER_1)), (7, again), (8, Tick())])
    assert done == [(5, Start(worker=WORKER_0)), (6, Start(worker=WORKER_1))]
    assert (state.phase, state.running) == (Phase.RUNNING, {CHIEF, WORKER_1, PS_0, PS_1})
    first, second, third = said.splitlines()
    assert "worker 0 ended" in first
    assert "1 of 2 times" in first
    assert "2 of 2 times" in second
    assert "continues without it" in third
    assert "--max-restarts" in third


def test_who_is_stopped_is_killed_and_its_end_decides() -> None:
    for index in (CHIEF, WORKER_0, PS_1):
        hung = hangs(index)
        state, done, said = play([(5, hung)])
        assert (state.phase, absent(said, "it hangs", "killed")) == (Phase.RUNNING, [])
        assert done == [(5, to(index, number=signal.SIGKILL))]
    _, done, _ = play([(4, ended(CHIEF, 0)), (5, hung)])
    assert len(done) == 1, "the job ends already"
    assert play([(5, ended(CHIEF)), (5.1, hangs(CHIEF))])[1] == [], "it has ended"
    _, done, _ = play([(5, hung), (5.1, ended(WORKER_0)), (5.2, hung)])
    assert done == [(5, to(PS_1, number=signal.SIGKILL)), (5.1, Start(worker=WORKER_0))], "it is killed once"
    first, second = hangs(WORKER_0), hangs(WORKER_1)
    _, done, _ = play([(5, first), (5, second), (5.1, ended(WORKER_1)), (6, second)])
    assert [action for _, action in done if isinstance(action, Start)] == [Start(worker=WORKER_1)]
    assert [now for now, action in done if action == to(WORKER_1, number=signal.SIGKILL)] == [5, 6], "and its next one"


def test_without_any_worker_the_job_fails() -> None:
    spent = replace(first_state(RULES), replaced=2)
    state, done, said = play([(5, ended(WORKER_0)), (6, ended(WORKER_1))], spent)
    assert (state.phase, state.verdict, state.cause) == (Phase.STOPPING, Verdict.FAILED, WORKER_1)
    assert state.failed
    assert done == [(6, to(CHIEF, PS_0, PS_1))]
    assert not absent(said, "none is left", "job fails")


@pytest.mark.parametrize("returncode", [-9, 1, 0])
def test_the_death_of_a_server_starts_the_job_again(returncode: int) -> None:
    state, done, said = play([(4, ended(WORKER_0)), (5, ended(PS_1, returncode))])
    assert (state.phase, state.verdict, state.cause) == (Phase.STOPPING, Verdict.RESTART, PS_1)
    assert done[1:] == [(5, to(CHIEF, WORKER_0, WORKER_1, PS_0))]
    assert "ps 1 ended" in said.splitlines()[1]
    assert "1 of 2 times" in said
    state, done, _ = play([*all_end(5.1, WORKER_0, WORKER_1, PS_0), (5.2, ended(CHIEF, 1, time=5.1))], state)
    assert (state.phase, state.verdict) == (Phase.DONE, Verdict.RESTART)
    assert (state.restarts, state.replaced, state.failed) == (0, 1, True)


def test_after_the_last_start_the_job_fails_by_the_server() -> None:
    spent = replace(first_state(RULES), restarts=2)
    state, done, said = play([(5, ended(PS_0))], spent)
    assert (state.verdict, state.cause, len(done)) == (Verdict.FAILED, PS_0, 1)
    assert not absent(said, "2 of 2 times", "--max-restarts", "it fails")


@pytest.mark.parametrize("failure", [ended(CHIEF, 1, recorded=True), ended(CHIEF, -6), Recorded(worker=CHIEF)])
def test_a_failure_of_the_chief_just_before_a_server_died_is_the_servers(failure: Event) -> None:
    state, done, said = play([(5, failure), (5.9, ended(PS_0))])
    assert (state.verdict, state.cause) == (Verdict.RESTART, PS_0)
    assert done[0][0] == 5.9
    assert "ps 0 ended" in said
    late, _, _ = play([(5, failure), (5 + BLAME_SECONDS, Tick()), (7, ended(PS_0))])
    assert late.cause == CHIEF


@pytest.mark.parametrize(("returncode", "recorded"), [(1, True), (7, False), (-6, True), (-2, True)])
def test_a_failure_of_the_chief_fails_the_job(returncode: int, recorded: bool) -> None:
    end = ended(CHIEF, returncode, recorded=recorded)
    events: Events = [(5, end), (5.5, ended(WORKER_0)), (5.9, Tick())]
    state, done, said = play(events)
    assert (state.phase, done, said) == (Phase.RUNNING, [], "")
    state, done, said = play([*events, (5 + BLAME_SECONDS, Tick())])
    assert (state.phase, state.verdict, state.cause) == (Phase.STOPPING, Verdict.FAILED, CHIEF)
    assert state.failed
    assert done == [(6, to(WORKER_1, PS_0, PS_1))]
    assert "the chief failed" in said


def test_a_chief_that_is_killed_starts_the_job_again() -> None:
    events: Events = [(5, ended(CHIEF, -9)), (5 + BLAME_SECONDS, Tick())]
    state, done, said = play(events)
    assert (state.verdict, state.cause) == (Verdict.RESTART, CHIEF)
    assert done == [(6, to(WORKER_0, WORKER_1, PS_0, PS_1))]
    assert not absent(said, "chief ended", "signal 9", "1 of 2 times")
    state, _, said = play(events, replace(first_state(RULES), restarts=2))
    assert (state.verdict, state.cause) == (Verdict.FAILED, CHIEF)
    assert "so it fails" in said


def test_a_chief_that_has_failed_has_the_grace_period_to_end_itself() -> None:
    events: Events = [(5, Recorded(worker=CHIEF)), (9, Recorded(worker=CHIEF)), (14.9, Tick())]
    assert play(events)[:2] == (play(events[:1])[0], [])
    state, _ = decide(state=first_state(RULES), event=events[0][1], now=5, rules=replace(RULES, grace_seconds=0.0))
    assert state.deadline == 5 + BLAME_SECONDS, "a server may be the cause"
    state, done, said = play([*events, (15, Tick())])
    assert (state.verdict, state.cause, state.failed) == (Verdict.FAILED, CHIEF, True)
    assert done == [(15, to(CHIEF, WORKER_0, WORKER_1, PS_0, PS_1))]
    assert "does not end" in said
    state, done, _ = play([*events[:1], (9, ended(CHIEF, 1, recorded=True))])
    assert (state.verdict, done[0][0]) == (Verdict.FAILED, 9)
    state, _, _ = play([*events[:1], (9, ended(PS_0))])
    assert (state.verdict, state.cause) == (Verdict.FAILED, CHIEF)


@pytest.mark.parametrize(
    ("received", "passed"),
    [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGTERM), (signal.SIGPIPE, signal.SIGTERM)],
)
def test_a_signal_reaches_the_chief_and_the_tasks_after_it(received: int, passed: int) -> None:
    state, done, said = play([(5, Received(number=received)), (6, ended(WORKER_0)), (7, ended(CHIEF, 0, time=7))])
    assert done == [(5, to(CHIEF, number=passed)), (7, to(WORKER_1, PS_0, PS_1))]
    assert (state.verdict, state.received, state.deadline) == (Verdict.INTERRUPTED, received, 15)
    assert "10 s to end" in said
    state, done, _ = play([(5, Received(number=received)), (15, Tick())])
    assert done[1:] == [(15, to(CHIEF, WORKER_0, WORKER_1, PS_0, PS_1, number=signal.SIGKILL))]


def test_ctrl_c_twice_kills() -> None:
    _, done, _ = play([(5, Received(number=signal.SIGINT)), (6, Received(number=signal.SIGINT))])
    assert done[1:] == [(6, to(CHIEF, WORKER_0, WORKER_1, PS_0, PS_1, number=signal.SIGKILL))]
    twice = [Received(number=signal.SIGINT)] * 2
    state, done, _ = play([*enumerate(twice), (2, ended(CHIEF))])
    assert (state.phase, len(done)) == (Phase.KILLING, 2)


def test_a_signal_while_the_job_is_about_to_start_again_ends_it() -> None:
    state, done, said = play([(5, ended(PS_0)), (5.1, Received(number=signal.SIGINT))])
    assert (state.phase, state.verdict, state.received) == (Phase.STOPPING, Verdict.INTERRUPTED, signal.SIGINT)
    assert len(done) == 1
    assert not absent(said, "SIGINT: ", "not started again")
    assert play([(6, Received(number=signal.SIGINT))], state)[0].phase is Phase.KILLING


def test_a_signal_after_the_chiefs_failure_leaves_it_the_cause() -> None:
    for failure, asked in (
        (ended(CHIEF, 3, recorded=True), (WORKER_0, WORKER_1, PS_0, PS_1)),
        (Recorded(worker=CHIEF), (CHIEF,)),
    ):
        state, done, _ = play([(5, failure), (5.5, Received(number=signal.SIGTERM))])
        assert (state.verdict, state.cause, state.failed) == (Verdict.FAILED, CHIEF, True)
        assert done == [(5.5, to(*asked))]


def test_a_chief_that_was_done_before_a_server_died_was_done() -> None:
    events: Events = [(5.1, ended(PS_0, time=5.05)), (5.2, ended(CHIEF, 0, time=5.0))]
    assert (play(events)[0].verdict, play(events)[0].failed) == (Verdict.FINISHED, False)
    for end in (ended(CHIEF, 0, time=5.15), ended(CHIEF, 1, time=5.0), ended(WORKER_0, 0, time=5.0)):
        state, _, _ = play([(5.1, ended(PS_0, time=5.05)), (5.2, end)])
        assert (state.verdict, state.failed) == (Verdict.RESTART, True)


RECORD = Record(clock=4.9, type="UnavailableError", message="gone", traceback="Traceback", exit_code=1)


def outcome(events: Events, record: Record | None = None, state: State | None = None) -> tuple[int, list[str]]:
    state, _, _ = play(events, state)
    exits = {event.worker: event for _, event in events if isinstance(event, Exited)}
    attempt = Attempt(state=state, exits=exits, stopped_at=state.asked_at, killed=False)
    failures = failures_of(attempt, RULES, {CHIEF: record})
    judged = outcome_of(attempt, RULES, failures, Decision.END)
    return judged.exit_code, [str(failure.name) for failure in judged.failures]


def test_outcomes() -> None:
    assert outcome([(5, ended(CHIEF, 0, time=5)), *all_end(6, *range(1, 5))]) == (0, [])
    chief_failed: Events = [(5, ended(CHIEF, 3, time=5, recorded=True)), (7, Tick()), *all_end(8, *range(1, 5))]
    assert outcome(chief_failed, replace(RECORD, exit_code=3)) == (3, ["chief"])
    assert outcome([(5, Received(number=2)), *all_end(6, *range(5))]) == (130, [])
    spent = replace(first_state(RULES), restarts=2, replaced=2)
    server: Events = [(5, ended(PS_1, time=5)), *all_end(6, CHIEF, WORKER_0, WORKER_1, PS_0)]
    assert outcome(server, None, spent) == (137, ["ps 1"])
    assert outcome(server, RECORD, spent) == (137, ["ps 1", "chief"])
    quiet: Events = [(5, ended(PS_1, 0, time=5)), *all_end(6, CHIEF, WORKER_0, WORKER_1, PS_0)]
    assert outcome(quiet, None, spent) == (1, ["ps 1"])
    workers: Events = [(5, ended(WORKER_0, time=5)), (6, ended(WORKER_1, 4, time=6)), *all_end(7, CHIEF, PS_0, PS_1)]
    assert outcome(workers, None, spent) == (4, ["worker 1"])
    held: Events = [(5, Recorded(worker=CHIEF)), (15, Tick()), (25, Tick()), (25 + KILL_SECONDS, Tick())]
    assert outcome(held, RECORD) == (1, [])


def test_a_failure_that_the_chief_saw_first_comes_later() -> None:
    end = [(5.0, ended(PS_1, time=5)), (5.1, ended(CHIEF, 1, time=5.1, recorded=True))]
    state, _, _ = play(end, replace(first_state(RULES), restarts=2))  # type: ignore[arg-type]
    exits = {event.worker: event for _, event in end}
    attempt = Attempt(state=state, exits=exits, stopped_at=5.0, killed=False)
    failures = failures_of(attempt, RULES, {CHIEF: RECORD})
    assert [(failure.name, failure.time) for failure in failures] == [("ps 1", 4.9), ("chief", 4.9)]


EVENTS = st.one_of(
    st.builds(ended, st.integers(0, 4), st.sampled_from([0, 1, -9, -15]), recorded=st.booleans()),
    st.just(Recorded(worker=CHIEF)),
    st.builds(hangs, st.none() | st.integers(0, 4)),
    st.builds(Received, number=st.sampled_from([signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE])),
    st.just(Tick()),
)
COURSES = st.lists(st.tuples(st.floats(0.0, 20.0), EVENTS), max_size=14)
ORDER = [Phase.RUNNING, Phase.STOPPING, Phase.KILLING, Phase.LOST, Phase.DONE]


@given(COURSES)
def test_any_course_of_events(course: Events) -> None:
    state, now, starts, sent = first_state(RULES), 0.0, 0, 0
    for seconds, event in course:
        if state.phase in (Phase.DONE, Phase.LOST) or (isinstance(event, Exited) and event.worker not in state.running):
            continue
        now += seconds
        before = state
        state, actions = decide(state, event, now=now, rules=RULES)
        assert ORDER.index(state.phase) >= ORDER.index(before.phase), "a job never goes back"
        for action in actions:
            if isinstance(action, Send):
                sent += not isinstance(event, Hung)
                assert action.workers, "a signal is sent to somebody"
                assert action.workers <= before.running, "who has ended gets no signal"
            elif isinstance(action, Start):
                starts += 1
                assert before.phase is Phase.RUNNING
                assert action.worker in state.running
        assert (state.deadline is not None) >= (state.phase in (Phase.STOPPING, Phase.KILLING)), "every wait ends"
        assert (state.phase is Phase.DONE) == (not state.running)
        assert (state.verdict is Verdict.OPEN) == (state.phase is Phase.RUNNING), "who ends knows why"
        if state.phase is Phase.RUNNING:
            assert any(RULES.task(index).type == "worker" for index in state.running) or state.failed_at is not None
            assert CHIEF in state.running or state.deadline is not None, "nobody waits for a chief that has ended"
    assert starts == state.replaced <= RULES.max_restarts
    assert sent <= 3


@given(COURSES)
def test_time_alone_ends_a_job_that_is_ending(course: Events) -> None:
    state, now = first_state(RULES), 0.0
    for seconds, event in course:
        now += seconds
        if state.phase in (Phase.DONE, Phase.LOST) or (isinstance(event, Exited) and event.worker not in state.running):
            continue
        state, _ = decide(state, event, now=now, rules=RULES)
    if state.phase is Phase.RUNNING and state.deadline is None:
        return
    for _ in range(4):
        now += max(GRACE, KILL_SECONDS)
        state, _ = decide(state, Tick(), now=now, rules=RULES)
    assert state.phase in (Phase.DONE, Phase.LOST)
    assert (state.phase is Phase.DONE) or state.verdict is not Verdict.RESTART, "held processes are in the way"
