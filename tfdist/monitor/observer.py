"""The base class of observers: override the hooks of interest, and attach it to the `StepClock`.

An observer cannot break a step: one that raises is detached, with one warning. It runs in the thread that steps, so it
must not block. Times are nanoseconds of the monotonic clock. Several threads may have steps under way, with numbers of
their own.
"""

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

from tfdist.monitor.phases import Activity, Kind, Passes, Phase


class End(NamedTuple):
    """End this process before a step, with an exit code, after saving the state or not."""

    code: int
    saves: bool


class StepObserver:
    """Receives the events of steps; by default it ignores everything.

    For each step `on_begin`, then `on_phase` for each interval in one phase, in order and without gaps, then `on_end`
    and `on_step`. A phase may have several intervals. A step that raises ends like any other.
    """

    may_raise: ClassVar[bool] = False  # what it raises is meant for the step, as a fault on purpose is

    def before_step(self, step: int) -> End | None:
        """Decide, perhaps after waiting, whether this process ends instead of beginning the step."""

    def on_begin(self, step: int, kind: Kind, now: int) -> None:
        """A step begins; its number rises by one, over training, validation and prediction alike."""

    def on_enter(self, step: int, phase: Phase, now: int) -> None:
        """The step enters this phase; outside of steps, with the number of the last one or 0."""

    def on_phase(self, step: int, phase: Phase, begin: int, end: int) -> None:
        """The step was in this phase from `begin` to `end`."""

    def on_trained(self, step: int, examples: int, replicas: int) -> None:
        """A batch was trained on; `steps_per_execution` of them are in one step."""

    def on_computed(self, step: int, worker: int, nanoseconds: int, passes: Passes | None) -> None:
        """A worker of this chief has computed a part of a step."""

    def on_end(self, step: int, worked: int, now: int) -> None:
        """A step has ended."""

    def on_step(self, step: int, spent: Mapping[Phase, int], now: int) -> None:
        """A step has ended, with the time spent in each phase: one call instead of many."""

    def on_outside(self, phase: Phase, begin: int, end: int) -> None:
        """This process was in this phase from `begin` to `end`, outside of steps."""

    def on_epoch_end(self) -> None:
        """An epoch or an evaluation is over; the next callbacks are no time of training."""

    def on_warning(self, sentence: str) -> None:
        """This process warns of how steps are computed, such as of a value that is not one device's."""

    def on_activity(self, activity: Activity, now: int) -> None:
        """The activity of this process changes, in steps or outside of them."""

    def on_done(self, activity: Activity, begin: int, end: int) -> None:
        """An activity outside of steps, as saving, lasted from `begin` to `end`."""
