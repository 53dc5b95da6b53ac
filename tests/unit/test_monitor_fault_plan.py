"""Plans of faults, and what became of them: made up alike for the same seed, and judged from what was written."""

import json
from collections import Counter

import pytest
from click.testing import CliRunner

from tests.refusals import absent, refused
from tfdist.cli.main import main
from tfdist.errors import ConfigError
from tfdist.monitor import fault_plan
from tfdist.monitor.faults import KINDS, RESTARTING
from tfdist.testing import Fault, FaultPlan


def made_up(**given: object) -> FaultPlan:
    return FaultPlan.made_up(**{"kinds": ["kill"], "count": 4, "every": 10, "workers": 2, "seed": 0, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(50))
def test_a_plan_is_made_up_within_its_bounds(seed: int) -> None:
    plan = made_up(kinds=list(KINDS), count=20, workers=3, seed=seed)
    assert plan == made_up(kinds=list(KINDS), count=20, workers=3, seed=seed)
    assert len(plan.faults) == 20
    workers, starts = 3, 0
    for fault in plan.faults:
        assert fault.worker < workers
        assert fault.restart == starts
        assert fault.step is None or 1 <= fault.step < 20
        starts += fault.kind in RESTARTING
        workers -= fault.kind == "term"
    assert workers >= 1
    assert plan.restarts == starts
    assert FaultPlan.of(plan.to_environment()["TFDIST_FAULTS"]) == plan


def test_other_seeds_make_up_other_plans_of_all_kinds() -> None:
    plans = [made_up(kinds=["kill", "stop"], seed=seed) for seed in range(40)]
    assert len(set(plans)) > 30
    kinds = Counter(fault.kind for plan in plans for fault in plan.faults)
    assert min(kinds["kill"], kinds["stop"]) > 40


@pytest.mark.parametrize(
    ("given", "name", "received"),
    [
        ({"count": 0}, "count", 0),
        ({"every": 0}, "every", 0),
        ({"workers": 0}, "workers", 0),
        ({"kinds": []}, "kinds", []),
        ({"kinds": ["bang"]}, "a kind of fault", "bang"),
        ({"kinds": ["term"], "count": 2}, "count", 2),
        ({"kinds": ["kill", "exit"], "servers": 1}, "kinds", "exit"),
        ({"kinds": ["bang"], "servers": 1}, "a kind of fault", "bang"),
    ],
)
def test_a_plan_that_cannot_be_made_up_is_refused(given: dict[str, object], name: str, received: object) -> None:
    with refused(ConfigError, name=name, received=received):
        made_up(**given)


@pytest.mark.parametrize("seed", range(50))
def test_a_plan_for_a_chief_and_its_tasks_is_made_up_within_its_bounds(seed: int) -> None:
    kinds = [kind for kind in KINDS if kind not in ("exit", "exception")]
    plan = made_up(kinds=kinds, count=20, workers=3, servers=2, seed=seed)
    assert FaultPlan.of(plan.to_environment()["TFDIST_FAULTS"]) == plan
    starts, last = 0, 0
    for fault in plan.faults:
        task = fault.task or ""
        assert task in ("chief", "worker 0", "worker 1", "worker 2", "ps 0", "ps 1")
        assert task == "chief" or fault.kind in ("kill", "stop", "term")
        assert (fault.kind, task) != ("term", "chief"), "that would end the job"
        assert fault.restart == starts
        if fault.step is not None:
            assert last < fault.step < last + 20
            last = fault.step
        if fault.kind in RESTARTING and not task.startswith("worker"):
            starts, last = starts + 1, 0


KILL = Fault(kind="kill", worker=1, step=7)
FULL = Fault(kind="disk-full", at="save-begin")


def line(fault: Fault, step: int, clock: float) -> dict[str, object]:
    return {"fault": fault.as_json(), "step": step, "clock": clock}


FAILED = {"event": "failed", "clock": 10.5, "start": 0, "worker": 1, "text": "worker 1 failed: killed"}
STEPPING = {"event": "stepping", "clock": 11.0, "start": 1, "lost": 1}
BEFORE = {"event": "stepping", "clock": 3.0, "start": 0, "lost": 0}
ENDED = {"event": "ended", "clock": 20.0, "start": 1, "exit_code": 0}


def test_a_fault_that_was_found_and_got_over() -> None:
    (one,) = fault_plan.verdicts(FaultPlan(faults=(KILL,)), [line(KILL, 7, 10.0)], [BEFORE, FAILED, STEPPING, ENDED])
    assert (one.step, one.found_after, one.recovered_after, one.lost) == (7, 0.5, 1.0, 1)
    assert one.text == "worker 1 failed: killed"
    assert "kill worker 1 at step" in fault_plan.table([one])
    assert "1.00 s" in fault_plan.table([one])


@pytest.mark.parametrize(
    ("fault", "happened", "events", "text"),
    [
        (KILL, False, [BEFORE, ENDED], "did not happen"),
        (KILL, True, [BEFORE], "not found"),
        (KILL, True, [BEFORE, ENDED], "not found"),
        (KILL, True, [FAILED], "no recovery"),
        (FULL, True, [ENDED], "continued"),
        (FULL, True, [FAILED, STEPPING], "then: worker 1 failed"),
        (FULL, True, [{**ENDED, "exit_code": 3}], "then: ended with code 3"),
    ],
)
def test_what_became_of_other_faults(fault: Fault, happened: bool, events: list[dict[str, object]], text: str) -> None:
    (one,) = fault_plan.verdicts(FaultPlan(faults=(fault,)), [line(fault, 7, 10.0)] if happened else [], events)
    assert text in one.text
    assert one.recovered_after is None


def test_a_worker_of_a_chief_is_replaced_and_the_job_steps_on() -> None:
    fault = Fault(kind="kill", task="worker 1", step=7)
    replaced = {"event": "replaced", "clock": 10.25, "start": 0, "task": "worker 1"}
    (one,) = fault_plan.verdicts(FaultPlan(faults=(fault,)), [line(fault, 7, 10.0)], [replaced, ENDED])
    assert (one.found_after, one.recovered_after) == (0.25, None)
    assert one.text.startswith("worker 1 replaced")
    assert "kill worker 1 at step" in fault_plan.table([one])


def test_a_server_that_is_killed_is_named() -> None:
    fault = Fault(kind="kill", task="ps 0", step=7)
    how = "killed by SIGKILL (signal 9)"
    failed = {"event": "failed", "clock": 10.5, "start": 0, "task": "ps 0", "text": how}
    (one,) = fault_plan.verdicts(FaultPlan(faults=(fault,)), [line(fault, 7, 10.0)], [failed, STEPPING, ENDED])
    assert (one.found_after, one.recovered_after, one.lost) == (0.5, 1.0, 1)
    assert not absent(one.text, "ps 0 failed", how)


WARNING = {"warning": "2 could not be saved", "clock": 10.1}


@pytest.mark.parametrize(
    ("fault", "log", "noticed"),
    [
        (FULL, [WARNING], "a warning"),
        (FULL, [], "no warning"),
        (FULL, [{**WARNING, "clock": 9.9}], "no warning"),
        (Fault(kind="corrupt", at="save-commit"), [], "that backup was not read"),
        (Fault(kind="corrupt", at="save-commit"), [WARNING], "a warning"),
        (Fault(kind="disk-full", at="save-begin", memory=True), [WARNING], ""),
    ],
)
def test_a_save_that_fails_is_noticed(fault: Fault, log: list[dict[str, object]], noticed: str) -> None:
    (one,) = fault_plan.verdicts(FaultPlan(faults=(fault,)), [line(fault, 7, 10.0), *log], [ENDED])
    became, _, rest = one.text.partition("; ")
    assert (became, rest[: len(noticed)], bool(rest)) == ("continued", noticed, bool(noticed))


def test_equal_faults_are_told_apart() -> None:
    again = Fault(kind="kill", worker=1, step=7, restart=None)
    found = fault_plan.verdicts(FaultPlan(faults=(again, again)), [line(again, 7, 10.0)], [FAILED, STEPPING])
    assert [one.step for one in found] == [7, None]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--", "python", "train.py"], "must be a `tfdist run`"),
        (["--", "tfdist", "run", "--event-file", "e", "train.py"], "--event-file"),
        (["--", "tfdist", "run", "-n", "0", "train.py"], "-n is 0"),
        (["--faults", "exit", "--", "tfdist", "run", "--strategy", "parameter-server", "train.py"], "of the script"),
        (["--faults", "bang", "--", "tfdist", "run", "train.py"], "'bang'"),
        (["--plan", "absent", "--", "tfdist", "run", "train.py"], "cannot be read"),
        (["--", "tfdist", "run", "--no-such", "train.py"], "--no-such"),
    ],
)
def test_a_request_that_is_wrong_starts_nothing(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(main, ["chaos", *arguments])
    assert result.exit_code == 2
    assert said in result.output


def test_a_log_that_ends_in_the_middle_is_read() -> None:
    assert fault_plan.lines(json.dumps(FAILED) + "\n[1]\n" + '{"event": "sta') == [FAILED]
