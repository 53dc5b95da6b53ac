"""Roles and their restart policies: tables of what the end of a process means."""

import signal

import pytest

from tfdist.jobs.plan.launch_config import LaunchConfig
from tfdist.jobs.plan.roles import (
    CHIEF,
    IN_STEP,
    SERVER,
    STATELESS,
    Consequence,
    RestartPolicy,
    Role,
    consequence,
    members,
    roles_of,
)
from tfdist.jobs.supervision.hangs import Hang, Hung
from tfdist.jobs.supervision.supervise import Decision, History, decide, decide_restart
from tfdist.jobs.supervision.supervisor_state import (
    Exited,
    Phase,
    Received,
    Recorded,
    Rules,
    Say,
    Send,
    Start,
    Tick,
    Verdict,
    first_state,
)

WAIT, COMPLETE, REPLACE, LOSE, RESTART, FAIL = Consequence


@pytest.mark.parametrize(
    ("policy", "succeeds", "raises", "killed", "killed_and_spent"),
    [
        (IN_STEP, WAIT, RESTART, RESTART, FAIL),
        (CHIEF, COMPLETE, FAIL, RESTART, FAIL),
        (STATELESS, REPLACE, REPLACE, REPLACE, LOSE),
        (SERVER, RESTART, RESTART, RESTART, FAIL),
    ],
)
def test_what_the_end_of_a_process_means(
    policy: RestartPolicy,
    succeeds: Consequence,
    raises: Consequence,
    killed: Consequence,
    killed_and_spent: Consequence,
) -> None:
    assert consequence(policy, 0, recorded=False, restarts_left=True) is succeeds
    assert consequence(policy, 1, recorded=True, restarts_left=True) is raises
    assert consequence(policy, 1, recorded=False, restarts_left=True) is raises
    assert consequence(policy, -9, recorded=False, restarts_left=True) is killed
    assert consequence(policy, -9, recorded=False, restarts_left=False) is killed_and_spent


def test_an_exception_that_ends_by_a_signal_is_an_exception() -> None:
    assert consequence(CHIEF, -6, recorded=True, restarts_left=True) is FAIL
    assert consequence(CHIEF, -6, recorded=False, restarts_left=True) is RESTART


def test_the_roles_of_jobs() -> None:
    (worker,) = roles_of(LaunchConfig(target="t.py", workers=3))
    assert (worker.count, worker.runs_script, worker.in_step) == (3, True, True)
    roles = roles_of(LaunchConfig(target="t.py", workers=2, parameter_servers=1))
    assert [str(task) for task, _ in members(roles)] == ["chief", "worker 0", "worker 1", "ps 0"]
    assert [role.name for role in roles if role.runs_script] == ["chief"]


RULES = Rules(
    roles=roles_of(LaunchConfig(target="t.py", workers=2, parameter_servers=1)), grace_seconds=10.0, max_restarts=1
)
WORKER, OTHER, SERVERS = 1, 2, frozenset({3})


def ended(worker: int, returncode: int = -9) -> Exited:
    return Exited(worker=worker, returncode=returncode, time=5.0)


def test_a_worker_of_a_chief_is_replaced_and_then_left_out_while_another_is_left() -> None:
    state, actions = decide(first_state(RULES), ended(WORKER), now=5.0, rules=RULES)
    assert actions[0] == Start(worker=WORKER)
    assert isinstance(actions[1], Say)
    assert "workers: 1 of 1 times" in actions[1].text
    state, actions = decide(state, ended(WORKER), now=6.0, rules=RULES)
    assert (state.phase, len(actions)) == (Phase.RUNNING, 1)
    assert "continues without it" in str(actions[0])
    finished, actions = decide(state, ended(0, 0), now=7.0, rules=RULES)
    assert finished.verdict is Verdict.FINISHED
    assert actions == (Send(workers=SERVERS | {OTHER}, number=signal.SIGTERM),)
    state, _ = decide(state, ended(OTHER), now=7.0, rules=RULES)
    assert (state.verdict, state.cause) == (Verdict.FAILED, OTHER)


def test_one_that_hangs_is_killed_once_and_may_hang_again_when_it_was_replaced() -> None:
    hung = Hung(hang=Hang(worker=1, text="worker 0 hangs", since=1.0))
    state, actions = decide(first_state(RULES), hung, now=5.0, rules=RULES)
    assert actions[0] == Send(workers=frozenset({1}), number=signal.SIGKILL)
    assert decide(state, hung, now=5.05, rules=RULES) == (state, ())
    state, _ = decide(state, ended(1), now=5.1, rules=RULES)
    assert decide(state, hung, now=9.0, rules=RULES)[1] == actions


def test_a_recorded_failure_that_is_not_followed_by_an_end_has_failed_the_start() -> None:
    rules = Rules(roles=roles_of(LaunchConfig(target="t.py", workers=2)), grace_seconds=10.0)
    state, _ = decide(first_state(rules), Recorded(worker=1), now=5.0, rules=rules)
    state, actions = decide(state, Tick(), now=15.0, rules=rules)
    assert (state.failed, state.verdict, actions[0]) == (
        True,
        Verdict.FAILED,
        Send(workers=frozenset({0, 1}), number=15),
    )
    for worker in range(2):
        state, _ = decide(state, ended(worker, -15), now=15.1, rules=rules)
    assert decide_restart(state, History(failures=1), same_failures=3, min_workers=1) is Decision.END


def test_a_signal_goes_to_all_that_run_the_script() -> None:
    roles = (
        Role(name="worker", count=2, restart_policy=CHIEF, runs_script=True),
        Role(name="ps", count=2, restart_policy=SERVER),
    )
    rules = Rules(roles=roles, grace_seconds=10.0)
    state, actions = decide(first_state(rules), Received(number=signal.SIGTERM), now=5.0, rules=rules)
    assert actions[0] == Send(workers=frozenset({0, 1}), number=signal.SIGTERM)
    state, actions = decide(state, ended(0, 0), now=6.0, rules=rules)
    assert actions == ()
    state, actions = decide(state, ended(1, 0), now=6.0, rules=rules)
    assert actions == (Send(workers=frozenset({2, 3}), number=signal.SIGTERM),)
