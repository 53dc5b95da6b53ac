"""The base class of observers: override the hooks of interest, and attach it to the `StepClock`.

An observer cannot break a step: one that raises is detached, with one warning. It runs in the thread of the step, so it
    must not block. Times are nanoseconds of the monotonic clock. Several threads may have steps under way, each with
    its own numbers.
"""

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from tfdist.monitor.phases import Activity, Kind, Passes, Phase


class End(NamedTuple):
    """A request to end this process before a step, with an exit code, with or without saving the state."""

    code: int
    saves: bool


class StepObserver:
    """The base class of observers, which receive the events of steps; it ignores everything.

    For each step `on_begin`, then `on_phase` for each interval in one phase, in order and without gaps, then `on_end`
    and `on_step`. A phase may have several intervals. A step that raises ends like any other.
    """

    may_raise: ClassVar[bool] = False  # what it raises is meant for the step, as a fault on purpose is

    def before_step(self, step: int) -> End | None:
        """Return an `End`, perhaps after waiting, if this process is to end instead of beginning the step."""

    def on_begin(self, step: int, kind: Kind, now: int) -> None:
        """Observe the begin of a step; its number rises by one, across training, validation and prediction."""

    def on_enter(self, step: int, phase: Phase, now: int) -> None:
        """Observe that the step enters a phase; outside of steps, the number is that of the last step or 0."""

    def on_phase(self, step: int, phase: Phase, begin: int, end: int) -> None:
        """Observe that the step was in a phase from `begin` to `end`."""

    def on_trained(self, step: int, examples: int, replicas: int) -> None:
        """Observe that a batch was trained on; a step has `steps_per_execution` of them."""

    def on_computed(self, step: int, worker: int, nanoseconds: int, passes: Passes | None) -> None:
        """Observe that a worker of this chief has computed a part of a step."""

    def on_end(self, step: int, worked: int, now: int) -> None:
        """Observe the end of a step."""

    def on_step(self, step: int, spent: Mapping[Phase, int], now: int) -> None:
        """Observe the end of a step with the time spent in each phase: one call instead of many."""

    def on_outside(self, phase: Phase, begin: int, end: int) -> None:
        """Observe that this process was in a phase from `begin` to `end`, outside of steps."""

    def on_epoch_end(self) -> None:
        """Observe the end of an epoch or an evaluation; the callbacks that follow are not time of training."""

    def on_warning(self, sentence: str) -> None:
        """Observe a warning about the computation of steps, such as a value that differs from that of one device."""

    def on_activity(self, activity: Activity, now: int) -> None:
        """Observe a change of this process's activity, in steps or outside of them."""

    def on_done(self, activity: Activity, begin: int, end: int) -> None:
        """Observe that an activity outside of steps, such as saving, lasted from `begin` to `end`."""
