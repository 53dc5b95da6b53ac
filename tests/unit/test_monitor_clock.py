"""The step clock: whatever a script does, phases add up to steps, and no observer of the registry changes that."""

import itertools
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from tfdist.errors import ConfigError
from tfdist.monitor import faults, process_clock
from tfdist.monitor.observer import End, StepObserver
from tfdist.monitor.phases import ACTIVITY_OF, Activity, Kind, Phase
from tfdist.monitor.status import StatusTable
from tfdist.monitor.step_clock import StepClock
from tfdist.monitor.stopwatch import Request
from tfdist.variables import MONITOR_DIR

TRAIN, TEST, PREDICT = Kind
HOOKS = [name for name in vars(StepObserver) if name.startswith(("on_", "before_"))]


class Recorder(StepObserver):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.begun: dict[int, tuple[Kind, int]] = {}
        self.phases: dict[int, list[tuple[Phase, int, int]]] = {}
        self.ended: dict[int, tuple[int, int]] = {}
        self.entered: list[tuple[int, Phase]] = []
        self.activities: list[Activity] = []

    def on_begin(self, step: int, kind: Kind, now: int) -> None:
        assert step not in self.begun
        self.begun[step], self.phases[step] = (kind, now), []

    def on_enter(self, step: int, phase: Phase, now: int) -> None:
        self.entered.append((step, phase))

    def on_phase(self, step: int, phase: Phase, begin: int, end: int) -> None:
        assert step not in self.ended
        self.phases[step].append((phase, begin, end))

    def on_end(self, step: int, worked: int, now: int) -> None:
        assert step not in self.ended
        self.ended[step] = worked, now

    def on_activity(self, activity: Activity, now: int) -> None:
        self.activities.append(activity)

    def names(self, step: int) -> list[str]:
        return [str(phase) for phase, _, _ in self.phases[step]]


def clock_of(*observers: StepObserver) -> StepClock:
    """A clock on which every look is a nanosecond later."""
    return StepClock(observers, now=itertools.count(100).__next__)


def require_sound(recorder: Recorder) -> None:
    """Check that every step that begins also ends, and that its phases follow each other without gaps."""
    assert list(recorder.begun) == list(range(len(recorder.begun)))
    assert recorder.begun.keys() == recorder.ended.keys()
    for step, (_, begun) in recorder.begun.items():
        worked, ended = recorder.ended[step]
        at, found = begun, 0
        for phase, begin, end in recorder.phases[step]:
            assert begin == at <= end
            at = end
            found += (end - begin) * (phase is not Phase.CALLBACKS)
        assert (at, found) == (ended, worked)
        neighbours = itertools.pairwise(recorder.names(step))
        assert all(before != after for before, after in neighbours), "a stretch was cut in two"


# What scripts do


def one(clock: StepClock, kind: Kind = TRAIN, batches: int = 1) -> None:
    """A call of Keras' function over replicas."""
    clock.begin(kind)
    try:
        for _ in range(batches):
            clock.enter(Phase.INPUT)
            with clock.during(Phase.INPUT):  # the input says so as well
                pass
            clock.enter(Phase.EXECUTE)
            clock.trained(8, replicas=2)
    finally:
        clock.end()


def announced(clock: StepClock, callbacks: Callable[[], Any] = lambda: None, *, seen: bool = True) -> None:
    """A step of `fit` with a backup: it begins before the user's callbacks."""
    clock.begin(TRAIN)
    clock.pause()
    callbacks()
    if seen:
        one(clock)
    clock.end_paused()


def fit_with_validation(clock: StepClock) -> None:
    clock.training_begins()
    for _ in range(2):
        one(clock)
        one(clock)
        one(clock, TEST)
        clock.epoch_ends()
    clock.training_ends()
    one(clock, PREDICT)


def several_batches_in_a_step(clock: StepClock) -> None:
    one(clock, batches=3)


def callbacks_before_the_work(clock: StepClock) -> None:
    announced(clock)
    announced(clock, seen=False)


def evaluate_in_a_callback(clock: StepClock) -> None:
    """Announce a step, then run an evaluation, which takes the announced number; the step itself takes the next."""
    announced(clock, lambda: one(clock, TEST))


def evaluate_inside_a_step(clock: StepClock) -> None:
    with clock.step(TRAIN, Phase.PYTHON):
        one(clock, TEST)
        assert clock.activity is Activity.TRACING, "it is the user's Python again, which may take its time"


def chief(clock: StepClock) -> None:
    clock.begin(TRAIN)
    with clock.during(Phase.INPUT):
        pass
    for _ in range(2):
        with clock.during(Phase.WAIT):
            pass
    with clock.during(Phase.UPDATE):
        pass
    clock.end()


def steps_that_raise(clock: StepClock) -> None:
    for where in (Phase.INPUT, Phase.TRACE):
        with pytest.raises(KeyError), clock.step(TRAIN, where), clock.during(Phase.AGREE):
            raise KeyError
    one(clock)


def without_a_scope(clock: StepClock) -> None:
    for _ in range(2):
        with clock.step(TRAIN, Phase.UNDIVIDED):
            clock.enter(Phase.PYTHON)


def traced_in_the_thread_of_a_replica(clock: StepClock) -> None:
    with clock.step(TRAIN, Phase.EXECUTE):
        other = threading.Thread(target=clock.enter, args=(Phase.TRACE,))
        other.start()
        other.join()


def interrupted(clock: StepClock) -> None:
    """Ctrl-C in a notebook, in the moment between the begin of a step and what it does; then `fit` again."""
    clock.begin(TRAIN)
    clock.enter(Phase.INPUT)
    clock.training_begins()
    one(clock)


def two_trainings_in_threads(clock: StepClock) -> None:
    with clock.step(TRAIN, Phase.EXECUTE):
        other = threading.Thread(target=fit_with_validation, args=(clock,))
        other.start()
        other.join()


def a_script_that_ends_what_it_has_not_begun(clock: StepClock) -> None:
    clock.end()
    clock.pause()
    clock.end_paused()
    clock.enter(Phase.TRACE)
    with clock.during(Phase.AGREE):
        pass


SCRIPTS: dict[Callable[[StepClock], None], int] = {  # and how many steps each has
    fit_with_validation: 7,
    several_batches_in_a_step: 1,
    callbacks_before_the_work: 2,
    evaluate_in_a_callback: 2,
    evaluate_inside_a_step: 1,
    chief: 1,
    steps_that_raise: 3,
    without_a_scope: 2,
    traced_in_the_thread_of_a_replica: 1,
    interrupted: 2,
    two_trainings_in_threads: 8,
    a_script_that_ends_what_it_has_not_begun: 0,
}


@pytest.fixture
def asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], StepClock]]:
    """Make the clock of a process whose environment asks for every observer there is; they change no step."""
    table = StatusTable(tmp_path / "table", 1)
    plan = [{"kind": "slow", "step": 2, "seconds": 1e-9}, {"kind": "slow", "at": "tracing", "seconds": 1e-9}]
    for name, value in {
        **Request(folder=str(tmp_path), warm_up=100, steps=1).to_environment(),
        "TFDIST_PROGRESS_FILE": str(table.path),
        MONITOR_DIR.name: str(tmp_path),
        "TFDIST_FAULTS": json.dumps(plan),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(faults, "_script", None)
    process_clock.step_clock.cache_clear()
    yield process_clock.step_clock
    reporter = process_clock.step_clock().reporter
    if reporter is not None:
        reporter.close()
    process_clock.step_clock.cache_clear()
    table.close()


@pytest.mark.parametrize("script", SCRIPTS)
def test_phases_add_up_to_steps_whoever_observes(
    script: Callable[..., None], asked_for: Callable[[], StepClock]
) -> None:
    clock, alone = asked_for(), Recorder()
    script(clock_of(alone))
    require_sound(alone)
    assert len(alone.ended) == SCRIPTS[script]
    assert [type(observer) for observer in clock.observers] == list(process_clock.kinds())
    beside, everybody = Recorder(), clock.observers
    clock.attach(beside)
    assert clock.observers == (*everybody[:-1], beside, everybody[-1]), "faults happen to what everybody knows of"
    script(clock)
    require_sound(beside)
    assert {step: beside.names(step) for step in beside.phases} == {step: alone.names(step) for step in alone.phases}
    assert (beside.entered, beside.activities) == (alone.entered, alone.activities)
    assert clock.observers == (*everybody[:-1], beside, everybody[-1]), "nobody was detached"
    assert clock.reporter is not None
    assert clock.activity not in (Activity.STEPPING, Activity.INPUT, Activity.WAITING)


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("hook", HOOKS)
def test_an_observer_that_raises_is_detached_and_named_once(
    script: Callable[..., None], hook: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    broken, behind, alone = type("Broken", (StepObserver,), {hook: fail})(), Recorder(), Recorder()
    script(clock_of(alone))
    clock = clock_of(broken, behind)
    with caplog.at_level(logging.WARNING):
        script(clock)
    require_sound(behind)
    assert (behind.entered, behind.activities) == (alone.entered, alone.activities)
    assert len(caplog.records) == (broken not in clock.observers) <= 1
    assert all("Broken has raised ZeroDivisionError" in record.getMessage() for record in caplog.records)


def test_only_a_fault_may_raise_and_the_step_has_not_begun_then() -> None:
    assert [kind.__name__ for kind in process_clock.kinds({MONITOR_DIR.name: "folder"}) if kind.may_raise] == [
        "FaultInjector"
    ]

    class Fault(StepObserver):
        may_raise = True

        def on_begin(self, step: int, kind: Kind, now: int) -> None:
            if step == 1:
                raise RuntimeError("a fault")

    recorder = Recorder()
    clock = clock_of(recorder, Fault())
    one(clock)
    with pytest.raises(RuntimeError, match="a fault"):
        one(clock)
    one(clock)
    assert (list(recorder.begun), list(recorder.ended)) == ([0, 1, 2], [0, 2])
    assert len(clock.observers) == 2


def test_what_is_told_live() -> None:
    recorder = Recorder()
    clock = clock_of(recorder)
    clock.training_begins()
    announced(clock)
    one(clock, TEST)
    clock.training_ends()
    one(clock, PREDICT)
    assert recorder.names(0) == ["dispatch", "callbacks", "dispatch", "input", "execute"]
    assert recorder.names(1) == ["dispatch", "input", "execute"], "one event for each phase of a step"
    assert [kind for kind, _ in recorder.begun.values()] == [TRAIN, TEST, PREDICT]
    assert recorder.entered[:3] == [(0, Phase.DISPATCH), (0, Phase.CALLBACKS), (0, Phase.DISPATCH)]
    stepping, waiting, between, ended = Activity.STEPPING, Activity.INPUT, Activity.BETWEEN, Activity.ENDED
    whole = [stepping, waiting, stepping]
    assert recorder.activities == [stepping, between, *whole, between, *whole, between, ended, *whole, ended]
    clock.training_begins()
    assert clock.activity is between


def test_the_phase_of_a_context_ends_with_it() -> None:
    recorder = Recorder()
    clock = clock_of(recorder)
    clock.begin(TRAIN)
    with clock.during(Phase.INPUT), clock.during(Phase.AGREE):
        clock.enter(Phase.TRACE)
    with clock.during(Phase.UPDATE):
        clock.end()  # as a step inside it that has raised
    assert recorder.names(0) == ["dispatch", "input", "agree", "trace", "input", "dispatch", "update"]
    with clock.during(Phase.AGREE):
        assert clock.activity is Activity.STEPPING
        one(clock)
    with clock.doing(Activity.SAVING):
        assert clock.activity is Activity.SAVING
    assert clock.activity is Activity.BETWEEN


def test_a_thread_that_prepares_something_says_nothing_about_the_step() -> None:
    recorder = Recorder()
    clock = clock_of(recorder)

    def prepare() -> None:
        with clock.during(Phase.INPUT), clock.doing(Activity.SAVING):
            assert clock.activity is Activity.STEPPING

    with clock.step(TRAIN, Phase.EXECUTE):
        other = threading.Thread(target=prepare)
        other.start()
        other.join()
    assert recorder.names(0) == ["dispatch", "execute"]


def test_another_thread_may_say_what_a_step_of_several_does_now() -> None:
    recorder = Recorder()
    clock = clock_of(recorder)
    thread = threading.get_ident()
    with clock.step(TRAIN, Phase.EXECUTE):
        before = len(recorder.activities)
        for phase in (Phase.EXECUTE, Phase.INPUT, Phase.EXECUTE):
            clock.goes_on(thread, phase)
        clock.goes_on(thread + 1, Phase.INPUT)  # which has no step
    clock.goes_on(thread, Phase.INPUT)  # too late
    assert recorder.activities[before:] == [Activity.STEPPING, Activity.INPUT, Activity.STEPPING, Activity.BETWEEN]
    assert recorder.names(0) == ["dispatch", "execute"]


def test_batches_are_told_where_somebody_counts_them() -> None:
    class Counts(StepObserver):
        def __init__(self) -> None:
            self.found: list[tuple[int, int, int]] = []

        def on_trained(self, step: int, examples: int, replicas: int) -> None:
            self.found.append((step, examples, replicas))

    counts, clock = Counts(), clock_of(Recorder())
    assert not clock.counts_examples
    clock.attach(counts)
    assert clock.counts_examples
    one(clock, TEST)
    one(clock, batches=2)
    clock.detach(counts)
    assert not clock.counts_examples
    assert counts.found == [(0, 8, 2), (1, 8, 2), (1, 8, 2)]


@pytest.mark.parametrize("saves", [False, True])
def test_a_process_ends_before_a_step_where_an_observer_says_so(saves: bool) -> None:
    class Ends(StepObserver):
        def before_step(self, step: int) -> End | None:
            return End(7, saves=saves) if step == 1 else None

    recorder, saved = Recorder(), list[Activity]()
    clock = clock_of(Ends(), recorder)
    clock.before_halt = lambda: saved.append(clock.activity)
    one(clock)
    with pytest.raises(SystemExit) as ended:
        one(clock)
    assert ended.value.code == 7
    assert (saved, clock.activity) == (([Activity.SAVING], Activity.ENDED) if saves else ([], Activity.BETWEEN))
    require_sound(recorder)
    assert len(recorder.begun) == 1


def test_every_phase_has_an_activity() -> None:
    assert ACTIVITY_OF.keys() == set(Phase)
    assert {activity for phase, activity in ACTIVITY_OF.items() if phase in (Phase.DISPATCH, Phase.EXECUTE)} == {
        Activity.STEPPING
    }


def test_a_file_that_is_no_table_is_refused(
    asked_for: Callable[[], StepClock], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").write_bytes(b"x" * 100)
    with monkeypatch.context() as patch:
        patch.setenv("TFDIST_PROGRESS_FILE", str(tmp_path / "other"))
        with refused(ConfigError, name="TFDIST_PROGRESS_FILE", path=tmp_path / "other", workers=[0]):
            asked_for()


CALLS: list[Callable[[StepClock], Any]] = [
    lambda clock: clock.begin(TRAIN),
    lambda clock: clock.begin(TEST),
    lambda clock: clock.end(),
    lambda clock: clock.end(),
    lambda clock: clock.pause(),
    lambda clock: clock.end_paused(),
    lambda clock: clock.enter(Phase.INPUT),
    lambda clock: clock.enter(Phase.EXECUTE),
    lambda clock: clock.during(Phase.AGREE).__enter__(),
    lambda clock: one(clock),
    lambda clock: clock.training_ends(),
]


@given(st.lists(st.sampled_from(range(len(CALLS))), max_size=30))
def test_any_order_of_calls_is_sound(calls: list[int]) -> None:
    recorder = Recorder()
    clock = clock_of(recorder)
    for call in calls:
        CALLS[call](clock)
    for _ in calls:
        clock.end()
    one(clock)
    require_sound(recorder)
    assert clock.activity in (Activity.BETWEEN, Activity.ENDED)


class AtTheEnd(StepObserver):
    """Writes down what those are told who need not know it sooner."""

    def __init__(self) -> None:
        self.spent: dict[int, tuple[dict[Phase, int], int]] = {}
        self.outside: list[tuple[Phase, int]] = []
        self.done: list[tuple[Activity, int]] = []

    def on_step(self, step: int, spent: Mapping[Phase, int], now: int) -> None:
        self.spent[step] = dict(spent), now

    def on_outside(self, phase: Phase, begin: int, end: int) -> None:
        self.outside.append((phase, end - begin))

    def on_done(self, activity: Activity, begin: int, end: int) -> None:
        self.done.append((activity, end - begin))


def test_of_what_a_step_consisted_is_told_at_its_end() -> None:
    told, all_along = AtTheEnd(), Recorder()
    clock = clock_of(told, all_along)
    for _ in range(2):
        with clock.step(TRAIN, Phase.INPUT):
            clock.enter(Phase.EXECUTE)
            with clock.during(Phase.AGREE):
                pass
            with clock.during(Phase.INPUT):
                pass
        with clock.during(Phase.AGREE), clock.during(Phase.AGREE):
            pass
        with clock.doing(Activity.SAVING), clock.during(Phase.AGREE):
            pass
    for step in range(2):
        spent, now = told.spent[step]
        for phase in spent:
            stretches = [end - begin for one, begin, end in all_along.phases[step] if one is phase]
            assert spent[phase] == sum(stretches)
        assert sum(spent.values()) == now - all_along.begun[step][1]
        assert now == all_along.ended[step][1]
    assert [phase for phase, _ in told.outside] == 2 * 3 * [Phase.AGREE]
    assert [activity for activity, _ in told.done] == 2 * [Activity.SAVING]
    assert all(nanoseconds > 0 for _, nanoseconds in (*told.outside, *told.done))
