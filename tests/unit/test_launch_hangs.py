"""Hangs, by a table of what workers say and how long ago; an agent that slept blames nobody."""

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.refusals import absent
from tfdist.jobs.supervision.hangs import (
    GAP_SECONDS,
    INPUT_SECONDS,
    SAMPLES,
    Hang,
    Patience,
    Seen,
    Watch,
    allowed_seconds,
    begin,
    look,
)
from tfdist.monitor.phases import Activity
from tfdist.monitor.status import StepPosition, StepState, WorkerStatus

PATIENCE = Patience(hang_seconds=2.0, stall_seconds=1800.0)
RUNNING, DONE, HELD = StepState.RUNNING, StepState.DONE, StepState.HELD


def worker(
    index: int,
    phase: Activity = Activity.STEPPING,
    *,
    tick: int = 9,
    state: StepState = RUNNING,
    changed: float = 100.0,
    step: float = 0.1,
    stopped: bool = False,
    **more: Any,
) -> Seen:
    said: dict[str, Any] = {
        "pid": 1,
        "ended": tick + 1,
        "first_step_ended": 1.0,
        "resumed": 0,
        "source": "",
        "done": None,
        "saved": 0,
        "leaves": False,
    }
    position = StepPosition(step=tick, state=state)
    status = WorkerStatus(**{**said, **more}, activity=phase, position=position, changed=changed, step_seconds=step)
    return Seen(worker=index, status=status, stopped=stopped)


def after_steps(count: int = 10, seconds: float = 0.1) -> Watch:
    """Return the watch of an agent that has seen so many steps, and looked last at 100 s."""
    watch = begin(100.0)
    for tick in range(count):
        watch, hang = look(watch, [worker(0, tick=tick, step=seconds), worker(1, tick=tick)], 100.0, PATIENCE)
        assert hang is None
    return watch


def first_hang(
    watch: Watch, seen: list[Seen], *, until: float, patience: Patience = PATIENCE
) -> tuple[float, Hang] | None:
    now = 100.0
    while now < until:
        watch, hang = look(watch, seen, now, patience)
        if hang is not None:
            return now, hang
        now += 0.05 if until < 1000 else GAP_SECONDS
    return None


@pytest.mark.parametrize(
    ("seen", "after", "culprit", "facts"),
    [
        ([worker(0), worker(1, tick=8)], 2.0, 1, ("in step 9",)),
        ([worker(0, state=DONE), worker(1)], 2.0, 1, ("in step 10",)),
        ([worker(0, state=DONE), worker(1, state=DONE)], 2.0, None, ("stepping", "10 steps")),
        ([worker(0), worker(1)], 2.0, None, ("worker 0 ", "worker 1 ", "in step 10")),
        ([worker(0), worker(1, stopped=True)], 2.0, 1, ("worker 1 ",)),
        ([worker(0)], 2.0, 0, ("worker 0 ", "in step 10")),
        ([worker(0), worker(1, tick=9, state=HELD, phase=Activity.HELD)], 2.0, 1, ("held", "after 9")),
        ([worker(0), worker(1, Activity.INPUT, tick=8, state=DONE)], INPUT_SECONDS, 1, ("input",)),
        ([worker(0), worker(1, Activity.TRACING)], 1800.0, None, ("worker 0 ", "worker 1 ")),
        ([worker(0), worker(1, Activity.BETWEEN, tick=8, state=DONE)], 1800.0, 1, ("script's own code",)),
        ([worker(0), worker(1, Activity.BETWEEN)], 1800.0, 1, ("between two calls", "before step 10")),
        ([worker(0, Activity.INPUT), worker(1, Activity.BETWEEN)], 1800.0, 1, ("script's own code",)),
        ([worker(0), worker(1, state=DONE), worker(2, Activity.BETWEEN)], 1800.0, 2, ("script's own code",)),
        ([worker(0, Activity.BETWEEN, state=DONE)], 1800.0, 0, ("between two calls", "after 10 steps")),
        ([worker(0, Activity.STARTING, step=0.0), worker(1, step=0.0)], 1800.0, None, ("starting",)),
        ([worker(0), worker(1, Activity.STARTING, pid=0, tick=-1, state=DONE, changed=0.0)], 1800.0, 1, ("starting",)),
    ],
)
def test_who_hangs_and_when(seen: list[Seen], after: float, culprit: int | None, facts: tuple[str, ...]) -> None:
    found = first_hang(after_steps(), seen, until=100.0 + 2 * after)
    assert found is not None
    now, hang = found
    assert after < now - 100.0 <= after + 1.0 + GAP_SECONDS * (after > 100)
    assert (hang.worker, hang.since) == (culprit, 100.0)
    assert not absent(hang.text, *facts)


@pytest.mark.parametrize(
    "seen",
    [
        [worker(0, Activity.HELD, state=HELD), worker(1, Activity.HELD, state=HELD)],
        [worker(0), worker(1, Activity.ENDED)],
        [worker(0, Activity.STARTING, pid=0), worker(1, Activity.STARTING, pid=0)],
        [],
    ],
)
def test_who_never_hangs(seen: list[Seen]) -> None:
    assert first_hang(after_steps(), seen, until=5000.0) is None


def test_slow_steps_get_five_times_the_median() -> None:
    found = first_hang(after_steps(seconds=3.0), [worker(0, step=3.0), worker(1)], until=130.0)
    assert found is not None
    assert 15.0 < found[0] - 100.0 < 15.2


def test_the_first_steps_are_exempt() -> None:
    for count in range(3):
        seen = [worker(0, tick=count - 1), worker(1, tick=count - 1)]
        assert first_hang(after_steps(count), seen, until=130.0) is None
    watch, _ = look(begin(100.0), [worker(0, tick=9), worker(1, tick=1)], 100.0, PATIENCE)
    assert watch.steps == 2, "of all workers"
    assert first_hang(after_steps(3), [worker(0, tick=2), worker(1, tick=2)], until=103.0) is not None


def test_the_wait_begins_with_the_last_progress_of_any_worker() -> None:
    found = first_hang(after_steps(), [worker(0, changed=101.5), worker(1, changed=101.0)], until=104.0)
    assert found is not None
    assert (found[0] > 103.5, found[1].since) == (True, 101.5)


def test_each_of_the_last_steps_counts_once() -> None:
    assert len(after_steps(60).samples) == SAMPLES
    watch, _ = look(after_steps(3), [worker(0, tick=2), worker(1, tick=2)], 100.0, PATIENCE)
    assert len(watch.samples) == 3


def test_the_first_steps_after_a_restart_get_five_times_as_long_as_steps_before_it() -> None:
    restarted = begin(100.0, (0.1, 0.1, 0.1))
    second = [worker(0, tick=1, ended=1), worker(1, tick=1, ended=1)]
    found = first_hang(restarted, second, until=200.0)
    assert found is not None
    assert found[0] == pytest.approx(110.0, abs=0.2)
    slow = first_hang(begin(100.0, (1.0, 1.0, 1.0)), second, until=200.0)
    assert slow is not None
    assert slow[0] == pytest.approx(125.0, abs=0.2)
    first = [worker(0, tick=0, ended=0), worker(1, tick=0, ended=0)]
    assert first_hang(restarted, first, until=200.0) is None
    tracing = [worker(0, Activity.TRACING, tick=1, ended=1), worker(1, tick=1, ended=1)]
    assert first_hang(restarted, tracing, until=200.0) is None


def test_one_long_step_moves_nothing() -> None:
    watch = after_steps()
    watch, _ = look(watch, [worker(0, tick=50, step=600.0), worker(1, tick=50)], 100.0, PATIENCE)
    assert allowed_seconds(Activity.STEPPING, watch.samples, PATIENCE) == 2.0


def chief(phase: Activity = Activity.STEPPING, **more: Any) -> Seen:
    return replace(worker(0, phase, **more), name="chief")


def test_a_chief_hangs_in_a_step_of_its_own() -> None:
    found = first_hang(after_steps(), [chief()], until=110.0)
    assert found is not None
    assert 2.0 < found[0] - 100.0 < 2.2
    assert found[1].text.startswith("chief ")
    assert not absent(found[1].text, "in step 10", "for 2.")


def test_a_chief_that_waits_for_its_workers_measures_their_time_itself() -> None:
    assert first_hang(after_steps(), [chief(Activity.WAITING)], until=1000.0) is None


def test_a_chief_that_waits_for_a_task_that_is_stopped_does_not_hang() -> None:
    watch, now, hangs = after_steps(), 100.0, []
    while now < 110.0:
        stopped = {3: "ps 0"} if 101.0 < now < 105.0 else {}
        watch, hang = look(watch, [chief()], now, PATIENCE, stopped_tasks=stopped)
        hangs += [(now, hang)] if hang is not None else []
        now += 0.05
    named = [hang for at, hang in hangs if at < 105.0]
    assert named
    assert all((hang.worker, "ps 0 hangs" in hang.text) == (3, True) for hang in named)
    assert min(at for at, hang in hangs if hang.worker == 0) > 107.0  # with all its time, once nothing is stopped


def test_a_stopped_process_hangs_whatever_it_does() -> None:
    for phase in (Activity.SAVING, Activity.STARTING, Activity.HELD, Activity.ENDED):
        seen = [worker(0, Activity.BETWEEN), worker(1, phase, stopped=True)]
        found = first_hang(begin(100.0), seen, until=130.0)
        assert found is not None
        assert 2.0 < found[0] - 100.0 < 2.2
        assert (found[1].worker, "SIGSTOP" in found[1].text) == (1, True)


def test_of_workers_in_a_step_the_one_that_is_stopped_is_waited_for() -> None:
    watch, _ = look(after_steps(), [worker(0), worker(1)], 101.0, PATIENCE)
    for now in (101.9, 102.5):
        watch, hang = look(watch, [worker(0), worker(1, stopped=True)], now, PATIENCE)
    assert hang is not None
    assert (hang.worker, hang.since) == (1, 100.0)


def test_a_process_that_goes_on_was_not_stopped_for_long() -> None:
    watch, now = begin(100.0), 100.0
    for look_number in range(100):
        now += 0.9
        seen = [worker(0, Activity.BETWEEN, stopped=look_number % 3 != 0)]
        watch, hang = look(watch, seen, now, PATIENCE)
        assert hang is None


def test_an_agent_that_was_stopped_has_seen_nothing() -> None:
    watch, seen = after_steps(), [worker(0), worker(1, stopped=True)]
    watch, hang = look(watch, seen, 101.0, PATIENCE)
    watch, hang = look(watch, seen, 5000.0, PATIENCE)  # the machine slept
    assert hang is None
    for now in (5000.9, 5001.8):
        watch, hang = look(watch, seen, now, PATIENCE)
        assert hang is None
    watch, hang = look(watch, seen, 5002.5, PATIENCE)
    assert hang is not None
    assert hang.since == 5000.0


def test_a_short_stop_of_the_agent_is_no_hang_where_that_is_short_too() -> None:
    patience, watch, seen = replace(PATIENCE, hang_seconds=0.5), after_steps(), [worker(0), worker(1, stopped=True)]
    for now in (100.1, 100.5, 100.7, 100.9):  # all stood still from the first look to the second
        watch, hang = look(watch, seen, now, patience)
        assert hang is None
    _, hang = look(watch, seen, 101.1, patience)
    assert hang is not None
    assert hang.since == 100.5
    watch, _ = look(after_steps(), seen, 102.0, replace(PATIENCE, hang_seconds=9.0))
    assert (watch.awake, watch.stopped) == (102.0, {1: 102.0}), "a gap is as long where a hang is long"


def test_the_bounds_can_be_chosen() -> None:
    patience = Patience(hang_seconds=100.0, stall_seconds=7.0)
    samples = [0.1] * 10
    assert allowed_seconds(Activity.STEPPING, samples, patience) == 100.0
    assert allowed_seconds(Activity.INPUT, samples, patience) == 100.0
    assert allowed_seconds(Activity.SAVING, samples, patience) == 7.0
    assert allowed_seconds(Activity.HELD, samples, patience) == 0.0
    assert allowed_seconds(Activity.ENDED, samples, patience) == math.inf


def test_a_step_waits_its_turn_on_a_crowded_machine() -> None:
    patience = replace(PATIENCE, crowding=6.0)  # twelve programs on two processors
    watch, seen = after_steps(), [worker(0), worker(1, state=DONE)]
    kept = replace(watch, looked=111.9)
    assert look(kept, seen, 111.9, patience)[1] is None
    assert look(kept, seen, 111.9, PATIENCE)[1] is not None
    assert look(kept, seen, 112.1, patience)[1] is not None
