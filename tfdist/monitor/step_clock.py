"""The step clock: the one place that knows the current step and its phase, and notifies the observers."""

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from types import TracebackType
from typing import Any

from tfdist.monitor.observer import End, StepObserver
from tfdist.monitor.phases import ACTIVITY_OF, Activity, Kind, Passes, Phase
from tfdist.monitor.reporter import StatusReporter

_CALLBACKS, _DISPATCH, _STEPPING = Phase.CALLBACKS, Phase.DISPATCH, Activity.STEPPING  # enums look members up slowly
_Calls = tuple[tuple[StepObserver, Callable[..., Any]], ...]


class _Step:
    __slots__ = ("number", "outer", "phase", "since", "spent", "thread", "worked")

    def __init__(self, number: int, thread: int, now: int) -> None:
        self.number = number
        self.thread = thread
        self.phase = _DISPATCH
        self.since = now  # since when it has been in this phase
        self.worked = 0
        self.spent: dict[Phase, int] = {}  # in each phase so far, if an observer listens
        self.outer: list[Phase] = []  # in which functions of Keras were called inside its own


class StepClock:
    """A clock that counts the steps of this process, and divides each into phases.

    A step is a call of the function with which Keras trains, tests or predicts. Only calls that all workers make
    together are counted, so numbers are the same on all workers. Each thread has at most one step. The activity of the
    process is that of the thread that has begun the last step.
    """

    def __init__(
        self,
        observers: Sequence[StepObserver] = (),
        *,
        reporter: StatusReporter | None = None,
        now: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.reporter = reporter
        #: called when all stop before the step that would begin now; it saves, and need not return
        self.before_halt: Callable[[], None] | None = None
        #: the present activity of this process
        self.activity = Activity.STARTING
        self._now = now
        self._numbers = itertools.count()
        self._steps: dict[int, _Step] = {}  # by thread
        self._leader = 0  # the thread that has begun the last step
        self._last = 0  # number of the last step
        self._rest = Activity.BETWEEN  # when no step is under way
        self._register(tuple(observers))

    # Observers

    def attach(self, observer: StepObserver) -> None:
        """Add an observer after the others, but before those that break steps."""
        calm = [one for one in self.observers if not one.may_raise]
        self._register((*calm, observer, *(one for one in self.observers if one.may_raise)))

    def detach(self, observer: StepObserver) -> None:
        self._register(tuple(one for one in self.observers if one is not observer))

    @property
    def counts_examples(self) -> bool:
        """Whether an observer listens to `trained`."""
        return bool(self._on_trained)

    @property
    def divides_steps(self) -> bool:
        """Whether an observer listens to phases or examples of steps; observers of faults need only traces."""
        enters = any(not one.may_raise for one, _ in self._on_enter)
        return enters or bool(self._on_phase or self._on_step or self._on_trained)

    def _register(self, observers: tuple[StepObserver, ...]) -> None:
        def calls(name: str) -> _Calls:
            heard = (one for one in observers if getattr(type(one), name) is not getattr(StepObserver, name))
            return tuple((one, getattr(one, name)) for one in heard)

        self.observers = observers
        self._before_step = calls("before_step")
        self._on_begin = calls("on_begin")
        self._on_enter = calls("on_enter")
        self._on_outside = calls("on_outside")
        self._on_phase = calls("on_phase")
        self._on_trained = calls("on_trained")
        self._on_computed = calls("on_computed")
        self._on_end = calls("on_end")
        self._on_step = calls("on_step")
        self._on_epoch_end = calls("on_epoch_end")
        self._on_activity = calls("on_activity")
        self._on_done = calls("on_done")
        self._on_warning = calls("on_warning")

    def _tell(self, calls: _Calls, *arguments: Any) -> None:
        for observer, call in calls:
            try:
                call(*arguments)
            except Exception as error:  # noqa: BLE001 - the observer's, which is detached
                self._raised(observer, error)

    def _raised(self, observer: StepObserver, error: Exception) -> None:
        if observer.may_raise:
            raise error
        if observer in self.observers:  # another thread may have met it too
            self.detach(observer)
            text = "The step observer %s has raised %r; it is told nothing more, and training continues."
            logging.getLogger("tfdist").warning(text, type(observer).__qualname__, error, exc_info=error)

    def warn(self, sentence: str) -> None:
        """Warn, in the log and to observers, about how steps are computed, such as a value that is not one device's."""
        logging.getLogger("tfdist").warning("tfdist: %s", sentence)
        self._tell(self._on_warning, sentence)

    # Steps

    def begin(self, kind: Kind) -> None:
        """Begin a step, or the work of a paused one; end this process instead if an observer demands it.

        A function inside a step is a part of it, for instance if a `train_step` evaluates a model. Each `begin` is
        paired with an `end`; an inner `end` does nothing.
        """
        thread = get_ident()
        step = self._steps.get(thread)
        if step is not None:
            if step.phase is _CALLBACKS:
                self._switch(step, _DISPATCH)
            else:
                step.outer.append(step.phase)
            return
        number = next(self._numbers)
        for observer, call in self._before_step:
            try:
                end = call(number)
            except Exception as error:  # noqa: BLE001 - the observer's, which is detached
                self._raised(observer, error)
                continue
            if end is not None:
                self._end_process(end)
        now = self._now()
        self._leader, self._last = thread, number
        self._show(_STEPPING, now)
        if self._on_begin:
            self._tell(self._on_begin, number, kind, now)
        self._steps[thread] = _Step(number, thread, now)
        if self._on_enter:
            self._tell(self._on_enter, number, _DISPATCH, now)

    def _end_process(self, end: End) -> None:
        if end.saves:
            self._show(Activity.ENDED)  # a save reports itself; afterwards nothing is left to do
            with self.doing(Activity.SAVING):
                if self.before_halt is not None:
                    self.before_halt()
        raise SystemExit(end.code)

    def pause(self) -> None:
        """Pause a begun step for callbacks before its work; `begin` continues it."""
        step = self._steps.get(get_ident())
        if step is not None and step.phase is not _CALLBACKS:
            self._switch(step, _CALLBACKS)

    def end(self) -> None:
        """End the step, or the function inside it; the time until the next step belongs to the user."""
        step = self._steps.get(get_ident())
        if step is None:
            return
        if step.outer:
            self.enter(step.outer.pop())
            return
        now = self._now()
        self._close_phase(step, now)
        del self._steps[step.thread]
        if self._on_end:
            self._tell(self._on_end, step.number, step.worked, now)
        if self._on_step:
            self._tell(self._on_step, step.number, step.spent, now)
        if step.thread == self._leader:
            self._show(self._rest, now)

    def end_paused(self) -> None:
        """End the step if it is still paused: it ran unobserved."""
        step = self._steps.get(get_ident())
        if step is not None and step.phase is _CALLBACKS:
            self.end()

    @contextmanager
    def step(self, kind: Kind, phase: Phase) -> Iterator[None]:
        """Count a block as a step that begins in this phase."""
        try:
            self.begin(kind)
            self.enter(phase)
            yield
        finally:
            self.end()

    # Phases

    def enter(self, phase: Phase) -> None:
        """Enter a phase of the step.

        In a thread without a step, such as a replica's tracing thread, it is a phase of the only step under way.
        Outside of steps it is an activity, until the next step.
        """
        step = self._steps.get(get_ident())
        if step is not None:
            if step.phase is not phase:
                self._switch(step, phase)
            return
        steps = list(self._steps.values())
        if len(steps) == 1:
            if steps[0].phase is not phase:
                self._switch(steps[0], phase)
        elif not steps:
            self._show(ACTIVITY_OF[phase])
            self._tell(self._on_enter, self._last, phase, self._now())

    def goes_on(self, thread: int, phase: Phase) -> None:
        """Report progress and activity of another thread's step that runs several in one call; its phase stays."""
        if thread == self._leader and thread in self._steps:
            self.activity = ACTIVITY_OF[phase]
            self._tell(self._on_activity, self.activity, self._now())

    def during(self, phase: Phase) -> "_During":
        """Return a context in which the step is in this phase; afterwards it is in the previous one.

        Outside of steps, the phase is an activity. In a thread without a step, it has no effect while others have one.
        """
        return _During(self, phase)

    def trained(self, examples: int, replicas: int) -> None:
        step = self._steps.get(get_ident())
        self._tell(self._on_trained, self._last if step is None else step.number, examples, replicas)

    def computed(self, worker: int, seconds: float, passes: Passes | None = None) -> None:
        step = self._steps.get(get_ident())
        if step is not None and self._on_computed:
            self._tell(self._on_computed, step.number, worker, round(1e9 * seconds), passes)

    def _switch(self, step: _Step, phase: Phase) -> None:
        now = self._now()
        self._close_phase(step, now)
        step.phase, step.since = phase, now
        activity = ACTIVITY_OF[phase]
        if activity is not self.activity and step.thread == self._leader:
            self._show(activity, now)
        if self._on_enter:
            self._tell(self._on_enter, step.number, phase, now)

    def _close_phase(self, step: _Step, now: int) -> None:
        if step.phase is not _CALLBACKS:
            step.worked += now - step.since
        if self._on_phase:
            self._tell(self._on_phase, step.number, step.phase, step.since, now)
        if self._on_step:
            step.spent[step.phase] = step.spent.get(step.phase, 0) + now - step.since

    # Activities

    @contextmanager
    def doing(self, activity: Activity) -> Iterator[None]:
        """Set the activity in a block, and restore the previous one."""
        if self._steps and get_ident() not in self._steps:
            yield
            return
        before, since = self.activity, self._now()
        self._show(activity)
        try:
            yield
        finally:
            self._show(before)
            self._tell(self._on_done, activity, since, self._now())

    def training_begins(self) -> None:
        """Announce training; end a step that an interrupted call has left open."""
        step = self._steps.get(get_ident())
        if step is not None and step.phase is not _CALLBACKS:  # where it is, the next function is its work
            step.outer.clear()
            self.end()
        self._rest = Activity.BETWEEN
        if self.activity is Activity.ENDED:
            self._show(Activity.BETWEEN)

    def epoch_ends(self) -> None:
        """Announce the end of an epoch or an evaluation: the callbacks that follow are not time of training."""
        self._tell(self._on_epoch_end)

    def training_ends(self) -> None:
        """Announce the end of training: the script may then take any time, also between other steps."""
        self._rest = Activity.ENDED
        self._show(Activity.ENDED)

    def stand_by(self, prepare: Callable[[], None]) -> None:
        """Wait, if this process is in reserve, until it is needed, before anything that others could see."""
        if self.reporter is not None and self.reporter.is_in_reserve:
            with self.doing(Activity.RESERVE):
                prepare()
                self.reporter.stand_by()

    def _show(self, activity: Activity, now: int | None = None) -> None:
        if activity is not self.activity:
            self.activity = activity
            if self._on_activity:
                self._tell(self._on_activity, activity, self._now() if now is None else now)


class _During:
    __slots__ = ("_before", "_clock", "_outside", "_phase", "_since", "_step")

    def __init__(self, clock: StepClock, phase: Phase) -> None:
        self._clock = clock
        self._phase = phase

    def __enter__(self) -> None:
        clock, phase = self._clock, self._phase
        self._step = step = clock._steps.get(get_ident())
        self._outside: Activity | None = None
        if step is not None:
            self._before = step.phase
            if step.phase is not phase:
                clock._switch(step, phase)
        elif not clock._steps:
            self._outside, self._since = clock.activity, clock._now()
            clock.enter(phase)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        clock, step = self._clock, self._step
        if step is not None:
            if clock._steps.get(step.thread) is step and step.phase is not self._before:
                clock._switch(step, self._before)
        elif self._outside is not None and not clock._steps:
            clock._show(self._outside)
            clock._tell(clock._on_outside, self._phase, self._since, clock._now())
